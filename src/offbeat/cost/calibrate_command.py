"""What `offbeat calibrate` does with its flags: measure, learn, and write the profile."""

import itertools
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from ..errors import BadInput, unknown
from ..report.table import counted, percent
from ..sim.network import Link
from .calibrate import calibrate as measure
from .calibrate import device_name, setup_of
from .device_profile import PROFILES, DeviceProfile
from .fit import Fitted, fit
from .kernel import SHORT, Kernel
from .layers import random_kernels
from .learn import FEWEST, Judged, learn_kernels, measured_device
from .measured_collectives import SIZES, measured_all_reduces, time_all_reduces
from .measured_step import host_seconds, measured_step
from .predict import predict
from .step_fit import fit_steps
from .subject import Subject
from .timing import Stopwatch
from .trace import PLATFORMS, Platform
from .zoo import held_out, kernels_of, learned_from

MOST_MINUTES = 10.0
HELD_OUT_SHARE, ZOO_SHARE, LEARN_SECONDS, STEPS_SECONDS = (
    0.2,
    0.3,
    45.0,
    60.0,
)  # of the time; what is left is for random layers
BATCHES = {"cpu": (4, 32), "cuda": (32, 256)}
MOST_ELEMENTS = {"cpu": 1 << 22, "cuda": 1 << 26}
LOOK_AT = 5000  # random kernels, of which `per_kind` of each kind are measured
LOCAL = {"cpu": Link(bytes_per_second=5e9, seconds=2e-5), "cuda": Link(bytes_per_second=32e9, seconds=5e-6)}
BAND_OF_THE_REST = (0.5, 2.0)  # classes that were not measured

Step = Callable[[str, int, int], None]  # what is done now, how much of it, of how much


def calibrate(
    *,
    device: str | None,
    name: str | None,
    out: Path | None,
    minutes: float,
    workers: int | None,
    bf16: bool,
    per_kind: int,
    seed: int,
    quiet: bool,
    under_launcher: bool = False,
) -> None:
    platform = _platform(device)
    if not 0 < minutes <= MOST_MINUTES:
        raise BadInput(f"--minutes {minutes} does not fit: it must be above 0 and at most {MOST_MINUTES:g}")
    if per_kind < 1:
        raise BadInput(f"--per-kind {per_kind} does not fit: it must be at least 1")
    chosen = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if platform == "cuda" else torch.device("cpu")
    path = out or PROFILES / f"{name or slug(chosen)}.json"
    if not os.access(path.parent, os.W_OK):
        raise BadInput(f"profile {path} cannot be written there: name a file of yours with --out")
    with _progress(quiet) as step:
        fitted, rank = None, 0
        if under_launcher:
            fitted, rank = _with_launcher(chosen)
        elif workers is not None:
            points = measured_all_reduces(workers, chosen, progress=lambda n, all_: step("all-reduces", n, all_))
            fitted = fit(points)
        if rank == 0:
            profile = learned_profile(
                platform,
                chosen,
                path,
                minutes=minutes,
                bf16=bf16,
                per_kind=per_kind,
                seed=seed,
                fitted=fitted,
                step=step,
            )
            profile.save(path)
            if not quiet:
                _say(profile, path)


def learned_profile(
    platform: Platform,
    device: torch.device,
    path: Path,
    *,
    minutes: float,
    bf16: bool,
    per_kind: int,
    seed: int,
    fitted: Fitted | None,
    step: Step,
    look_at: int = LOOK_AT,
    batches: tuple[int, ...] | None = None,
    stopwatch: Stopwatch | None = None,
) -> DeviceProfile:
    """Measured kernels are kept beside the profile, so that an interrupted calibration goes on when called again."""
    end = time.monotonic() + 60 * minutes - min(LEARN_SECONDS + 2 * STEPS_SECONDS, 30 * minutes)
    stopwatch = stopwatch or Stopwatch(device=device, calls=9, at_most_seconds=0.4)
    kept, batches = kernels_file(path), batches or BATCHES[platform]
    autocast = torch.bfloat16 if bf16 else None
    judged_by = {
        f"{each.name}, batch {batch}": each.at(batch) for each in held_out(platform, autocast) for batch in batches
    }
    dispatch = host_seconds(itertools.islice(learned_from(platform), 2, 3), device) if platform == "cuda" else 0.0

    def some(what: str, kernels: Iterator[Kernel], share: float, most: int) -> None:
        left = end - time.monotonic()
        measure(
            kernels, kept, device=device, per_kind=most, look_at=look_at, at_most_seconds=max(0.0, left * share),
            stopwatch=stopwatch, progress=lambda done, all_, _kernel: step(what, done, all_),
        )  # fmt: skip

    some(
        "held-out models",
        (op.kernel for each in judged_by.values() for op in each.ops if op.nbytes),
        HELD_OUT_SHARE,
        10**6,
    )
    some("the zoo", kernels_of(learned_from(platform, autocast), batches), ZOO_SHARE, per_kind)
    drawn = random_kernels(seed=seed, most=MOST_ELEMENTS[platform], platform=platform, autocast=autocast)
    some("random layers", drawn, 1.0, per_kind)
    timings = measure((), kept, device=device).timings
    if len(timings) < FEWEST:
        raise BadInput(f"--minutes {minutes:g} was time for {len(timings)} kernels: give more")
    step("learning", 0, 1)
    known = measured_device(device_name(device), timings, memory_bytes=memory_of(device), dispatch_seconds=dispatch)
    kernels = learn_kernels(timings, known, judged_by, seed=seed)
    seconds = min(STEPS_SECONDS, 8 * minutes)
    if platform == "cpu":
        real = real_steps(learned_from(platform, autocast), device, batches, at_most_seconds=seconds, step=step)
        fitted_steps = fit_steps([(subject.at(batch), taken) for subject, batch, taken in real], known, kernels)
        known = replace(known, dispatch_seconds=fitted_steps.host_seconds)
        kernels = replace(kernels, scales=fitted_steps.scales)
    profile = DeviceProfile(
        device=known,
        platform=platform,
        label="calibrated",
        band=BAND_OF_THE_REST,
        local=LOCAL[platform],
        kernels=kernels,
        all_reduce=fitted,
        setup={**setup_of(device), "autocast": "bf16" if bf16 else None, "seed": seed},
        source=f"offbeat calibrate: {len(timings)} kernels",
    )
    real = real_steps(held_out(platform, autocast), device, batches, at_most_seconds=seconds, step=step)
    return judged_by_steps(profile, real)


