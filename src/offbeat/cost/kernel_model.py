"""KernelModel: what a calibration learned of a device: the laws of its operators, and how far kernels are from them."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import residual
from .features import NAMES, classes_of, operator_of, table
from .kernel import Kernel
from .laws import Law, beyond_roofline
from .residual import Residual
from .roofline import Device

LEAST_ERROR, SHORTEST = 0.03, 1e-3  # nobody measures better than that, or predicts a shorter share of a step


@dataclass(frozen=True)
class ClassModel:
    """Of one class of kernels."""

    operators: tuple[str, ...]
    lowest: np.ndarray  # of each feature, where it was measured:
    highest: np.ndarray  # what lies outside is taken as far as this, and the law does the rest
    residual: Residual
    error: float  # mean absolute log error of kernels that it did not learn from, weighted by time
    measured: int  # kernels

    def beyond_laws(self, kernels: Sequence[Kernel], features: Sequence[str]) -> np.ndarray:
        return self.residual(np.clip(table(kernels, self.operators, features), self.lowest, self.highest))

    def as_dict(self) -> dict[str, Any]:
        return {
            "operators": list(self.operators),
            "lowest": self.lowest.tolist(),
            "highest": self.highest.tolist(),
            "residual": self.residual.as_dict(),
            "error": self.error,
            "measured": self.measured,
        }


@dataclass(frozen=True)
class KernelModel:
    classes: Mapping[str, ClassModel]
    held_out: Mapping[str, Any]  # how well it does on models that it did not learn from
    laws: Mapping[str, Law] = field(default_factory=dict)  # by name; where there is none, the roofline is the law
    features: tuple[str, ...] = NAMES  # that it was learned from; an earlier profile knows fewer
    device: Device | None = None  # whose kernels were measured: a roofline of others is not what they were beyond

    def corrections(self, kernels: Sequence[Kernel]) -> list[float | None]:
        """g of each kernel; None where its class was not measured."""
        found: list[float | None] = [None] * len(kernels)
        places: dict[str, list[int]] = defaultdict(list)
        for place, kernel in enumerate(kernels):
            if (name := self._class_of(kernel)) is not None:
                places[name].append(place)
        for name, own in places.items():
            some = [kernels[place] for place in own]
            g = self.classes[name].beyond_laws(some, self.features)
            if self.device is not None:
                g = g + beyond_roofline(some, self.laws, self.device)
            for place, each in zip(own, g, strict=True):
                found[place] = float(each)
        return found

    def _class_of(self, kernel: Kernel) -> str | None:
        """The first that was measured."""
        return next((name for name in classes_of(kernel) if name in self.classes), None)

    def has_measured(self, kernel: Kernel) -> bool:
        """Whether its operator was among those of its class; else it is taken for one of them."""
        name = self._class_of(kernel)
        return name is not None and operator_of(kernel) in self.classes[name].operators

    @property
    def band(self) -> tuple[float, float]:
        """Factors around a prediction, as of the steps that it was judged on: from the one that was predicted too long
        by most to the one that was predicted too short by most."""
        judged = self.held_out.get("steps") or self.held_out[self.held_out["kept"]]
        real = [1 / max(1 + error, SHORTEST) for error in judged["models"].values()]
        return min([1 / (1 + LEAST_ERROR), *real]), max([1 + LEAST_ERROR, *real])

    def as_dict(self) -> dict[str, Any]:
        classes = {kind: each.as_dict() for kind, each in self.classes.items()}
        laws = {name: list(law) for name, law in self.laws.items()}
        return {"features": list(self.features), "laws": laws, "classes": classes, "held_out": dict(self.held_out)}

    @classmethod
    def from_dict(cls, read: Mapping[str, Any], device: Device) -> "KernelModel":
        """What was learned of this device."""
        if not set(read["features"]) <= set(NAMES):
            raise ValueError("its features are those of another version")
        classes = {
            kind: ClassModel(
                tuple(each["operators"]),
                np.array(each["lowest"]),
                np.array(each["highest"]),
                residual.from_dict(each["residual"]),
                each["error"],
                each["measured"],
            )
            for kind, each in read["classes"].items()
        }
        laws = {name: (launch, compute, memory) for name, (launch, compute, memory) in read.get("laws", {}).items()}
        model = cls(classes, read["held_out"], laws, tuple(read["features"]), device)
        _ = model.band  # there is something that it was judged by
        return model
