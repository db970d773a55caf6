"""profile_at: what was measured on this machine so far, if it is still the same machine, set up the same way."""

import platform as host
from pathlib import Path
from typing import Any

import torch

from ..errors import BadInput
from .profile import Profile


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
