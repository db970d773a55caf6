"""Does DASO cut training time by up to 34 % at equal accuracy?

Four nodes of four workers, 16 epochs, four of them warm-up and four cool-down (the defaults), against ddp, over links
between the nodes from fast to slow. Fast and slow are relative to a step: the ratio is the time that ddp's all-reduce
takes by itself, over that of a step's compute. Beside it stands the same with the gradients of 100 MB, timed only:
they leave in several buckets while backward goes on, and ours, being small, in one at the end.

    python benchmarks/findings/daso.py
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
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

from offbeat.sweep import Row, Setting, sweep

NODES, WORKERS, EPOCHS = 4, 16, 16
RATIOS = (0.05, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)  # ddp's communication / compute
CLAIMED_CUT, ALLOWED_LOSS = 0.34, 0.005
HELPS = 0.01  # a cut that is worth the name
BIG_NBYTES, BIG_STEPS = 100_000_000, 400


@dataclass(frozen=True)
class Compared:
    """At one ratio of ddp's communication to compute."""

    ratio: float
    daso: Row
    ddp_seconds: float
    big_cut: float

    @property
    def cuts(self) -> list[float]:
        return [1 - run.seconds / self.ddp_seconds for run in self.daso.runs]


def big_settings(ratio: float, steps: int) -> list[Setting]:
    """ddp and daso with a model of 100 MB on the link that gives the ratio; by the clock alone, so B stays as it is."""
    timed = Setting(
        timing_only=True,
        model_bytes=BIG_NBYTES,
        steps=steps,
        workers=WORKERS,
        nodes=NODES,
        step_seconds=STEP_SECONDS,
        link=link_for(ratio * STEP_SECONDS, all_reduce_nbytes(WORKERS, BIG_NBYTES)),
    )
    return [replace(timed, strategy=strategy) for strategy in ("ddp", "daso")]


def in_words(link: str) -> str:
    """Such as "15 Gbit/s"."""
    bits = float(link.removesuffix("mbit")) * 1e6
    return f"{bits / 1e9:.3g} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:.3g} Mbit/s"


def draw(compared: Sequence[Compared], ddp_accuracies: Sequence[float], path: Path) -> None:
    figure, (left, right) = new_figure(2, (6.4, 5.4))
    ratios = [each.ratio for each in compared]
    left.errorbar(ratios, [100 * mean(each.cuts) for each in compared], [100 * spread(each.cuts) for each in compared],
                  fmt="-o", color=COLOURS[0], linewidth=2, capsize=3, label="trained")  # fmt: skip
    left.plot(ratios, [100 * each.big_cut for each in compared], "--s", color=COLOURS[1], linewidth=1.6, markersize=5,
              label="100 MB model, timed only:\nddp overlaps with backward")  # fmt: skip
    left.axhline(100 * CLAIMED_CUT, color=COLOURS[2], linestyle=":", linewidth=1.4)
    left.annotate(f"claimed: {CLAIMED_CUT:.0%}", (0.01, 100 * CLAIMED_CUT), xycoords=("axes fraction", "data"),
                  va="bottom", fontsize=9, color=COLOURS[2])  # fmt: skip
    left.axhline(0, color=FAINT, linewidth=0.8)
    style(left, "How much sooner daso is done than ddp", "communication / compute of ddp (slower links to the right)",
          "cut of training time, %")  # fmt: skip
    left.legend(frameon=False, fontsize=9, loc="lower right")
    daso = [each.daso.values(accuracy) for each in compared]
    right.errorbar(ratios, [100 * mean(v) for v in daso], [100 * spread(v) for v in daso], fmt="o", color=COLOURS[0],
                   capsize=3, label="daso")  # fmt: skip
    ddp = 100 * mean(ddp_accuracies)
    right.axhline(ddp, color=COLOURS[3], linewidth=1.6, label="ddp")
    right.axhspan(ddp - 100 * ALLOWED_LOSS, ddp + 100 * ALLOWED_LOSS, color=COLOURS[3], alpha=0.12,
                  label=f"within {100 * ALLOWED_LOSS:g} points of it")  # fmt: skip
    style(right, f"Accuracy after {compared[0].daso.setting.epochs} epochs", "communication / compute of ddp",
          "test accuracy, %")  # fmt: skip
    right.legend(frameon=False, fontsize=9)
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xticks(ratios, [f"{ratio:g}" for ratio in ratios])
    save(figure, path)


