"""DeviceProfile: all that is known of a device, in one file of JSON: its speeds, and what a calibration learned.

Files of data sheets, labelled roofline, and of calibrations lie in `profiles/`; any other file may be named too.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import torch

from ..errors import BadInput, unknown
from ..report.outputs import replacing
from ..sim.network import Link
from .fit import Fitted
from .host import Host
from .kernel import SHORT
from .kernel_model import KernelModel
from .roofline import Device
from .trace import PLATFORMS, Platform
from .two_level import TwoLevel

VERSION = 7
PROFILES = Path(__file__).parent / "profiles"
Label = Literal["roofline", "calibrated"]
_DTYPES = {short: dtype for dtype, short in SHORT.items()}


@dataclass(frozen=True, kw_only=True)
class DeviceProfile:
    """A device. `band`: how much longer a step really takes than predicted, at least and at most, as factors."""

    device: Device
    platform: Platform
    label: Label
    band: tuple[float, float]  # where nothing was learned
    local: Link  # of each worker to the others of its node
    kernels: KernelModel | None = None
    host: Host | None = None  # what the host does beside the kernels, where that was measured
    all_reduce: Fitted | None = None  # across workers, where that was measured; so are the next two
    hierarchical: TwoLevel | None = None
    swap: Fitted | None = None
    reference_seconds: float | None = None  # of the calibration's references, in the median: how fast the host was
    failed: Mapping[str, str] = field(default_factory=dict)  # what the calibration left out, and why
    setup: Mapping[str, Any] = field(default_factory=dict)  # torch's version and flags when it was measured
    source: str = ""

    def as_dict(self) -> dict[str, Any]:
        device: dict[str, Any] = {each.name: getattr(self.device, each.name) for each in fields(Device)}
        device["flops_per_second"] = {SHORT[dtype]: rate for dtype, rate in self.device.flops_per_second.items()}
        return {
            "version": VERSION,
            "label": self.label,
            "platform": self.platform,
            "device": {name: value for name, value in device.items() if value is not None},
            "band": list(self.band),
            "local": {"bytes_per_second": self.local.bytes_per_second, "seconds": self.local.seconds},
            "source": self.source,
            "reference_seconds": self.reference_seconds,
            "failed": dict(self.failed),
            "setup": dict(self.setup),
            "all_reduce": None if self.all_reduce is None else self.all_reduce.as_dict(),
            "hierarchical": None if self.hierarchical is None else self.hierarchical.as_dict(),
            "swap": None if self.swap is None else self.swap.as_dict(),
            "host": None if self.host is None else self.host.as_dict(),
            "kernels": None if self.kernels is None else self.kernels.as_dict(),
        }

    def save(self, path: Path) -> None:
        try:
            with replacing(path) as temporary:
                temporary.write_text(json.dumps(self.as_dict(), separators=(",", ":"), allow_nan=False) + "\n")
        except OSError as error:
            raise BadInput(f"profile {path} cannot be written ({error.strerror}): name a file of yours") from error

    @classmethod
    def from_dict(cls, read: Mapping[str, Any]) -> "DeviceProfile":
        device = dict(read["device"])
        device["flops_per_second"] = {_DTYPES[short]: rate for short, rate in device["flops_per_second"].items()}
        known = Device(**device)
        low, high = read["band"]
        if read["platform"] not in PLATFORMS or read["label"] not in ("roofline", "calibrated") or not 0 < low <= high:
            raise ValueError("platform, label or band do not fit")
        return cls(
            device=known,
            platform=read["platform"],
            label=read["label"],
            band=(low, high),
            local=Link(**read["local"]),
            kernels=None if read.get("kernels") is None else KernelModel.from_dict(read["kernels"], known),
            host=None if read.get("host") is None else Host.from_dict(read["host"]),
            all_reduce=None if read.get("all_reduce") is None else Fitted.from_dict(read["all_reduce"]),
            hierarchical=None if read.get("hierarchical") is None else TwoLevel.from_dict(read["hierarchical"]),
            swap=None if read.get("swap") is None else Fitted.from_dict(read["swap"]),
            reference_seconds=read.get("reference_seconds"),
            failed=read.get("failed", {}),
            setup=read.get("setup", {}),
            source=read.get("source", ""),
        )

    def differs_from(self, torch_version: str = torch.__version__) -> str:
        """A sentence where the profile was measured with another torch; else nothing."""
        measured = str(self.setup.get("torch", torch_version))
        if measured.partition("+")[0] == torch_version.partition("+")[0]:
            return ""
        return f"{self.device.name} was calibrated with torch {measured}, and this is {torch_version}"


def profile_names() -> list[str]:
    """Those that come with Offbeat."""
    return sorted(path.stem for path in PROFILES.glob("*.json"))


def load_profile(name: str) -> DeviceProfile:
    """One that comes with Offbeat, by name, or any file."""
    shipped = PROFILES / f"{name.lower()}.json"
    path = shipped if shipped.is_file() else Path(name)
    if path is not shipped and not (name.endswith(".json") or "/" in name):
        raise unknown("device", name, [*profile_names(), "path/to/profile.json"])
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
        version = read["version"]
        if version == VERSION:
            return DeviceProfile.from_dict(read)
    except FileNotFoundError:
        raise BadInput(f"there is no profile {path}: write one with offbeat calibrate --out {path}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{path} is no profile of a device ({error}): write one with offbeat calibrate") from error
    raise BadInput(f"profile {path} is of version {version}, not {VERSION}: run offbeat calibrate again")
