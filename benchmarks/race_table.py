"""Write the tables and the picture of the races from benchmarks/results: the README's, docs/race.md's.

python benchmarks/race_table.py            write
python benchmarks/race_table.py --check    say whether they are as they would be written
"""

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence

from race_best import targets_table
from race_picture import PICTURE, draw
from race_words import as_row, listed, moments, percent, shown
from races import ROOT, Race, Times, captions, ends_of, newest_runs, or_never, read_races, seconds_of, seed_of

TO_ACCURACY = ("accuracy", "accuracy-lasgd", "accuracy-ddp", "accuracy-rivals")  # with other strategies and seeds
MEASURES = {"throughput_share": "{:.2f}", "wire_utilisation": "{:.2f}", "accuracy": "{:.1%}"}  # None in failed laps
LOWER_RATES = ("rate-0.01", "rate-0.007", "rate-0.005")
HARDER = 0.85  # chosen when laps had been seen; the table of targets has those beside it


def to_accuracy_table(
    races: Sequence[Race], *, harder: float | None = None, only: Callable[[str], bool] = lambda _: True
) -> list[str]:
    """All seeds of all races, the fastest strategy first; also to a harder target, if asked for. "Faster" compares
    medians over the seeds that both have."""
    target = races[0].record["target_accuracy"]
    runs = {strategy: own for strategy, own in newest_runs(races).items() if only(strategy)}
    times = {strategy: {seed_of(run): seconds_of(run, target) for run in runs[strategy]} for strategy in runs}
    targets = [target] if harder is None else [target, harder]
    heads = [f"seconds to {percent(each)}{', each seed' if each == target else ''}" for each in targets]
    heads = ["strategy", *heads, "faster than `ddp`", "throughput", "wire", "final accuracy"]
    rows = [as_row(heads), "|" + "---|" * len(heads)]
    ddp, ddp_ends = times.get("ddp", {}), ends_of(runs.get("ddp", []))
    for strategy in sorted(runs, key=lambda strategy: statistics.median(map(or_never, times[strategy].values()))):
        found = [run for run in runs[strategy] if run["failure"] is None]
        if not found:
            reason = " ".join(runs[strategy][0]["failure"].replace("|", "/").split())
            rows.append(f"| {shown(strategy)} | could not run: {reason} |" + " |" * (len(heads) - 2))
            continue
        cells = [
            *(moments(runs[strategy], each) for each in targets),
            ratio(times[strategy], ddp, ddp_ends),
            *(listed((run.get(name) for run in runs[strategy]), text.format) for name, text in MEASURES.items()),
        ]
        rows.append(as_row([shown(strategy), *cells]))
    return rows


def ratio(own: Times, base: Times, base_ends: Mapping[int, float]) -> str:
    """How many times as fast, where both have seeds in common and ours got there in most of them; more than that where
    the base did not: then its median is of the times for which it tried."""
    both = own.keys() & base.keys() & (base_ends.keys() | {seed for seed in base if base[seed] is not None})
    if not both:
        return "-"
    ours, theirs = (statistics.median(or_never(times[seed]) for seed in both) for times in (own, base))
    if not math.isfinite(ours):
        return "-"
    if math.isfinite(theirs):
        return f"{theirs / ours:.1f}"
    tried = statistics.median(base_ends[seed] if (got := base[seed]) is None else got for seed in both)
    return f"more than {math.floor(tried / ours)}" if own is not base and tried > ours else "-"


def epochs_table(races: Sequence[Race]) -> list[str]:
    """Accuracies at equal epochs, and how far they are from those of `ddp` with the same seed, in points."""
    heads = ["strategy", "accuracy, each seed", "points against `ddp`"]
    rows = [as_row(heads), "|" + "---|" * len(heads)]
    ends = {
        strategy: {seed_of(run): float(run["accuracy"]) for run in runs if run["failure"] is None}
        for strategy, runs in newest_runs(races).items()
    }
    ddp, ran = ends.get("ddp", {}), {strategy: own for strategy, own in ends.items() if own}
    for strategy, own in sorted(ran.items(), key=lambda item: -statistics.mean(item[1].values())):
        points = [100 * (own[seed] - ddp[seed]) if seed in ddp else None for seed in own]
        each = "-" if strategy == "ddp" else listed(points, "{:+.1f}".format)
        rows.append(as_row([shown(strategy), listed(own.values(), "{:.1%}".format), each]))
    return rows


