"""How much faster than streaming DiLoCo could anybody be, on the race's own task?

The model, data and wire of docs/race.md in virtual time. `ddp` on a wire of 1 Tbit/s is what no strategy on a slow
wire can beat by communicating better: it averages every gradient at once, for nothing. Each strategy at the learning
rate that suits it best; seconds are compute alone for ddp, all that passes for the others.

    python benchmarks/findings/ceiling.py [--seeds 3] [--steps 480] [--processes 2] [--keep DIR]
"""

import argparse
import statistics
from dataclasses import replace
from pathlib import Path

from offbeat.compare.measures import seconds_to
from offbeat.sweep import Row, Setting, rows_of, sweep

PERFECT = "1000gbit"
RIVAL = "diloco:every=32,fragments=2,delay=12"
STRATEGIES = (("ddp", PERFECT), ("lasgd:wire_dtype=bfloat16", "100mbit"), (RIVAL, "100mbit"))
RATES, TARGETS = (0.005, 0.01, 0.02), (0.80, 0.82, 0.84, 0.86)


def seconds(row: Row, target: float) -> float | None:
    """The median over seeds; None if one of them never got there."""
    found = [seconds_to(run.curve, target) for run in row.runs]
    return statistics.median(each for each in found if each is not None) if None not in found else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=480)
    parser.add_argument("--processes", type=int)
    parser.add_argument("--keep", type=Path, help="a folder in which runs are kept, so that none is run twice")
    parser.add_argument("--data", type=Path)
    given = parser.parse_args()
    base = Setting(
        task="fashion-mnist", model="lenet", data=given.data, batch=16, workers=4, nodes=4, step_seconds=0.1,
        steps=given.steps, evaluate_every=12,
    )  # fmt: skip
    rows = rows_of(
        sweep(
            [
                replace(base, strategy=strategy, link=link, learning_rate=rate, seed=seed)
                for strategy, link in STRATEGIES
                for rate in RATES
                for seed in range(given.seeds)
            ],
            processes=given.processes,
            out=given.keep,
            progress=False,
        )
    )
    print(f"| strategy | rate | {' | '.join(f's to {target:.0%}' for target in TARGETS)} | final |")
    print("|" + "---|" * (3 + len(TARGETS)))
    best: dict[tuple[str, float], float] = {}
    for row in rows:
        cells = []
        for target in TARGETS:
            found = seconds(row, target)
            cells.append("-" if found is None else f"{found:.1f}")
            if found is not None:
                key = row.setting.strategy, target
                best[key] = min(found, best.get(key, found))
        final = statistics.mean(run.accuracy for run in row.runs if run.accuracy is not None)
        name = f"{row.setting.strategy}, perfect wire" if row.setting.link == PERFECT else row.setting.strategy
        print(f"| {name} | {row.setting.learning_rate} | {' | '.join(cells)} | {final:.1%} |")
    for target in TARGETS:
        if all((strategy, target) in best for strategy, _link in STRATEGIES):
            perfect, ours, rival = (best[strategy, target] for strategy, _link in STRATEGIES)
            print(f"to {target:.0%}: a perfect wire is {rival / perfect:.2f} times as fast as DiLoCo, "
                  f"lasgd {rival / ours:.2f} times")  # fmt: skip


if __name__ == "__main__":
    main()
