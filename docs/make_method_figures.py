"""Draws the figure of every page in docs/methods: the method against the baselines, on a simulated slow network.

    python docs/make_method_figures.py

Handwritten digits, 8 workers on 4 nodes, a step of 0.1 s with 10 % jitter, and a link on which an average of the whole
model takes about six steps. Everything is virtual time, so the pictures are the same on every machine.
"""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from offbeat.sweep import Finished, Setting, sweep

IMAGES = Path(__file__).parent / "images"
BASELINES = ("ddp", "local_sgd")
METHODS = {
    "lasgd": ("lasgd", "lasgd:fragments=1"),
    "a2cid2": ("a2cid2", "gossip:topology=ring"),
    "daso": ("daso", "daso:b_max=8,wire_dtype=bfloat16"),
    "diloco": ("diloco", "diloco:fragments=4,delay=4"),
    "sgp": ("sgp", "sgp:overlap=0"),
    "local_sgd": (),
}
COLOURS = ("#2f7fb8", "#f0a030")
GREYS = ("#555555", "#aaaaaa")
LONGEST_SECONDS = 60.0  # of virtual time: ddp goes on for longer


def setting(strategy: str) -> Setting:
    return Setting(
        strategy=strategy, workers=8, nodes=4, link="0.9mbit", jitter=0.1, epochs=20, evaluate_every=5, seed=0
    )


def draw(path: Path, runs: dict[str, Finished], method: tuple[str, ...]) -> None:
    figure, axes = plt.subplots(figsize=(7.2, 3.2), dpi=150, layout="constrained")
    for strategies, colours, width in ((BASELINES, GREYS, 1.4), (method, COLOURS, 2.2)):
        for strategy, colour in zip(strategies, colours, strict=False):
            points = [point for point in runs[strategy].curve if point.seconds <= LONGEST_SECONDS]
            accuracies = [100 * (point.accuracy or 0.0) for point in points]
            axes.plot([p.seconds for p in points], accuracies, color=colour, linewidth=width, label=strategy)
    axes.set_xlim(0, LONGEST_SECONDS)
    axes.set_ylim(40, 100)
    axes.set_xlabel("virtual seconds")
    axes.set_ylabel("accuracy of the averaged model, %")
    axes.legend(loc="lower right", frameon=False, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Software": None})
    plt.close(figure)


def main() -> None:
    strategies = [*BASELINES, *(name for names in METHODS.values() for name in names)]
    runs = dict(zip(strategies, sweep([setting(name) for name in strategies]), strict=True))
    for method, names in METHODS.items():
        draw(IMAGES / f"method-{method}.png", runs, names)
    for name, run in runs.items():
        print(f"{name:<36} {run.seconds:7.1f} s   accuracy {run.accuracy:.3f}   computing {run.computing_share:.0%}")


if __name__ == "__main__":
    main()
