"""Roofline: which bound holds, at what rate, and what is refused."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from offbeat.cost import Device, Kernel, Spec, op_seconds
from offbeat.cost.kernel import Ref
from offbeat.cost.roofline import memory_bound
from offbeat.errors import BadInput

GPU = Device(
    name="a GPU",
    flops_per_second={torch.float32: 50e12, torch.bfloat16: 800e12},
    vector_flops_per_second=40e12,
    bytes_per_second=4e12,
    launch_seconds=3e-6,
    memory_bytes=80 << 30,
)


def product(n: int, dtype: torch.dtype = torch.float32) -> Kernel:
    """[n, n] x [n, n]: 2 n^3 FLOPs, 3 n^2 numbers."""
    square = Spec((n, n), dtype)
    arguments = (("self", Ref(0)), ("mat2", Ref(1)))
    return Kernel("aten::mm.default", "matmul", (square, square), (square,), arguments=arguments)


def addition(n: int) -> Kernel:
    numbers = Spec((n,), torch.bfloat16)
    arguments = (("self", Ref(0)), ("other", Ref(1)))
    return Kernel("aten::add.Tensor", "elementwise", (numbers, numbers), (numbers,), arguments=arguments)


def test_large_products_are_bound_by_arithmetic_small_ones_by_memory_tiny_ones_by_the_launch() -> None:
    assert op_seconds(product(8192), GPU) == pytest.approx(3e-6 + 2 * 8192**3 / 50e12)
    assert op_seconds(product(16), GPU) == pytest.approx(3e-6 + 3 * 16**2 * 4 / 4e12)
    assert op_seconds(product(1), GPU) == pytest.approx(3e-6, rel=1e-3)
    assert [memory_bound(product(n), GPU) for n in (16, 8192)] == [True, False]


def test_the_ridge_is_where_both_bounds_meet() -> None:
    ridge = 50e12 / 4e12  # FLOPs per byte: n / 6 in float32
    n = round(6 * ridge)
    assert memory_bound(product(n - 1), GPU)
    assert not memory_bound(product(n + 1), GPU)


def test_types_have_their_rates() -> None:
    no_launch = replace(GPU, launch_seconds=0.0)
    in_float, in_bfloat = (op_seconds(product(8192, dtype), no_launch) for dtype in (torch.float32, torch.bfloat16))
    assert in_float / in_bfloat == pytest.approx(800 / 50)
    assert op_seconds(product(8192, torch.float64), no_launch) == in_float  # not measured: as float32


def test_vectors_do_not_run_at_the_rate_of_matrices() -> None:
    starved = replace(GPU, launch_seconds=0.0, bytes_per_second=1e30)
    assert op_seconds(addition(1 << 20), starved) == pytest.approx((1 << 20) / 40e12)
    assert op_seconds(addition(1 << 20), replace(GPU, launch_seconds=0.0)) == pytest.approx(3 * 2 * (1 << 20) / 4e12)


def test_efficiencies_scale_their_bound_alone() -> None:
    slow = replace(GPU, launch_seconds=0.0, compute_efficiency=0.5, memory_efficiency=0.25)
    fast = replace(GPU, launch_seconds=0.0)
    assert op_seconds(product(8192), slow) == pytest.approx(2 * op_seconds(product(8192), fast))
    assert op_seconds(addition(1 << 20), slow) == pytest.approx(4 * op_seconds(addition(1 << 20), fast))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"flops_per_second": {torch.bfloat16: 1e12}}, "no FLOP/s for float32"),
        ({"flops_per_second": {torch.float32: 0.0}}, "FLOP/s in torch.float32 of device a GPU cannot be 0.0"),
        ({"bytes_per_second": float("inf")}, "bytes/s of device a GPU cannot be inf: give a number above 0"),
        ({"vector_flops_per_second": -1.0}, "FLOP/s of vectors"),
        ({"memory_bytes": 0}, "bytes of memory of device a GPU cannot be 0"),
        ({"launch_seconds": -1e-6}, "launch seconds of device a GPU cannot be -1e-06: give 0 or more"),
        ({"compute_efficiency": 1.5}, r"an efficiency of device a GPU cannot be 1.5: give a share in \(0, 1\]"),
    ],
)
def test_impossible_devices_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        replace(GPU, **changes)
