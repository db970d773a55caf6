"""What does asynchrony cost per epoch?

Accuracy of the averaged model after every epoch, whatever the clock says. Eight workers; on a fast wire, so that delay
and interval are what the options say:

    interval        lasgd:delay=0,every=H           exact averages every H steps, nobody trains on meanwhile
    delay           lasgd:every=16,delay=D          the same averages, merged D steps after the snapshot
    in parts        ... fragments=16/D              likewise, the parts of x taking turns
    back to back    lasgd:delay=D,fragments=1       the next average starts when the last is merged
    daso            b_max, wait                     4 nodes of 2 workers, without warm-up and cool-down
    gossip, a2cid2  rate

and on a wire that carries one average of the whole model per 8 steps. The question at the end: with its defaults on
that wire, is lasgd within 0.5 points of synchronous SGD at equal epochs? This one has three times as many seeds.

    python benchmarks/findings/delay.py
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fashion import STEEPER_LEARNING_RATE
from finding import (
    COLOURS,
    FAST_LINK,
    STEP_SECONDS,
    Options,
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
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from offbeat.sweep import Row, Setting

WORKERS, DASO_NODES, AVERAGE_STEPS = 8, 4, 8
EPOCHS, FULL_EPOCHS = 4, 3
ALLOWED_LOSS = 0.005
SLOW_LINK = link_for(AVERAGE_STEPS * STEP_SECONDS, all_reduce_nbytes(WORKERS))
DELAYS, INTERVALS = (1, 2, 4, 8, 16), (1, 4, 8, 16)
CYCLING = "warmup_epochs=0,cooldown_epochs=0"


@dataclass(frozen=True)
class Group:
    """Settings that are compared with each other; `x` is what they differ in."""

    name: str
    link: str
    strategies: dict[str, str]  # by what they differ in
    nodes: int = WORKERS


GROUPS = (
    Group("synchronous", FAST_LINK, {"-": "ddp"}),
    Group("interval", FAST_LINK, {f"{every}": f"lasgd:delay=0,every={every}" for every in INTERVALS}),
    Group("delay", FAST_LINK, {f"{delay}": f"lasgd:every=16,delay={delay}" for delay in DELAYS}),
    Group(
        "delay, in parts",
        FAST_LINK,
        {f"{delay}": f"lasgd:every=16,delay={delay},fragments={16 // delay}" for delay in (1, 2, 4, 8)},
    ),
    Group("back to back", FAST_LINK, {f"{delay}": f"lasgd:delay={delay},fragments=1" for delay in (1, 2, 4, 8)}),
    Group(
        "daso",
        FAST_LINK,
        {
            f"B={every} W={wait}": f"daso:b_max={every},wait={wait},{CYCLING}"
            for every, wait in ((4, 0), (4, 1), (4, 4), (16, 4))
        },
        DASO_NODES,
    ),
    Group("gossip", FAST_LINK, {f"rate {rate}": f"gossip:rate={rate}" for rate in (1, 2)}),
    Group("a2cid2", FAST_LINK, {f"rate {rate}": f"a2cid2:rate={rate}" for rate in (1, 2)}),
    Group(
        "slow wire",
        SLOW_LINK,
        {
            "gossip": "gossip",
            "gossip, 16 parts": "gossip:fragments=16",
            "gossip, ring": "gossip:topology=ring",
            "a2cid2": "a2cid2",
            "a2cid2, rate 0.2": "a2cid2:rate=0.2",  # about what this wire carries
        },
    ),
)
ON_SLOW_WIRE = {
    "ddp": "ddp",
    "lasgd": "lasgd",
    "lasgd, bfloat16": "lasgd:wire_dtype=bfloat16",
    "lasgd, whole": "lasgd:fragments=1",
    "local_sgd, every 8": "local_sgd:every=8",
}
STEEPER = ("ddp", "lasgd", "lasgd, bfloat16")
TIMES_SEEDS = 3  # as many where it decides: ddp, whose end is no mean of several workers, varies by about a point


def by_epoch(row: Row) -> list[list[float]]:
    """The accuracies of all seeds after each epoch: the last on all test samples, the others on the first 2,000."""
    epochs = zip(*(run.curve[:-1] for run in row.runs), strict=True)
    return [*([point.accuracy or 0.0 for point in same] for same in epochs), row.values(accuracy)]


def settings_of(group: Group, base: Setting) -> list[Setting]:
    return [
        replace(base, strategy=strategy, link=group.link, nodes=group.nodes) for strategy in group.strategies.values()
    ]


def gains(row: Row, synchronous: Row) -> list[float]:
    """Points of accuracy against ddp, seed by seed."""
    pairs = zip(row.values(accuracy), synchronous.values(accuracy), strict=False)
    return [100 * (own - theirs) for own, theirs in pairs]


def show(title: str, named: Sequence[tuple[str, str, Row]], synchronous: Row) -> None:
    print(title + "\n")
    epochs = len(by_epoch(synchronous))
    header = ("what", "", "strategy", "seeds", *(f"epoch {n + 1}" for n in range(epochs)), "points against ddp")
    lines = []
    for group, name, row in named:
        each = [with_spread(values, 2, 100) for values in by_epoch(row)]
        seeds = str(len(row.runs))
        lines.append((group, name, row.setting.strategy, seeds, *each, f"{mean(gains(row, synchronous)):+.2f}"))
    print_table(header, lines)


def draw(found: dict[str, dict[str, Row]], full: dict[str, Row], path: Path) -> None:
    figure, (left, middle, right) = new_figure(3, (5.2, 4.8, 4.8), height=4.6)
    (synchronous,) = found["synchronous"].values()
    for colour, group in zip(COLOURS, ("interval", "delay", "delay, in parts", "back to back"), strict=False):
        if group in found:
            rows = found[group]
            values = [[100 * value for value in row.values(accuracy)] for row in rows.values()]
            left.errorbar([int(x) for x in rows], [mean(v) for v in values], [spread(v) for v in values], fmt="-o",
                          color=colour, capsize=3, linewidth=1.8, label=group)  # fmt: skip
    left.set_xscale("log", base=2)
    left.set_xticks(DELAYS, [str(delay) for delay in DELAYS])
    style(left, "lasgd, by delay and by interval", "steps", "test accuracy, %")
    left.legend(frameon=False, fontsize=9, loc="lower left")
    others = [
        (name if group == "daso" else f"{name}, slow wire" if group == "slow wire" else f"{group}, {name}", row)
        for group in ("daso", "gossip", "a2cid2", "slow wire")
        for name, row in found.get(group, {}).items()
    ]
    _draw_rows(middle, [(f"daso {name}" if name.startswith("B=") else name, row) for name, row in others], synchronous)
    style(middle, "Others", "test accuracy, %", lines="both")
    _draw_rows(right, [(name, row) for name, row in full.items() if name != "ddp"], full["ddp"])
    right.axvline(100 * (mean(full["ddp"].values(accuracy)) - ALLOWED_LOSS), color=COLOURS[2], linestyle=":")
    style(right, f"An average takes {AVERAGE_STEPS} steps, more data", "test accuracy, %", lines="both")
    save(figure, path)


def _draw_rows(axes: Axes, named: Sequence[tuple[str, Row]], synchronous: Row) -> None:
    """A line per row: every seed, and the mean; behind them ddp's mean and spread."""
    for place, (_, row) in enumerate((("ddp", synchronous), *named)):
        values = [100 * value for value in row.values(accuracy)]
        colour = COLOURS[0] if place else COLOURS[3]
        axes.plot(values, [place] * len(values), "o", color=colour, alpha=0.4, markersize=4)
        axes.plot(mean(values), place, "D", color=colour, markersize=6)
    axes.axvline(100 * mean(synchronous.values(accuracy)), color=COLOURS[3], linewidth=1)
    axes.set_yticks(range(len(named) + 1), ["ddp", *(name for name, _ in named)])
    axes.set_ylim(len(named) + 0.5, -0.5)
    axes.xaxis.set_major_locator(MaxNLocator(5))


