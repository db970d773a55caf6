"""Features: that they say what they are meant to say of a kernel, and which kernels are learned together."""

import math
from functools import partial

import pytest
import torch
from kernels import convolutions_of, drawn_kernels
from torch import nn
from torch.optim import SGD

from offbeat.cost import Kernel, trace
from offbeat.cost.features import LARGEST_BULK, NAMES, class_of, classes_of, features, table
from offbeat.train.models import GPT

BULK = NAMES.index("bulk")


def test_features_have_their_places() -> None:
    for kernel in drawn_kernels(12, seed=1):
        assert len(features(kernel)) == len(NAMES)
        assert all(map(math.isfinite, features(kernel)))


def test_features_know_the_sizes_of_matrices_and_filters() -> None:
    step = trace(
        lambda: nn.Sequential(nn.Conv2d(6, 12, 3, stride=2, groups=3), nn.Flatten(), nn.Linear(12 * 49, 5)),
        torch.zeros(2, 6, 15, 15), None, loss=lambda out, _: out.mean(), optimizer=partial(SGD, lr=0.1),
    )  # fmt: skip

    def dims(kernel: Kernel, count: int) -> list[int]:
        found = features(kernel)[NAMES.index("dim0") : NAMES.index("even0")]
        assert not any(found[count:])
        return [round(math.exp(value)) - 1 for value in found[:count]]

    convolution = next(op.kernel for op in step.ops if op.kind == "convolution")
    assert dims(convolution, 8)[:6] == [2, 6, 12, 49, 9, 3]  # batch, channels in and out, pixels, filter, groups
    assert dims(convolution, 8)[7] == 4  # strides
    product = next(op.kernel for op in step.ops if op.kind == "matmul")
    assert dims(product, 6)[:4] == [2, 5, 12 * 49, 1]
    assert features(product)[NAMES.index("dim4") : NAMES.index("dim6")] == [0.0, 1.0]  # the weight is strided
    assert features(product)[NAMES.index("even0") : BULK] == [2.0, 0.0, 1.0, 0.0, 2 / 128, 5 / 128, 588 / 608]
    assert features(convolution)[NAMES.index("even0") : BULK] == [1.0, 2.0, 0.0, 0.0, 12 / 128, 6 / 128, 49 / 128]
    assert features(convolution)[BULK] == features(product)[BULK] == product.bulk / LARGEST_BULK > 0  # of one step


def test_features_know_the_channels_and_places_of_norms_and_sums() -> None:
    def found(model: nn.Module, kind: str) -> list[float]:
        inputs = torch.zeros(3, 8, 5, 4)
        step = trace(lambda: model, inputs, None, loss=lambda out, _: out.sum(), optimizer=partial(SGD, lr=0.1))
        return features(next(op.kernel for op in step.ops if op.kind == kind))

    first, even = NAMES.index("dim0"), NAMES.index("even0")

    def sizes(own: list[float], count: int) -> list[int]:
        return [round(math.exp(value)) - 1 for value in own[first : first + count]]

    own = found(nn.BatchNorm2d(8), "batch_norm")
    # Samples, channels, places; the numbers of a channel; rows, and how long they are.
    assert sizes(own, 6) == [3, 8, 20, 60, 120, 4]
    assert own[even:BULK] == [3.0, 2.0, 0.0, 0.0, 20 / 512, 8 / 128, 0.0]  # 8 channels, 20 places
    for norm, rows, length, weights in ((nn.LayerNorm(4), 120, 4, 4), (nn.GroupNorm(2, 8), 6, 80, 8)):
        own = found(norm, "row_norm")
        assert sizes(own, 3) == [rows, length, weights]
        assert own[even + 4] == length / 128
    own = found(nn.BatchNorm2d(8), "reduction")
    assert [round(math.exp(value)) - 1 for value in own[first : first + 2]] == [1, 480]
    assert own[first + 2 : first + 4] == [0.0, 0.0]


def test_depthwise_convolutions_are_a_class_of_their_own() -> None:
    chain = nn.Sequential(nn.Conv2d(3, 6, 3), nn.Conv2d(6, 6, 3, groups=6), nn.Conv2d(6, 6, 1, groups=2))
    forward = [kernel for kernel in convolutions_of(chain, 3) if not kernel.part]
    assert [class_of(kernel).removeprefix("convolution/forward") for kernel in forward] == ["", "/depthwise", ""]
    own = {kernel.part for kernel in convolutions_of(chain, 3) if class_of(kernel).endswith("/depthwise")}
    assert {"", "weight", "input"} <= own
    assert class_of(convolutions_of(nn.Conv2d(1, 4, 3), 1)[0]) == "convolution/forward"


def test_products_are_told_apart_by_the_factor_that_is_turned() -> None:
    model = nn.Sequential(nn.Linear(4, 5, bias=False), nn.Linear(5, 6, bias=False))
    step = trace(
        lambda: model, torch.zeros(3, 4), None, loss=lambda out, _: out.square().sum(), optimizer=partial(SGD, lr=0.1)
    )
    forward, weight, inputs = ((f"matmul/{turned}", "matmul") for turned in ("nt", "tn", "nn"))
    found = [classes_of(op.kernel) for op in step.ops if op.kind == "matmul"]
    assert found[:2] == [forward, forward]
    assert sorted(found[2:]) == sorted([weight, inputs, weight]), "nobody wants the gradient of what goes in"