def main() -> None:
    given = options("daso", __doc__)
    ratios = (0.25, 4.0) if given.quick else RATIOS
    base = Setting(
        task=given.task("small_task"),
        workers=WORKERS,
        nodes=NODES,
        epochs=4 if given.quick else EPOCHS,
        step_seconds=STEP_SECONDS,
        evaluate_every=10_000,  # only the end counts
    )
    links = [link_for(ratio * STEP_SECONDS, all_reduce_nbytes(WORKERS)) for ratio in ratios]
    # What ddp learns does not depend on the link, so it is trained on one of them and timed on the others.
    (ddp,) = given.run([replace(base, strategy="ddp", link=links[0])])
    rows = given.run(replace(base, strategy="daso", link=link) for link in links)
    timed = sweep(
        [replace(base, strategy="ddp", link=link, timing_only=True) for link in links], processes=1, progress=False
    )
    if abs(timed[0].seconds - ddp.runs[0].seconds) > 1e-6 * timed[0].seconds:
        raise RuntimeError(f"ddp takes {ddp.runs[0].seconds} s trained and {timed[0].seconds} s timed only")
    compared = []
    for ratio, row, alone in zip(ratios, rows, timed, strict=True):
        big_ddp, big_daso = sweep(big_settings(ratio, 40 if given.quick else BIG_STEPS), processes=1, progress=False)
        compared.append(Compared(ratio, row, alone.seconds, 1 - big_daso.seconds / big_ddp.seconds))

    print(f"{NODES} nodes of {WORKERS // NODES} workers, {base.epochs} epochs, daso with its defaults; mean ± standard "
          f"deviation of {given.seeds} seeds. ddp: {with_spread(ddp.values(accuracy), 2, 100)} %.\n")  # fmt: skip
    header = ("communication / compute", "link", "link for 100 MB", "ddp, s", "daso, s", "cut, %", "cut at 100 MB, %",
              "daso's accuracy, %", "points against ddp")  # fmt: skip
    ddp_accuracy = mean(ddp.values(accuracy))
    lines = []
    for each in compared:
        own = each.daso.values(accuracy)
        lines.append((
            f"{each.ratio:g}", in_words(each.daso.setting.link), in_words(big_settings(each.ratio, BIG_STEPS)[0].link),
            f"{each.ddp_seconds:.1f}", with_spread(each.daso.values(lambda run: run.seconds), 1),
            with_spread(each.cuts, 1, 100), f"{100 * each.big_cut:.1f}",
            with_spread(own, 2, 100), f"{100 * (mean(own) - ddp_accuracy):+.2f}",
        ))  # fmt: skip
    print_table(header, lines)
    draw(compared, ddp.values(accuracy), given.figure)

    as_good = [each for each in compared if ddp_accuracy - mean(each.daso.values(accuracy)) <= ALLOWED_LOSS]
    enough = [each for each in as_good if mean(each.cuts) >= CLAIMED_CUT]
    most = max(compared, key=lambda each: mean(each.cuts))
    lost = 100 * (mean(most.daso.values(accuracy)) - ddp_accuracy)
    since = f"from a ratio of {enough[0].ratio:g} on" if enough else "nowhere"
    useless = [each.ratio for each in compared if mean(each.cuts) < HELPS]
    most_big = max(each.big_cut for each in compared)
    slower = ", ".join(f"{each.ratio:g}" for each in compared if each.big_cut < 0)
    given.conclude(
        bool(enough),
        f"the cut is {100 * mean(most.cuts):.1f} % at a ratio of {most.ratio:g} (accuracy {lost:+.2f} points), "
        f"{CLAIMED_CUT:.0%} or more {since}, "
        f"and below {HELPS:.0%} at {', '.join(format(ratio, 'g') for ratio in useless) or 'none of the ratios'}; "
        f"with 100 MB, where ddp overlaps with backward, it is at most {100 * most_big:.1f} %, "
        f"and daso is the slower one at {slower or 'none of the ratios'}",
        [ddp, *rows],
        ddp_seconds=[each.ddp_seconds for each in compared],
        big_cuts=[each.big_cut for each in compared],
    )


if __name__ == "__main__":
    main()