def real_steps(
    subjects: Iterator[Subject], device: torch.device, batches: tuple[int, ...], *, at_most_seconds: float, step: Step
) -> list[tuple[Subject, int, float]]:
    """Real steps of models, as many as there is time for, and what each took."""
    wanted = [(subject, batch) for subject in subjects for batch in batches]
    found, end = list[tuple[Subject, int, float]](), time.monotonic() + at_most_seconds
    for number, (subject, batch) in enumerate(wanted, 1):
        if len(found) < 2 or time.monotonic() < end:
            found.append(
                (subject, batch, measured_step(subject, batch, device, at_most_seconds=at_most_seconds / len(wanted)))
            )
            step("real steps", number, len(wanted))
    return found


def judged_by_steps(profile: DeviceProfile, steps: Sequence[tuple[Subject, int, float]]) -> DeviceProfile:
    """With the errors of real steps of held-out models."""
    assert profile.kernels is not None
    errors = {
        f"{subject.name}, batch {batch}": predict(subject.at(batch), profile).time.seconds / seconds - 1
        for subject, batch, seconds in steps
    }
    judged = Judged(errors, {}).as_dict()
    return replace(profile, kernels=replace(profile.kernels, held_out={**profile.kernels.held_out, "steps": judged}))


def kernels_file(path: Path) -> Path:
    """Where the measured kernels are kept."""
    return path.with_name(f"{path.stem}.kernels.part")


def slug(device: torch.device) -> str:
    """The device's name, as that of a file: `amd-epyc-2-threads`."""
    name = device_name(device) + ("" if device.type == "cuda" else f" {torch.get_num_threads()} threads")
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def memory_of(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _platform(device: str | None) -> Platform:
    if device is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    for platform in PLATFORMS:
        if device == platform:
            if platform == "cuda" and not torch.cuda.is_available():
                raise BadInput("--device cuda: torch sees no GPU here: calibrate on the machine that has it")
            return platform
    raise unknown("device to calibrate", device, PLATFORMS)


def _with_launcher(device: torch.device) -> tuple[Fitted | None, int]:
    """Under torchrun the ranks are those of the launcher; only the first goes on to the kernels."""
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        points = time_all_reduces(SIZES, device) if dist.get_world_size() > 1 else []
        return (fit(points) if points else None), dist.get_rank()
    finally:
        dist.destroy_process_group()


@contextmanager
def _progress(quiet: bool) -> Iterator[Step]:
    """A bar on a terminal; else a line for each thing that is begun."""
    if quiet or not sys.stderr.isatty():
        begun: set[str] = set()

        def say(what: str, _done: int, wanted: int) -> None:
            if what not in begun and not quiet:
                begun.add(what)
                print(f"calibrating: {what}, {wanted}", file=sys.stderr, flush=True)

        yield say
        return
    columns = TextColumn("{task.description:<16}"), BarColumn(), TextColumn("{task.completed}/{task.total}")
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True, emoji=False)) as bar:
        tasks: dict[str, int] = {}

        def show(what: str, done: int, wanted: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=wanted)
            bar.update(tasks[what], completed=done, total=wanted)  # type: ignore[arg-type]

        yield show


def _say(profile: DeviceProfile, path: Path) -> None:
    assert profile.kernels is not None
    learned, device = profile.kernels.held_out, profile.device
    rates = ", ".join(f"{SHORT[dtype]} {rate / 1e9:,.4g}" for dtype, rate in device.flops_per_second.items())
    launch, host = (f"{1e6 * seconds:.3g} us" for seconds in (device.launch_seconds, device.dispatch_seconds))
    moves = f"{device.bytes_per_second / 1e9:,.4g} GB/s"
    print(f"{device.name}: {rates} GFLOP/s, {moves}, {launch} a launch, {host} of the host")
    for way in ("roofline", "mlp", "trees", "steps"):
        mark = {learned["kept"]: ", kept", "steps": ", real ones"}.get(way, "")
        mean, worst = (percent(learned[way][name], 1) for name in ("mean", "worst"))
        steps = counted(len(learned[way]["models"]), "held-out step")
        print(f"  {way}: {mean} mean, {worst} worst error of {steps}{mark}")
    if profile.all_reduce is not None:
        fitted = profile.all_reduce
        pieces = counted(len(fitted.pieces), "piece")
        print(f"  all-reduce: {fitted.algorithm} in {pieces}, {percent(fitted.error, 1)} mean error")
    print(f"in {path}; plan with --device {path.stem if path.parent == PROFILES else path}")
