"""How good are predictions? Real steps of architectures that no calibration has seen, against what a profile says.

    python benchmarks/cost_accuracy.py --device cpu2 [--bf16] [--rounds 5] [--json FILE] [--out PICTURE]

Every model and batch is visited once in every round, in an order that changes, so that a disturbance of minutes does
not meet one of them alone; on a CPU in new processes, and when it is quiet. What counts is the median of the visits
that were quiet, or of all where none was. A visit makes steps of the calibration's references too, and its times are
given as if they had been as fast as in the calibration (beside a GPU they tell the host's speed); what they are without
that is printed beside. The roofline is that of the same profile, with nothing learned; torch's estimator, which knows
GPUs, is `torch.distributed._tools.RuntimeEstimator`.

Prints a row per model and batch, then mean and worst error; wanted: mean <= 5 %, worst <= 12 %, and of the operations,
weighted by time, <= 12 %, of 32 steps at least. Exits with 1 if they are not met.
"""

import argparse
import math
import random
import statistics
import warnings
from collections import defaultdict
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch
from kept import Start, keep
from matplotlib.figure import Figure

from offbeat.cost.afresh import visits_afresh
from offbeat.cost.calibrate_steps import Visiting, one_by_one
from offbeat.cost.device_profile import DeviceProfile, load_profile
from offbeat.cost.failed import Failed
from offbeat.cost.gpu_step import visit_on_gpu
from offbeat.cost.predict import predict
from offbeat.cost.profile_at import device_name
from offbeat.cost.real_step import RealStep
from offbeat.cost.subject import Subject
from offbeat.cost.visits import Visit
from offbeat.cost.zoo import JUDGED_AT, held_out, references
from offbeat.report.table import human_seconds, percent

FEWEST_STEPS = 8 * 4
TURNS, PATIENCE_SECONDS = 2, 15.0  # of a visit, on a CPU
MOST_MEMORY = 0.9  # of the device's
WANTED_MEAN, WANTED_WORST, WANTED_OPS = 0.05, 0.12, 0.12


@dataclass
class Row:
    model: str
    batch: int
    predicted: float  # seconds
    roofline: float
    torch_estimator: float | None
    visits: list[float]  # seconds, at the reference's usual speed; those that were quiet, if any was
    quiet: int | None  # visits in which neighbours left the CPU alone; None: nobody looked, as beside a GPU
    raw: list[float]  # as the clock said
    op_errors: list[float]  # of each visit: the operations' absolute errors, over the sum of their times

    @property
    def op_error(self) -> float | None:
        return statistics.median(self.op_errors) if self.op_errors else None

    @property
    def measured(self) -> float:
        return statistics.median(self.visits)

    def error_of(self, said: float) -> float:
        return said / self.measured - 1

    @property
    def error(self) -> float:
        return self.error_of(self.predicted)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", required=True, help="a profile")
    parser.add_argument("--bf16", action="store_true", help="under autocast")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--patience", type=float, default=PATIENCE_SECONDS, help="seconds that a visit waits until a CPU is quiet"
    )
    parser.add_argument("--json", type=Path, help="keep the steps, with machine, versions and verdict, here")
    parser.add_argument("--out", type=Path, help="for a picture")
    given = parser.parse_args()
    start, profile = Start(), load_profile(given.device)
    rows = measure(profile, torch.bfloat16 if given.bf16 else None, given.rounds, given.patience)
    for row in rows:
        spread = (max(row.visits) - min(row.visits)) / row.measured / 2
        quiet = "" if row.quiet is None else f", {row.quiet} quiet"
        estimator = "-" if row.torch_estimator is None else f"{100 * row.error_of(row.torch_estimator):+.0f} %"
        print(
            f"{row.model:>10} batch {row.batch:>3}: predicted {human_seconds(row.predicted):>9}, measured "
            f"{human_seconds(row.measured):>9} ±{100 * spread:.0f} % in {len(row.visits)} visits{quiet}: "
            f"{100 * row.error:+6.1f} %   roofline "
            f"{100 * row.error_of(row.roofline):+5.0f} %   torch's estimator {estimator}"
        )
    said = summary(rows)
    precision = "bf16" if given.bf16 else "fp32"
    print(f"{profile.device.name}, {profile.label}, {precision}: {words(said, rows)}")
    if given.out is not None:
        draw(given.out, rows, f"{profile.device.name}: mean error {percent(said['mean'], 1)}")
    wanted = {"mean": WANTED_MEAN, "worst": WANTED_WORST, "ops": WANTED_OPS}
    held = len(rows) >= FEWEST_STEPS and all(
        (math.inf if (share := said[name]) is None else share) <= most for name, most in wanted.items()
    )
    if given.json is not None:
        keep(
            given.json, start=start, held=held, runs=[asdict(row) for row in rows], device=profile.device.name,
            precision=precision, setup=dict(profile.setup), **said,
        )  # fmt: skip
    raise SystemExit(0 if held else 1)


