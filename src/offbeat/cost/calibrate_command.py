"""What `offbeat calibrate` does with its flags: measure, learn, and write the profile."""

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from ..errors import BadInput, unknown
from ..gather import gather_json
from ..layout import Layout
from ..report.table import counted, percent
from .device_profile import PROFILES, DeviceProfile, load_profile
from .failed import failures_sentence
from .fit import Fitted
from .kernel import SHORT
from .learn import BOTH, WAYS
from .learned_profile import Calibration, Step, kernels_file, learned_profile
from .measured_collectives import PATIENCE, Collectives, collectives_of_launcher, measured_collectives
from .profile_at import device_name, setup_of
from .timed_collectives import host_name
from .trace import PLATFORMS, Platform

MOST_MINUTES = 10.0
MUCH = 0.2  # as the mean error of real steps


def calibrate(
    *,
    device: str | None,
    name: str | None,
    out: Path | None,
    minutes: float,
    workers: int | None,
    bf16: bool | None,
    seed: int,
    quiet: bool,
    under_launcher: bool = False,
) -> None:
    platform = _platform(device)
    if not 0 < minutes <= MOST_MINUTES:
        raise BadInput(f"--minutes {minutes} does not fit: it must be above 0 and at most {MOST_MINUTES:g}")
    chosen = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if platform == "cuda" else torch.device("cpu")
    path = out or PROFILES / f"{name or slug(chosen)}.json"
    if not os.access(path.parent, os.W_OK):
        raise BadInput(f"profile {path} cannot be written there: name a file of yours with --out")
    _spare_others(path, chosen)
    with _progress(quiet) as step:
        found, rank = Collectives(), 0
        if under_launcher:
            found, rank = _with_launcher(chosen)
        elif workers is not None:
            found = measured_collectives(workers, chosen, progress=step)
        if rank == 0:
            how = Calibration(
                platform=platform,
                device=chosen,
                path=path,
                minutes=minutes,
                bf16=platform == "cuda" if bf16 is None else bf16,
                seed=seed,
            )
            profile = learned_profile(how, found, step)
            profile.save(path)
            kernels_file(path).unlink(missing_ok=True)  # the next calibration begins anew
            if not quiet:
                _say(profile, path)


def _spare_others(path: Path, device: torch.device) -> None:
    """A profile may take the place of one of the same device, not of another's, such as a data sheet."""
    if not path.exists():
        return
    own = was = _with_threads(device_name(device), setup_of(device))
    with suppress(BadInput):  # it is none, or of another version
        profile = load_profile(str(path.resolve()))
        was = _with_threads(profile.device.name, profile.setup)
    if was != own:
        raise BadInput(f"{path.name} is the profile of {was}, and this is {own}: choose another --name, or --out")


def _with_threads(name: str, setup: Mapping[str, Any]) -> str:
    return f"{name}, {counted(setup['threads'], 'thread')}" if "threads" in setup else name


def slug(device: torch.device) -> str:
    """The device's name, as that of a file: `amd-epyc-2-threads`."""
    name = device_name(device) + ("" if device.type == "cuda" else f" {torch.get_num_threads()} threads")
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _platform(device: str | None) -> Platform:
    if device is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    for platform in PLATFORMS:
        if device == platform:
            if platform == "cuda" and not torch.cuda.is_available():
                raise BadInput("--device cuda: torch sees no GPU here: calibrate on the machine that has it")
            return platform
    raise unknown("device to calibrate", device, PLATFORMS)


def _with_launcher(device: torch.device) -> tuple[Collectives, int]:
    """Under torchrun the ranks are those of the launcher; only the first goes on to the kernels."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)
    try:
        if dist.get_world_size() == 1:
            return Collectives(), 0
        hosts = [place["host"] for place in gather_json({"host": host_name()}, dist.new_group(backend="gloo"))]
        return collectives_of_launcher(Layout.of_hosts(hosts), device), dist.get_rank()
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
                count = f", {wanted}" if wanted else ""
                print(f"calibrating: {what}{count}", file=sys.stderr, flush=True)

        yield say
        return
    columns = TextColumn("{task.description:<16}"), BarColumn(), TextColumn("{task.completed}{task.fields[of]}")
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True, emoji=False)) as bar:
        tasks: dict[str, int] = {}

        def show(what: str, done: int, wanted: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=wanted or None, of="")
            of = f"/{wanted}" if wanted else ""  # without an end the bar only moves
            bar.update(tasks[what], completed=done, of=of)  # type: ignore[arg-type]

        yield show


def _say(profile: DeviceProfile, path: Path) -> None:
    assert profile.kernels is not None
    learned, device = profile.kernels.held_out, profile.device
    rates = ", ".join(f"{SHORT[dtype]} {rate / 1e9:,.4g}" for dtype, rate in device.flops_per_second.items())
    moves, launch = f"{device.bytes_per_second / 1e9:,.4g} GB/s", f"{1e6 * device.launch_seconds:.3g} us"
    host = f", {1e6 * device.dispatch_seconds:.3g} us of the host" if device.dispatch_seconds else ""
    print(f"{device.name}: {rates} GFLOP/s, {moves}, {launch} a launch{host}")
    for way in ("roofline", *WAYS, BOTH, "steps"):
        mark = {learned["kept"]: ", kept", "steps": ", real ones"}.get(way, "")
        mean, worst = (percent(learned[way][name], 1) for name in ("mean", "worst"))
        steps = counted(len(learned[way]["models"]), "held-out step")
        print(f"  {way}: {mean} mean, {worst} worst error of {steps}{mark}")
    if learned["steps"]["mean"] > MUCH:
        print("  that is much: calibrate again when nothing else runs here, or with more --minutes")
    if learned["left_out"]:
        print(f"  left out, as they issue other operations than their trace: {'; '.join(learned['left_out'])}")
    if profile.failed:
        print(f"  {failures_sentence(profile.failed)}; estimated by roofline or formula where nothing else says it")
    for what, fitted in (("all-reduce", profile.all_reduce), ("swap", profile.swap)):
        if fitted is not None:
            how = "" if what == fitted.algorithm else f"{fitted.algorithm} "
            print(f"  {what}: {how}in {_pieces(fitted)}, {percent(fitted.error, 1)} mean error")
    if profile.hierarchical is not None:
        inside, between = profile.hierarchical.inside, profile.hierarchical.between
        print(
            f"  hierarchical all-reduce: rings in {_pieces(inside)} inside nodes and {_pieces(between)} between them, "
            f"{percent(profile.hierarchical.error, 1)} mean error of both together"
        )
    print(f"in {path}; plan with --device {path.stem if path.parent == PROFILES else path}")


def _pieces(fitted: Fitted) -> str:
    return counted(len(fitted.pieces), "piece")
