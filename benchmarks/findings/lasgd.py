"""Is LASGD faster than SGD and than gossip?

Eight workers, a node each, on a network that takes eight steps for one average of the whole model, and one of them at
half speed. Virtual seconds until the averaged model has an accuracy that is 2 points below the one that ddp ends with;
the rivals with the settings that suit such a network.

    python benchmarks/findings/lasgd.py
"""

import math
from dataclasses import replace
from pathlib import Path

from finding import (
    COLOURS,
    FAINT,
    STEP_SECONDS,
    accuracy,
    all_reduce_nbytes,
    link_for,
    mean,
    new_figure,
    options,
    print_table,
    save,
    spread,
    style,
    with_spread,
)

from offbeat.sweep import Row, Setting

WORKERS, AVERAGE_STEPS, SLOW_RANK, SLOWER = 8, 8, 7, 2
STEPS, EVALUATE_EVERY = 400, 8
POINTS_BELOW = 0.02
RIVALS = (
    "ddp",
    "local_sgd:every=8",
    "local_sgd:every=16",
    "diloco:every=8",
    "diloco:every=16",
    "diloco:every=8,fragments=4,delay=4",  # streaming: a fourth travels 2 steps
    "diloco:every=16,fragments=4,delay=4",
    "sgp",
    "gossip",
    "gossip:fragments=16",  # as a larger model would have by default
    "gossip:topology=complete,fragments=16",
    "a2cid2",
    "a2cid2:fragments=16",
)
OURS = ("lasgd", "lasgd:wire_dtype=bfloat16")


def reached(row: Row) -> list[float]:
    return row.values(lambda run: run.seconds_to_target)


def all_reached(row: Row) -> bool:
    return len(reached(row)) == len(row.runs)


def seconds_of(row: Row) -> float:
    """The mean over seeds; infinite if one of them never got there."""
    return mean(reached(row)) if all_reached(row) else math.inf