def run_groups(given: Options) -> dict[str, dict[str, Row]]:
    base = Setting(
        task=given.task("small_task"),
        workers=WORKERS,
        epochs=2 if given.quick else EPOCHS,
        step_seconds=STEP_SECONDS,
        evaluate_every=steps_per_epoch(given, "small_task"),
    )
    groups = [GROUPS[0], Group("delay", FAST_LINK, {"2": "lasgd:every=4,delay=2"})] if given.quick else GROUPS
    rows = iter(given.run(setting for group in groups for setting in settings_of(group, base)))
    return {group.name: {name: next(rows) for name in group.strategies} for group in groups}


def run_full(given: Options, function: str, names: Sequence[str], times: int = 1) -> dict[str, Row]:
    base = Setting(
        task=given.task(function),
        workers=WORKERS,
        nodes=WORKERS,
        epochs=2 if given.quick else FULL_EPOCHS,
        link=SLOW_LINK,
        step_seconds=STEP_SECONDS,
        evaluate_every=steps_per_epoch(given, function),
    )
    rows = given.run((replace(base, strategy=ON_SLOW_WIRE[name]) for name in names), 1 if given.quick else times)
    return dict(zip(names, rows, strict=True))


def steps_per_epoch(given: Options, function: str) -> int:
    setting = Setting(task=given.task(function), workers=WORKERS)
    return setting.job.shard(setting.job.load_task(), 0, WORKERS).steps_per_epoch


def main() -> None:
    given = options("delay", __doc__)
    found = run_groups(given)
    full = run_full(given, "task", STEEPER[:2] if given.quick else list(ON_SLOW_WIRE), TIMES_SEEDS)
    steeper = run_full(given, "steeper_task", STEEPER[:2] if given.quick else STEEPER)

    of_groups = [(group, name, row) for group, rows in found.items() for name, row in rows.items()]
    show(f"{WORKERS} workers; accuracy in %, mean ± standard deviation over seeds.", of_groups, of_groups[0][2])
    show(f"A wire that carries one average per {AVERAGE_STEPS} steps ({SLOW_LINK}), more data.",
         [("slow wire", name, row) for name, row in full.items()], full["ddp"])  # fmt: skip
    show(f"The same with a learning rate of {STEEPER_LEARNING_RATE}.",
         [("steeper", name, row) for name, row in steeper.items()], steeper["ddp"])  # fmt: skip
    draw(found, full, given.figure)

    decided = gains(full["lasgd"], full["ddp"])
    error = f"{spread(decided) / len(decided) ** 0.5:.2f}"
    beside = "; ".join(
        f"{name}{where} {mean(gains(row, rows['ddp'])):+.2f}"
        for rows, where in ((full, ""), (steeper, f" at learning rate {STEEPER_LEARNING_RATE}"))
        for name, row in rows.items()
        if name != "ddp" and not (rows is full and name == "lasgd")
    )
    seeds = ", ".join(f"{value:+.2f}" for value in decided)
    given.conclude(
        mean(decided) >= -100 * ALLOWED_LOSS,
        f"with its defaults lasgd ends {mean(decided):+.2f} points from ddp (standard error {error}; seeds {seeds}), "
        f"where {100 * ALLOWED_LOSS:g} may be lost; beside it {beside}",
        [row for rows in (*found.values(), full, steeper) for row in rows.values()],
    )


if __name__ == "__main__":
    main()