def measure(profile: DeviceProfile, autocast: torch.dtype | None, rounds: int, patience: float) -> list[Row]:
    device = torch.device("cuda" if profile.platform == "cuda" else "cpu")
    threads = profile.setup.get("threads", torch.get_num_threads())
    if device_name(device) != profile.device.name or threads != torch.get_num_threads():
        raise SystemExit(f"the profile is of {profile.device.name}, threads {threads}, and this is not")
    bare = replace(profile, kernels=None, host=None)
    cases: dict[tuple[str, int], tuple[Subject, Row]] = {}
    for subject in held_out(profile.platform, autocast):
        for batch in JUDGED_AT[profile.platform]:
            if subject.at(batch).memory.peak > MOST_MEMORY * profile.device.memory_bytes:
                print(f"{subject.name} at batch {batch} is left out: it does not fit into the device's memory")
                continue
            row = Row(
                subject.name, batch, predict(subject.at(batch), profile).time.seconds,
                predict(subject.at(batch), bare).time.seconds, by_torch(subject, batch), [], None, [], [],
            )  # fmt: skip
            cases[subject.name, batch] = subject, row
    order = list(cases)
    if device.type == "cuda":
        visiting: Visiting = one_by_one(visit_on_gpu, references(), device)
    else:
        visiting = partial(visits_afresh, references=references(), turns=TURNS, patience_seconds=patience)
    orders = [random.Random(number).sample(order, len(order)) for number in range(rounds)]
    found: dict[tuple[str, int], list[Visit]] = defaultdict(list)
    for (subject, batch), visit in visiting(((cases[key][0], key[1]) for each in orders for key in each), math.inf):
        if isinstance(visit, Failed):
            raise SystemExit(f"{subject.name} at batch {batch} cannot be measured: {visit.why}")
        found[subject.name, batch].append(visit)
    for key, (subject, row) in cases.items():
        quiet = [visit for visit in found[key] if visit.quiet]
        row.quiet = None if all(visit.quiet is None for visit in found[key]) else len(quiet)
        for visit in quiet or found[key]:
            usual = visit.at_speed_of(profile.reference_seconds or visit.reference_seconds)
            row.raw.append(visit.seconds)
            row.visits.append(usual.seconds)
            row.op_errors.append(op_error(subject, row.batch, profile, usual.ops))
    return [row for _subject, row in cases.values()]


def op_error(subject: Subject, batch: int, profile: DeviceProfile, measured: tuple[float, ...]) -> float:
    said = [op.seconds for op in predict(subject.at(batch), profile).ops]
    wrong = sum(abs(p - m) for p, m in zip(said, measured, strict=True))
    return wrong / sum(measured)


def by_torch(subject: Subject, batch: int) -> float | None:
    """torch's own estimate, where it can make one: it asks CUDA for the speeds of a GPU."""
    if subject.platform != "cuda":
        return None
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.runtime_estimator import RuntimeEstimator

    try:
        with warnings.catch_warnings(), FakeTensorMode():
            warnings.simplefilter("ignore")
            step = RealStep(subject, batch, torch.device("cuda"))
            step()
            estimator = RuntimeEstimator()
            with estimator(estimate_mode_type="operator-level-cost-model"):
                step()
    except Exception as error:  # whatever it does not know
        print(f"torch's estimator fails for {subject.name}: {repr(error)[:200]}")
        return None
    return 1e-3 * float(estimator.total_runtime)


def summary(rows: list[Row]) -> dict[str, float | None]:
    errors = [abs(row.error) for row in rows]
    ops = [(row.op_error, row.measured) for row in rows if row.op_error is not None]
    raw = [abs(row.predicted / statistics.median(row.raw) - 1) for row in rows]
    again = [abs(each / row.measured - 1) for row in rows for each in row.visits]
    return {
        "mean": statistics.mean(errors),
        "worst": max(errors),
        "ops": sum(error * seconds for error, seconds in ops) / sum(s for _, s in ops) if ops else None,
        "mean_raw": statistics.mean(raw),
        "worst_raw": max(raw),
        "roofline_mean": statistics.mean(abs(row.error_of(row.roofline)) for row in rows),
        "one_visit_from_the_median": statistics.mean(again),
    }


def words(said: dict[str, float | None], rows: list[Row]) -> str:
    unquiet = sum(row.quiet == 0 for row in rows)
    of_quiet = "" if all(row.quiet is None for row in rows) else f"; of {unquiet} steps none was quiet"
    share = {name: "-" if value is None else percent(value, 1) for name, value in said.items()}
    return (
        f"mean error {share['mean']}, worst {share['worst']} of {len(rows)} steps; of operations {share['ops']}; as "
        f"the clock said {share['mean_raw']}, {share['worst_raw']}; roofline {share['roofline_mean']}; one visit is "
        f"off the median of its step by {share['one_visit_from_the_median']}{of_quiet}"
    )


def draw(path: Path, rows: list[Row], title: str) -> None:
    """Predicted against measured, a colour per model."""
    figure = Figure(figsize=(6.5, 6), layout="constrained")
    axes = figure.add_subplot()
    for name in dict.fromkeys(row.model for row in rows):
        own = [row for row in rows if row.model == name]
        axes.plot([1e3 * row.measured for row in own], [1e3 * row.predicted for row in own], "o", label=name)
    ends = [1e3 * min(row.measured for row in rows), 1e3 * max(row.measured for row in rows)]
    axes.plot(ends, ends, color="#66737f", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="measured, ms", ylabel="predicted, ms", title=title)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