def end_of(row: Row) -> float:
    """The accuracy around the end, on the samples that a curve looks at: the mean of the last fifth of the points."""
    ends = []
    for run in row.runs:
        known = [point.accuracy for point in run.curve[:-1] if point.accuracy is not None]
        ends.append(mean(known[-max(1, len(known) // 5) :]))
    return mean(ends)


def with_target(row: Row, target: float) -> Row:
    runs = tuple(replace(run, setting=replace(run.setting, target_accuracy=target)) for run in row.runs)
    return Row(runs[0].setting, runs)


def words(row: Row) -> str:
    if all_reached(row):
        return with_spread(reached(row), 1)
    return f"never in {len(row.runs) - len(reached(row))} of {len(row.runs)}"


def against(own: Row, other: Row) -> str:
    """Another in numbers, with how many seeds say the same."""
    pairs = [
        (a.seconds_to_target or math.inf, b.seconds_to_target or math.inf)
        for a, b in zip(own.runs, other.runs, strict=True)
    ]
    ahead = sum(a < b for a, b in pairs)
    return (
        f"{other.setting.strategy} {words(other)} s, {seconds_of(other) / seconds_of(own):.2f} times as long "
        f"(lasgd is ahead in {ahead} of {len(pairs)} seeds)"
    )


def draw(rows: list[Row], target: float, path: Path) -> None:
    figure, (left, right) = new_figure(2, (7.2, 6.4), height=5.2)
    order = sorted(rows, key=seconds_of)
    best = {}
    for row in order:
        best.setdefault(row.setting.job.strategy.name, row)
    slowest = max((seconds_of(row) for row in order if all_reached(row)), default=1.0)
    colour = dict(zip(sorted({row.setting.job.strategy.name for row in rows}), COLOURS, strict=False))
    for row in best.values():
        name = row.setting.job.strategy.name
        points = list(zip(*(run.curve[:-1] for run in row.runs), strict=False))
        x = [mean([point.seconds for point in same]) for same in points]
        y = [mean([point.accuracy for point in same]) for same in points]
        left.plot(x, y, color=colour[name], linewidth=2.4 if name == "lasgd" else 1.5, label=row.setting.strategy)
    left.axhline(target, color=FAINT, linestyle=":", linewidth=1)
    left.annotate(f"target {target:.1%}", (0.01, target), xycoords=("axes fraction", "data"), va="bottom",
                  fontsize=9, color=FAINT)  # fmt: skip
    left.set_xscale("log")
    left.xaxis.set_major_formatter("{x:g}")
    left.minorticks_off()
    left.set_ylim(max(0.0, target - 0.25), None)
    style(left, "Averaged model, the best setting of each method", "virtual seconds", "test accuracy")
    left.legend(frameon=False, fontsize=8.5, loc="lower right")
    for place, row in enumerate(order):
        name = row.setting.job.strategy.name
        values = reached(row)
        if all_reached(row):
            right.barh(place, mean(values), xerr=spread(values), color=colour[name], height=0.7,
                       error_kw={"ecolor": FAINT, "elinewidth": 1})  # fmt: skip
        right.annotate(f"  {words(row)}", ((mean(values) + spread(values)) if all_reached(row) else 0, place),
                       va="center", fontsize=9, color=FAINT)  # fmt: skip
    style(
        right,
        f"Virtual seconds to {target:.1%}",
        f"a step takes {STEP_SECONDS} s, twice as long on one worker",
        lines="x",
    )
    right.set_yticks(range(len(order)), [row.setting.strategy for row in order])
    right.set_ylim(len(order) - 0.4, -0.6)
    right.set_xlim(0, slowest * 1.4)
    save(figure, path)


def main() -> None:
    given = options("lasgd", __doc__)
    base = Setting(
        task=given.task(),
        workers=WORKERS,
        nodes=WORKERS,
        steps=16 if given.quick else STEPS,
        link=link_for(AVERAGE_STEPS * STEP_SECONDS, all_reduce_nbytes(WORKERS)),
        step_seconds=STEP_SECONDS,
        straggler=f"{SLOW_RANK}:{SLOWER}",
        evaluate_every=2 if given.quick else EVALUATE_EVERY,
    )
    found = given.run(replace(base, strategy=strategy) for strategy in (*OURS, *RIVALS))
    ddp_end = end_of(next(row for row in found if row.setting.strategy == "ddp"))
    target = max(0.01, ddp_end - POINTS_BELOW)
    rows = [with_target(row, target) for row in found]
    by_name = {row.setting.strategy: row for row in rows}

    print(f"{WORKERS} workers on {WORKERS} nodes, {base.link}: an average takes {AVERAGE_STEPS} steps; "
          f"rank {SLOW_RANK} is {SLOWER} times slower.")  # fmt: skip
    print(f"Virtual seconds until {target:.4f} is reached, {POINTS_BELOW:.2f} below ddp's end of {ddp_end:.4f}; "
          f"mean ± standard deviation of {given.seeds} seeds.\n")  # fmt: skip
    own_seconds = seconds_of(by_name["lasgd"])
    lines = []
    for row in sorted(rows, key=seconds_of):
        times = f"{seconds_of(row) / own_seconds:.2f}" if all_reached(row) else "-"
        each = ", ".join("never" if (at := run.seconds_to_target) is None else f"{at:.1f}" for run in row.runs)
        computing = f"{row.mean(lambda run: run.computing_share):.0%}"
        accuracies = with_spread(row.values(accuracy), 2, 100)
        lines.append((row.setting.strategy, words(row), each, times, computing, accuracies))
    header = ("strategy", "seconds to target", "each seed", "times lasgd's", "computing", f"% after {base.steps} steps")
    print_table(header, lines)
    draw(rows, target, given.figure)

    gossips = [row for row in rows if row.setting.job.strategy.name == "gossip"]
    others = [by_name["ddp"], min(gossips, key=seconds_of)]
    fastest = min(rows, key=seconds_of)
    numbers = "; ".join(against(by_name["lasgd"], other) for other in others)
    given.conclude(
        all(own_seconds < seconds_of(other) for other in others),
        f"to {target:.1%} lasgd takes {words(by_name['lasgd'])} s; {numbers}; "
        f"the fastest of all is {fastest.setting.strategy} with {seconds_of(fastest):.1f} s",
        rows,
        target=target,
    )


if __name__ == "__main__":
    main()
