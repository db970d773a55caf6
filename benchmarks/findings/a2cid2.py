"""On the ring, does A2CiD2 do what doubling the communication rate does?

Rings of 16, 32 and 64 workers on a fast network, so that the asked-for rate of exchanges is met: gossip at rate 1,
a2cid2 at rate 1 and gossip at rate 2. The consensus distance is the mean over the second half of the run; the accuracy
is that of the averaged model at the end. Controls: the exponential and the complete graph of 16, where the momentum is
small or none; and the rings in a landscape without curvature (noise.py), for which the method was made: there nothing
but exchanges brings workers together, while in sharp directions of a loss a deviation dies out by itself.

    python benchmarks/findings/a2cid2.py
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from finding import (
    COLOURS,
    FAINT,
    FAST_LINK,
    HERE,
    STEP_SECONDS,
    accuracy,
    mean,
    new_figure,
    options,
    print_table,
    save,
    spread,
    style,
    with_spread,
)

from offbeat.sweep import Finished, Row, Setting

RINGS, CONTROLS = (16, 32, 64), (("exponential", 16), ("complete", 16))
METHODS = {"gossip, rate 1": ("gossip", 1), "a2cid2, rate 1": ("a2cid2", 1), "gossip, rate 2": ("gossip", 2)}
PLAIN, OURS, TWICE = METHODS
STEPS, FLAT_STEPS, BATCH, JITTER = 240, 600, 8, 0.1

FLAT = "flat ring"  # the ring, where gradients are noise

Found = Mapping[tuple[str, int, str], Row]  # by graph, workers and method


def distance(run: Finished) -> float:
    """Of the workers from their mean, over the second half of the run."""
    points = run.curve[len(run.curve) // 2 :]
    return mean([point.consensus_distance for point in points if point.consensus_distance is not None])


def draw(found: Found, graphs: list[tuple[str, int]], path: Path) -> None:
    biggest = max(workers for graph, workers in graphs if graph == "ring")
    figure, (left, middle, flat, right) = new_figure(4, (5.2, 4.4, 3.0, 4.4))
    colours = dict(zip(METHODS, COLOURS, strict=False))
    for method in METHODS:
        row = found["ring", biggest, method]
        points = list(zip(*(run.curve for run in row.runs), strict=False))
        steps = [mean([point.step for point in same]) for same in points]
        values = [[point.consensus_distance or 0.0 for point in same] for same in points]
        left.plot(steps, list(map(mean, values)), color=colours[method], linewidth=2, label=method)
        left.fill_between(steps, list(map(min, values)), list(map(max, values)), color=colours[method], alpha=0.15)
    style(left, f"Distance of the workers from their mean, ring of {biggest}", "step", "consensus distance")
    left.set_ylim(bottom=0)
    left.legend(frameon=False, fontsize=9)
    trained = [(graph, workers) for graph, workers in graphs if graph != FLAT]
    for axes, value, scale, shown in (
        (middle, distance, 1.0, trained),
        (flat, distance, 1.0, [(graph, workers) for graph, workers in graphs if graph == FLAT]),
        (right, accuracy, 100.0, trained),
    ):
        for number, method in enumerate(METHODS):
            places = [place + 0.27 * (number - 1) for place in range(len(shown))]
            values = [found[graph, workers, method].values(value) for graph, workers in shown]
            means, spreads = [scale * mean(v) for v in values], [scale * spread(v) for v in values]
            if axes is right:
                axes.errorbar(places, means, spreads, fmt="o", color=colours[method], capsize=3)
            else:
                axes.bar(places, means, 0.25, yerr=spreads, color=colours[method], ecolor=FAINT)
        axes.set_xticks(range(len(shown)), [f"{graph.removeprefix('flat ')}\n{workers}" for graph, workers in shown])
    style(middle, "The same over the second half", "", "consensus distance")
    style(flat, "Without curvature")
    style(right, "Accuracy of the averaged model", "", "test accuracy, %")
    save(figure, path)


def as_near(found: Found, graph: str, workers: int) -> tuple[bool, str]:
    """Whether a2cid2 at rate 1 keeps workers as near to each other as gossip at rate 2, and in numbers."""
    ours, twice = (mean(found[graph, workers, method].values(distance)) for method in (OURS, TWICE))
    return (
        ours <= twice,
        f"{graph} {workers} {'yes' if ours <= twice else 'no'} ({ours:.3f} against {twice:.3f} at rate 2)",
    )


def as_good(found: Found, graph: str, workers: int) -> tuple[bool, str]:
    """Whether its accuracy is no worse than that, within the spread over seeds."""
    ours, twice = (found[graph, workers, method].values(accuracy) for method in (OURS, TWICE))
    gap, allowed = mean(twice) - mean(ours), max(spread(twice), spread(ours))
    word = "no worse" if gap <= allowed else "worse"
    return gap <= allowed, f"accuracy {-100 * gap:+.2f} points (spread {100 * allowed:.2f}: {word})"


def main() -> None:
    given = options("a2cid2", __doc__)
    rings, controls = ((8,), ()) if given.quick else (RINGS, CONTROLS)
    graphs = [*(("ring", workers) for workers in rings), *controls, *((FLAT, workers) for workers in rings)]
    base = Setting(
        task=given.task(),
        batch=BATCH,
        steps=16 if given.quick else STEPS,
        link=FAST_LINK,
        step_seconds=STEP_SECONDS,
        jitter=JITTER,
    )
    keys = [(graph, workers, method) for graph, workers in graphs for method in METHODS]
    flat = replace(base, task=f"{HERE / 'noise.py'}:task", steps=16 if given.quick else FLAT_STEPS)
    settings = []
    for graph, workers, method in keys:
        name, rate = METHODS[method]
        strategy = f"{name}:topology={'ring' if graph == FLAT else graph},rate={rate}"
        settings.append(replace(flat if graph == FLAT else base, strategy=strategy, workers=workers, nodes=workers))
    found = dict(zip(keys, given.run(settings), strict=True))

    print(f"{base.steps} steps of batch {BATCH}, {JITTER:.0%} jitter, {FAST_LINK}; mean ± standard deviation of "
          f"{given.seeds} seeds.\n")  # fmt: skip
    lines = []
    for graph, workers, method in keys:
        row = found[graph, workers, method]
        distances, accuracies = row.values(distance), row.values(accuracy)
        plain = mean(found[graph, workers, PLAIN].values(distance))
        lines.append((
            f"{graph} {workers}", method, with_spread(distances, 3), f"{mean(distances) / plain:.2f}",
            with_spread(accuracies, 2, 100) if accuracies else "-",
        ))  # fmt: skip
    print_table(("graph", "method", "consensus distance", "times gossip's", "accuracy, %"), lines)
    draw(found, graphs, given.figure)
    nearness = [as_near(found, "ring", workers) for workers in rings]
    goodness = [as_good(found, "ring", workers) for workers in rings]
    per_ring = "; ".join(f"{near}, {good}" for (_, near), (_, good) in zip(nearness, goodness, strict=True))
    without = "; ".join(as_near(found, FLAT, workers)[1] for workers in rings)
    held = all(near for near, _ in nearness) and all(good for good, _ in goodness)
    given.conclude(held, f"{per_ring}; without curvature: {without}", list(found.values()))


if __name__ == "__main__":
    main()
