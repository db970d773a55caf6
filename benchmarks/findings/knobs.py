"""Which knob limits which network at which size? The questions of the paper behind the cost model, answered by it.

Barrachina et al. 2021 vary what cannot be bought: batch, FLOP/s, memory bandwidth, link bandwidth, cluster size. Here
each is doubled alone, for synchronous SGD (ddp), and the gain in samples per second is what the knob is worth. Devices
are those of data sheets (labelled roofline): which knob matters is surer than how fast it is.

    python benchmarks/findings/knobs.py [--device v100] [--link 25gbit] [--per-node 4] [--batch 64] [--out PICTURE]
"""

import argparse
import math
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from offbeat.cost.device_profile import load_profile
from offbeat.cost.plan import Question, plan
from offbeat.cost.subject import find_subject
from offbeat.cost.sweeps import Knob, sweeps
from offbeat.cost.verdict import knee
from offbeat.cost.wires import Wires
from offbeat.report.table import human_rate
from offbeat.sim.network import Link
from offbeat.sim.rates import parse_rate

NETWORKS = ("vgg16", "resnet50", "resnet18", "gpt")
NODES = (1, 4, 16, 64)
NAMES = ("batch", "FLOP/s", "memory", "link", "workers")
LATENCY = 1e-5
IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"


@dataclass(frozen=True)
class Cell:
    """A network on a cluster: what doubling each knob brings, as a factor of the throughput."""

    network: str
    workers: int
    efficiency: float
    samples_per_second: float
    gains: tuple[float, ...]  # in the order of NAMES; NaN: does not fit

    @property
    def limit(self) -> str:
        """Of what makes a worker or the wire faster: the batch and the cluster are choices."""
        return max(NAMES[1:4], key=lambda name: self.gains[NAMES.index(name)])


def gain(knob: Knob) -> float:
    """Of doubling it."""
    speeds = dict(zip(knob.values, knob.speeds, strict=True))
    return speeds.get(2 * knob.now, math.nan) / speeds[knob.now]


def cells(device: str, link: str, per_node: int, batch: int) -> list[Cell]:
    profile, found = load_profile(device), list[Cell]()
    wires = Wires(link=Link(bytes_per_second=parse_rate(link), seconds=LATENCY), local=profile.local)
    for network in NETWORKS:
        subject = find_subject(network, platform=profile.platform)
        for nodes in NODES:
            question = Question(
                subject=subject, profile=profile, nodes=nodes, workers_per_node=per_node, batch=batch, wires=wires,
                strategies=("ddp",),
            )  # fmt: skip
            answer = plan(question)
            row = answer.rows[-1]
            gains = tuple(gain(knob) for knob in sweeps(answer))
            found.append(Cell(network, row.workers, row.efficiency, row.samples_per_second, gains))
        at = knee(answer.rows)
        print(f"{network}: {subject.at(batch).flops / batch / 1e9:.2f} GFLOP a sample, "
              f"{sum(spec.nbytes for spec in subject.at(batch).parameters.values()) / 1e6:.0f} MB of gradients, "
              f"{'no knee' if at is None else f'knee at {at} workers'}")  # fmt: skip
    return found


def draw(path: Path, found: list[Cell], title: str) -> None:
    figure = Figure(figsize=(9, 6.2), layout="constrained")
    axes = figure.add_subplot()
    table = [[100 * (each - 1) for each in cell.gains] for cell in found]
    image = axes.imshow(table, aspect="auto", cmap="Blues", vmin=0, vmax=100)
    for row, values in enumerate(table):
        for column, value in enumerate(values):
            text = "-" if math.isnan(value) else f"{value:+.0f} %"
            axes.text(column, row, text, ha="center", va="center", color="white" if value > 55 else "#1f2d3a")
    axes.set_xticks(range(len(NAMES)), [f"{name} x 2" for name in NAMES])
    axes.set_yticks(range(len(found)), [f"{cell.network}, {cell.workers} workers" for cell in found])
    axes.set_title(title)
    figure.colorbar(image, label="more samples per second, %")
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="v100")
    parser.add_argument("--link", default="25gbit")
    parser.add_argument("--per-node", type=int, default=4)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--out", type=Path, default=IMAGES / "findings-knobs.png")
    given = parser.parse_args()
    found = cells(given.device, given.link, given.per_node, given.batch)
    print(f"\n| network | workers | efficiency | samples/s | {' | '.join(f'{name} x 2' for name in NAMES)} | limit |")
    print("|" + "---|" * (5 + len(NAMES)))
    for cell in found:
        gains = " | ".join("-" if math.isnan(each) else f"{100 * (each - 1):+.0f} %" for each in cell.gains)
        rate = human_rate(cell.samples_per_second)
        print(f"| {cell.network} | {cell.workers} | {cell.efficiency:.0%} | {rate} | {gains} | {cell.limit} |")
    title = f"ddp on {given.device}, {given.per_node} a node, {given.link}, batch {given.batch}"
    draw(given.out, found, title)


if __name__ == "__main__":
    main()
