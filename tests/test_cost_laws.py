"""The laws of operators: that they are found, apart where libraries differ, and lead where nothing was measured."""

from dataclasses import replace
from math import log

import numpy as np
import pytest
import torch
from kernels import convolutions_of, drawn_kernels
from torch import nn

from offbeat.cost import Device, Kernel
from offbeat.cost.kernel_model import KernelModel
from offbeat.cost.laws import FEWEST, FLOOR, beyond_roofline, fit_laws, law_names
from offbeat.cost.learn import kernel_seconds, learn_kernels
from offbeat.cost.profile import Timing
from offbeat.cost.roofline import compute_seconds, memory_seconds

DEVICE = Device(
    name="imagined", flops_per_second={torch.float32: 1e11}, bytes_per_second=1e10, launch_seconds=2e-6,
    memory_bytes=1 << 34,
)  # fmt: skip


def convolutions(*, groups: bool = False, stride: int = 1) -> list[Kernel]:
    return [
        kernel
        for width in range(4, 30)
        for kernel in convolutions_of(nn.Conv2d(width, width, 3, stride, groups=width if groups else 1), width)
        if not kernel.part
    ]


def lawful(kernel: Kernel, call: float = 5e-5, compute: float = 3.0, memory: float = 0.5) -> float:
    return call + compute * compute_seconds(kernel, DEVICE) + memory * memory_seconds(kernel, DEVICE)


def test_a_law_is_found_though_some_were_disturbed() -> None:
    kernels = convolutions()
    seconds = np.array([lawful(kernel) for kernel in kernels])
    seconds[::7] *= 1.5
    law = fit_laws(kernels, seconds, DEVICE)[law_names(kernels[0])[0]]
    said = np.array(
        [law[0] + law[1] * compute_seconds(k, DEVICE) + law[2] * memory_seconds(k, DEVICE) for k in kernels]
    )
    true = np.array([lawful(kernel) for kernel in kernels])
    assert np.abs(said / true - 1).max() < 0.02


def test_what_libraries_compute_otherwise_has_a_law_of_its_own() -> None:
    names = [
        {law_names(kernel)[0] for kernel in convolutions(groups=groups, stride=stride)}
        for groups in (False, True)
        for stride in (1, 2)
    ]
    assert [len(each) for each in names] == [1] * 4
    assert len(set.union(*names)) == 4
    double = convolutions_of(nn.Conv2d(8, 8, 3).double(), 8, torch.float64)
    assert not {law_names(kernel)[0] for kernel in double} & set.union(*names)


def test_few_kernels_have_no_law_and_the_roofline_stands_in() -> None:
    few = convolutions()[: FEWEST - 1]
    assert fit_laws(few, np.array([lawful(kernel) for kernel in few]), DEVICE) == {}
    assert not beyond_roofline(few, {}, DEVICE).any()


def test_an_operator_that_was_not_measured_has_the_law_of_its_kind() -> None:
    """It is taken for another of its class: the roofline would say that a small one takes nothing beside the launch."""
    kernels, strided = convolutions(), convolutions(stride=2)
    model = learn_kernels({kernel: Timing(lawful(kernel), 3) for kernel in kernels}, DEVICE, {})
    assert not {law_names(kernel)[0] for kernel in strided} & set(model.laws)
    for kernel, said in zip(strided, kernel_seconds(model, strided, DEVICE), strict=True):
        assert said == pytest.approx(lawful(kernel), rel=0.1)


def test_a_law_that_says_less_than_the_launch_leaves_a_share_of_it() -> None:
    (kernel,) = convolutions()[:1]
    laws = dict.fromkeys(law_names(kernel), (DEVICE.launch_seconds / 2, 0.0, 0.0))
    roof = max(compute_seconds(kernel, DEVICE), memory_seconds(kernel, DEVICE))
    own = roof * np.exp(beyond_roofline([kernel], laws, DEVICE)[0])
    assert own == pytest.approx(FLOOR * DEVICE.launch_seconds / 2)


def test_beyond_the_roofline_is_what_the_law_adds_to_it() -> None:
    kernels = convolutions()
    laws = fit_laws(kernels, np.array([lawful(kernel) for kernel in kernels]), DEVICE)
    for kernel, beyond in zip(kernels, beyond_roofline(kernels, laws, DEVICE), strict=True):
        roof = max(compute_seconds(kernel, DEVICE), memory_seconds(kernel, DEVICE))
        assert beyond == pytest.approx(log((lawful(kernel) - DEVICE.launch_seconds) / roof), abs=0.01)


def test_kernels_smaller_than_any_that_was_measured_follow_the_law() -> None:
    """They take what a call takes; in proportion to their arithmetic it would be a hundredth of that."""
    large = [
        kernel
        for width in range(32, 96)
        for kernel in convolutions_of(nn.Conv2d(width, width, 3), width)
        if not kernel.part
    ]
    model = learn_kernels({kernel: Timing(lawful(kernel), 3) for kernel in large}, DEVICE, {})
    small = convolutions()[:3]
    for kernel, said in zip(small, kernel_seconds(model, small, DEVICE), strict=True):
        assert said == pytest.approx(lawful(kernel), rel=0.1)


def test_a_law_is_of_the_device_that_was_measured_whatever_it_is_used_for() -> None:
    """Twice the arithmetic is half of the roofline, and g says of the old one how far from it a kernel was."""
    drawn = [kernel for kernel in drawn_kernels(8) if compute_seconds(kernel, DEVICE) > 0]
    model = learn_kernels({kernel: Timing(lawful(kernel), 3) for kernel in drawn}, DEVICE, {})
    drawn = [kernel for kernel, g in zip(drawn, model.corrections(drawn), strict=True) if g is not None]
    read = KernelModel.from_dict(model.as_dict(), DEVICE)
    other = replace(model, device=replace(DEVICE, flops_per_second={torch.float32: 2e11}))
    assert model.laws
    assert read.laws == model.laws
    assert np.allclose(read.corrections(drawn), np.array(model.corrections(drawn), dtype=float), atol=0.05)  # type: ignore[arg-type]
    assert not np.allclose(other.corrections(drawn), np.array(model.corrections(drawn), dtype=float))  # type: ignore[arg-type]
