"""calibrate: time kernels on this machine until there are enough of every kind."""

import itertools
import platform as host
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from math import inf
from pathlib import Path
from typing import Any

import torch

from ..errors import BadInput
from .kernel import Kernel
from .profile import Profile
from .timing import Stopwatch

SAVE_EVERY_SECONDS = 10.0

Progress = Callable[[int, int, Kernel], None]  # (measured, wanted, the kernel just measured)


def calibrate(
    kernels: Iterable[Kernel],
    path: Path,
    *,
    device: torch.device | str = "cpu",
    per_kind: int = 200,
    look_at: int = 20_000,
    at_most_seconds: float = inf,
    stopwatch: Stopwatch | None = None,
    progress: Progress | None = None,
) -> Profile:
    """Measure up to `per_kind` kernels of each kind, of the first `look_at` of them, into the profile at `path`.

    Kinds take turns, so that there are some of each when the time is over.

    What the profile has already is not measured again, so an interrupted calibration goes on when it is called again.
    Element-wise kernels are most of any step: without the limit they would take most of the time.
    """
    device = torch.device(device)
    stopwatch = stopwatch or Stopwatch(device=device)
    began = saved = time.monotonic()
    chosen = _in_turns(itertools.islice(kernels, look_at), per_kind)
    profile = profile_at(path, device)
    for number, kernel in enumerate(chosen, 1):
        if time.monotonic() - began > at_most_seconds:
            break
        if kernel not in profile.timings:
            profile.timings[kernel] = stopwatch.time(kernel)
            if time.monotonic() - saved > SAVE_EVERY_SECONDS:
                profile.save(path)
                saved = time.monotonic()
        if progress is not None:
            progress(number, len(chosen), kernel)
    profile.save(path)
    return profile


def _in_turns(kernels: Iterable[Kernel], per_kind: int) -> list[Kernel]:
    by_kind: dict[str, list[Kernel]] = defaultdict(list)
    for kernel in dict.fromkeys(kernels):
        if len(by_kind[kernel.kind]) < per_kind:
            by_kind[kernel.kind].append(kernel)
    turns = itertools.zip_longest(*by_kind.values())
    return [kernel for turn in turns for kernel in turn if kernel is not None]


def profile_at(path: Path, device: torch.device) -> Profile:
    """What is there so far; nothing yet where there is no file."""
    name, setup = device_name(device), setup_of(device)
    if not path.exists():
        return Profile(name, setup)
    profile = Profile.load(path)
    if (profile.device, profile.setup) != (name, setup):
        raise BadInput(
            f"profile {path} was measured on {profile.device} with {profile.setup}, and this is {name} with {setup}: "
            f"choose another file, or delete that one"
        )
    return profile


def device_name(device: torch.device) -> str:
    """What the device calls itself."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    models = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else []
    return models[0].partition(":")[2].strip() if models else host.processor() or host.machine()


def setup_of(device: torch.device) -> dict[str, Any]:
    """The settings of torch that change how long kernels take."""
    setup: dict[str, Any] = {"torch": torch.__version__, "platform": device.type}
    if device.type == "cuda":
        return setup | {
            "matmul_tf32": torch.backends.cuda.matmul.allow_tf32,
            "cudnn_tf32": torch.backends.cudnn.allow_tf32,
            "cudnn_benchmark": torch.backends.cudnn.benchmark,
        }
    return setup | {"threads": torch.get_num_threads()}