def ceilings_table(races: Sequence[Race]) -> list[str]:
    rows = ["| link, machine | strategy | throughput, each repeat | wire, each repeat | CPU |", "|---|---|---|---|---|"]
    for race in races:
        for strategy in race.strategies:
            runs = [run for run in race.runs(strategy) if run["failure"] is None]
            if strategy == "none" or not runs:
                continue
            place = "model on the GPU" if race.record["machine"]["gpu"] else "model on the CPU"
            rows.append(
                f"| {runs[0]['link']}, {place}, {race.record['machine']['cpus']} cores | {shown(strategy)} "
                f"| {listed((run['throughput_share'] for run in runs), '{:.3f}'.format)} "
                f"| {listed((run['wire_utilisation'] for run in runs), '{:.3f}'.format)} "
                f"| {statistics.mean(run['cpu_share'] for run in runs):.0%} |"
            )
    return rows


def blocks() -> dict[str, list[str]]:
    """What stands between `<!-- NAME:begin -->` and `<!-- NAME:end -->`."""
    accuracy = read_races(*TO_ACCURACY)
    lower = read_races(*LOWER_RATES)
    straggler = Race.read("straggler")
    epochs = read_races("epochs", "epochs-ddp")
    gpu = read_races("gpu", "gpu-best", "gpu-best-again", "gpu-parts", "gpu-ddp", "gpu-daso")
    gpu_rate = read_races("gpu-rate", "gpu-rate-4", "gpu-rate-7", "gpu-trail")
    ceilings = read_races("ceilings-100mbit", "ceilings-1gbit", "ceilings-1gbit-gpu", "ceilings-daso")
    found: dict[str, list[str]] = {}
    if accuracy:
        found["race"] = [*to_accuracy_table(accuracy, harder=HARDER), "", captions(accuracy)]
        found["race-short"] = [*to_accuracy_table(accuracy, harder=HARDER, only=has_all_seeds(accuracy))]
    for race in lower:
        found[f"race-{race.name}"] = [*to_accuracy_table([race], harder=HARDER), "", captions([race])]
    if accuracy and lower:
        found["race-targets"] = targets_table([*accuracy, *lower])
    if straggler is not None:
        found["race-straggler"] = [*to_accuracy_table([straggler], harder=HARDER), "", captions([straggler])]
    if epochs:
        found["race-epochs"] = [*epochs_table(epochs), "", captions(epochs)]
    if gpu:
        found["race-gpu"] = [*to_accuracy_table(gpu), "", captions(gpu)]
    if gpu_rate:
        found["race-gpu-rate"] = [*to_accuracy_table(gpu_rate), "", captions(gpu_rate)]
    if ceilings:
        found["race-ceilings"] = [*ceilings_table(ceilings), "", captions(ceilings)]
    return found


def has_all_seeds(races: Sequence[Race]) -> Callable[[str], bool]:
    """Those that were raced with as many seeds as any."""
    seeds = {strategy: len(runs) for strategy, runs in newest_runs(races).items()}
    return lambda strategy: seeds[strategy] == max(seeds.values())


def filled(text: str, found: dict[str, list[str]]) -> str:
    for name, lines in found.items():
        begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        if begin in text:
            before, rest = text.split(begin, 1)
            after = rest.split(end, 1)[1]
            text = "\n".join([before + begin, *lines, end]) + after
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    found = blocks()
    stale = []
    for path in (ROOT / "README.md", ROOT / "docs" / "race.md"):
        text = path.read_text(encoding="utf-8")
        if (new := filled(text, found)) != text:
            stale.append(str(path.relative_to(ROOT)))
            if not arguments.check:
                path.write_text(new, encoding="utf-8")
    if not arguments.check:
        races = read_races(*TO_ACCURACY)
        if races:
            draw(races, PICTURE)
    elif stale:
        sys.exit(f"{', '.join(stale)} differ from benchmarks/results: run python benchmarks/race_table.py")


if __name__ == "__main__":
    main()
