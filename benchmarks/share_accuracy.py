"""How well is the share of no-communication throughput predicted? The races that are kept, against the cost model.

    python benchmarks/share_accuracy.py [--json FILE]

Takes every run of Offbeat's own strategies under benchmarks/results whose compute was emulated, so that the time of a
step is known, and asks the cost model for its pace: in closed form where there is one, else played out in the virtual
world. The link is the nominal one, less the headers of its frames. Wanted: within 5 points for lasgd, daso and a2cid2;
exits with 1 if one of these is not.
"""

import argparse
import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from kept import Start, keep

from offbeat.cost.device_profile import load_profile
from offbeat.cost.pace import LONG_RUN, Machines, Work, pace
from offbeat.cost.predict import predict
from offbeat.cost.subject import find_subject
from offbeat.cost.wires import Wires
from offbeat.layout import Layout
from offbeat.sim.network import Link
from offbeat.sim.rates import parse_rate
from offbeat.strategies import STRATEGIES, make_strategy

RESULTS = Path(__file__).parent / "results"
PAYLOAD = 1448 / 1514  # of a full frame
LATENCY = 100e-6
LOCAL = Link(bytes_per_second=2e9, seconds=2e-5)
ASKED, WANTED = ("lasgd", "daso", "a2cid2"), 0.05
INPUTS = {"fashion-mnist": ((1, 28, 28), 10), "cifar10": ((3, 32, 32), 10)}


def option(words: list[str], name: str) -> str | None:
    return words[words.index(name) + 1] if name in words else None


def predicted(strategy: str, workers: int, link: str, words: list[str]) -> float:
    task, model = option(words, "--task"), option(words, "--model")
    assert task is not None
    assert model is not None
    shape, classes = INPUTS[task]
    subject = find_subject(model, platform="cpu", input_shape=shape, classes=classes)
    step = predict(subject.at(int(option(words, "--batch") or 16)), load_profile("cpu2"))
    seconds = float(option(words, "--step-seconds") or "nan")
    time = step.time.scaled(seconds / step.time.seconds)
    memory = step.trace.memory
    layout = Layout.even(workers, int(option(words, "--nodes") or workers))
    wire = Link(bytes_per_second=PAYLOAD * parse_rate(link), seconds=LATENCY)
    machines = Machines(layout=layout, wires=Wires(link=wire, local=LOCAL))
    made = make_strategy(strategy)
    made.check(layout, LONG_RUN)
    work = Work(time=time, model_bytes=memory.weights + memory.buffers)
    return min(1.0, seconds / pace(made, work, machines).step_seconds)


def measured() -> dict[tuple[str, str], list[tuple[float, dict[str, Any]]]]:
    """By race and strategy: the shares, each with its record."""
    found: dict[tuple[str, str], list[tuple[float, dict[str, Any]]]] = defaultdict(list)
    for path in sorted(RESULTS.glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        words = record["command"]
        if option(words, "--step-seconds") is None or "--straggler" in words:
            continue
        for run in record["runs"]:
            if run["failure"] is None and run["strategy"] != "none":
                found[path.stem, run["strategy"]].append((run["throughput_share"], {**record, "run": run}))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="keep the shares, with machine, versions and verdict, here")
    given, start = parser.parse_args(), Start()
    runs: list[dict[str, Any]] = []
    off: dict[str, list[float]] = defaultdict(list)
    for (race, strategy), shares in measured().items():
        name = strategy.partition(":")[0]
        record = shares[0][1]
        if name not in STRATEGIES:
            continue  # a rival
        said = predicted(strategy, record["run"]["workers"], record["run"]["link"], record["command"])
        share = statistics.mean(each for each, _ in shares)
        off[name].append(said - share)
        runs.append({"race": race, "strategy": strategy, "measured": share, "predicted": said})
        points = f"{100 * (said - share):+5.1f} points"
        print(f"{race:>18} {strategy:<62} measured {share:.3f}, predicted {said:.3f}: {points}")
    for name, each in off.items():
        print(f"{name}: {len(each)} races, off by {100 * statistics.mean(map(abs, each)):.1f} points in the mean, "
              f"{100 * max(map(abs, each)):.1f} at most")  # fmt: skip
    held = all(off[name] and max(map(abs, off[name])) <= WANTED for name in ASKED)
    if given.json is not None:
        keep(
            given.json,
            start=start,
            held=held,
            runs=runs,
            most={name: max(map(abs, each)) for name, each in off.items() if each},
        )
    raise SystemExit(0 if held else 1)


if __name__ == "__main__":
    main()