def test_the_parts_of_convolutions_are_classes_and_have_wider_ones_to_stand_in() -> None:
    chain = nn.Sequential(nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3, groups=4, bias=False))
    found = {classes_of(kernel) for kernel in convolutions_of(chain, 4)}
    assert found == {
        *((f"convolution/{part}", "convolution") for part in ("forward", "weight", "bias")),
        ("convolution/forward/depthwise", "convolution/forward", "convolution/depthwise", "convolution"),
        ("convolution/input/depthwise", "convolution/input", "convolution/depthwise", "convolution"),
        ("convolution/weight/depthwise", "convolution/weight", "convolution/depthwise", "convolution"),
    }


def test_gradients_of_norms_have_the_rows_of_the_norm() -> None:
    step = trace(
        lambda: nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4, elementwise_affine=False)), torch.zeros(3, 8, 5, 4),
        None, loss=lambda out, _: out.sum(), optimizer=partial(SGD, lr=0.1),
    )  # fmt: skip
    forward, backward = (op.kernel for op in step.ops if op.kind == "row_norm")
    place = NAMES.index("dim0")
    assert backward.operator.endswith("backward")
    assert features(forward)[place:] == features(backward)[place:]
    assert features(forward)[place : place + 3] == [math.log(121), math.log(5), 0.0]


def test_attention_knows_how_full_its_tiles_are() -> None:
    tokens = torch.zeros(1, 130, dtype=torch.long)
    step = trace(
        lambda: GPT(130, 65, width=32, heads=2, blocks=1), tokens, None, loss=lambda out, _: out.sum(),
        optimizer=partial(SGD, lr=0.1),
    )  # fmt: skip
    attention = next(op.kernel for op in step.ops if op.kind == "attention")
    assert features(attention)[NAMES.index("fill0") : BULK] == [130 / 256, 130 / 256, 0.0]


def test_features_tell_what_is_round_from_what_is_even() -> None:
    def product(rows: int, columns: int) -> Kernel:
        step = trace(
            lambda: nn.Linear(columns, rows), torch.zeros(2, columns), None,
            loss=lambda out, _: out.sum(), optimizer=partial(SGD, lr=0.1),
        )  # fmt: skip
        return next(op.kernel for op in step.of("backward") if op.kind == "matmul")

    even, beyond = NAMES.index("even0"), NAMES.index("round0")
    # Summed over 2 samples; columns; rows.
    for rows, columns, twos, more in ((512, 3072, [1, 4, 4], [0, 6, 5]), (40, 3040, [1, 4, 3], [0, 1, 0])):
        own = features(product(rows, columns))
        assert own[even : even + 4] == [*twos, 0]
        assert own[beyond : beyond + 4] == [*more, 0]


def test_features_know_by_how_much_channels_and_rows_are_enlarged_to_fill_vectors() -> None:
    place = NAMES.index("lanes0")

    def lanes(model: nn.Module, channels: int) -> list[float]:
        forward = next(kernel for kernel in convolutions_of(model, channels) if not kernel.part)
        return features(forward)[place : place + 4]

    thirds = math.log(32 / 24)
    assert lanes(nn.Conv2d(16, 32, 1), 16) == pytest.approx([0.0, 0.0, 0.0, 0.0])
    assert lanes(nn.Conv2d(24, 8, 1), 24) == pytest.approx([thirds, math.log(2), 0.0, thirds + math.log(2)])
    assert lanes(nn.Conv2d(3, 16, 3), 3) == pytest.approx([math.log(16 / 3), 0.0, math.log(8 / 6), 0.0]), "an image"
    assert lanes(nn.Conv2d(24, 24, 1, groups=24), 24)[3] == 0.0, "each channel by itself"


def test_a_table_has_the_features_that_are_asked_for() -> None:
    """An earlier profile knows fewer."""
    kernels = convolutions_of(nn.Conv2d(16, 32, 1), 16)
    found = table(kernels, ("convolution",), ("bytes", "flops"))
    assert found.shape == (len(kernels), 3)
    assert found[0, :2].tolist() == [features(kernels[0])[NAMES.index(name)] for name in ("bytes", "flops")]


@pytest.mark.parametrize(("batch", "size", "stride", "autocast", "apart"), [
    (15, 1, 1, None, 1.0), (16, 1, 1, None, 0.0), (15, 3, 1, None, 0.0), (15, 1, 2, None, 0.0),
    (15, 1, 1, torch.bfloat16, 0.0),
])  # fmt: skip
def test_features_know_which_convolutions_torch_computes_by_itself(
    batch: int, size: int, stride: int, autocast: torch.dtype | None, apart: float
) -> None:
    step = trace(
        lambda: nn.Conv2d(4, 8, size, stride, size // 2, bias=False), torch.zeros(batch, 4, 9, 9), torch.zeros(batch),
        loss=lambda scores, _: scores.mean(), optimizer=partial(SGD, lr=0.1), autocast=autocast,
    )  # fmt: skip
    kernels = [op.kernel for op in step.ops if op.kind == "convolution"]
    assert {kernel.part for kernel in kernels} >= {"", "weight"}
    assert {features(kernel)[NAMES.index("route")] for kernel in kernels} == {apart}
