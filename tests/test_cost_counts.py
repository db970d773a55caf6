"""FLOPs and bytes: against torch's counter where that is right, against hand-counted layers where it is not."""

from functools import partial
from math import prod
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim import SGD
from torch.utils.flop_counter import FlopCounterMode

from offbeat.cost import Op, TracedStep, trace
from offbeat.cost.kernel import Spec
from offbeat.cost.kinds import KINDS
from offbeat.cost.roofline import MATRIX_KINDS
from offbeat.train.models import GPT, MODELS

F32 = 4  # bytes
sgd = partial(SGD, lr=0.1)


def total(outputs: Tensor, _targets: Any) -> Tensor:
    return outputs.square().sum()  # not the sum alone, whose gradient is one number, expanded


def step_of(model: Any, *inputs: Tensor, **options: Any) -> TracedStep:
    return trace(model, inputs, None, **{"loss": total, "optimizer": sgd, **options})


def only(step: TracedStep, operator: str, part: str = "") -> Op:
    (op,) = (op for op in step.ops if op.kernel.operator == operator and op.kernel.part == part)
    return op


def torchs_count(model: nn.Module, *inputs: Tensor) -> int:
    with FlopCounterMode(display=False) as counter:
        model(*inputs).sum().backward()
    return counter.get_total_flops()


def products(step: TracedStep) -> int:
    """FLOPs of matrix products alone, without what is added, which is all that torch counts."""
    added = sum(
        op.kernel.outputs[0].numel
        for op in step.ops
        if op.kernel.operator == "addmm" or (op.kernel.operator == "convolution" and op.kernel.tensor("bias"))
    )
    counted = (op for op in step.ops if op.kind in MATRIX_KINDS and op.kernel.part != "bias")
    return sum(op.flops for op in counted) - added


@pytest.mark.parametrize("name", sorted(set(MODELS) - {"gpt"}))
def test_images_as_torch_counts_them(name: str) -> None:
    torch.manual_seed(0)
    shape = (3, 16, 16)
    model, images = MODELS[name](shape, 10), torch.zeros(2, *shape)
    assert products(step_of(model, images)) == torchs_count(model, images) > 0


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv1d(6, 4, 5, stride=2, padding=3), (2, 6, 17)),
        (nn.Conv2d(6, 4, (3, 5), stride=2, dilation=2), (2, 6, 17, 19)),
        (nn.Conv3d(2, 3, 3), (2, 2, 5, 6, 7)),
        (nn.ConvTranspose2d(6, 4, 3, stride=2, output_padding=1), (2, 6, 5, 5)),
        (nn.Linear(7, 5), (2, 3, 7)),
    ],
)
def test_layers_as_torch_counts_them(layer: nn.Module, shape: tuple[int, ...]) -> None:
    inputs = torch.zeros(shape)
    assert products(step_of(layer, inputs)) == torchs_count(layer, inputs) > 0


@pytest.mark.parametrize("groups", [1, 2, 8])
def test_weight_gradient_of_a_grouped_convolution(groups: int) -> None:
    """Torch counts that part as if there were one group."""
    model = nn.Sequential(nn.Conv2d(8, 8, 1, bias=False), nn.Conv2d(8, 8, 3, groups=groups, bias=False))
    images = torch.zeros(2, 8, 6, 6)
    step = step_of(model, images)
    once = 2 * (2 * 8 * 4 * 4) * (8 // groups) * 3 * 3  # each of [2, 8, 4, 4] outputs from 8/groups x 3 x 3 inputs
    parts = [op for op in step.ops if op.kind == "convolution" and op.path == "1"]
    assert [op.kernel.part for op in parts] == ["", "input", "weight"]
    assert [op.flops for op in parts] == [once] * 3
    assert torchs_count(model, images) - products(step) == (groups - 1) * once


def test_bias_gradient_is_a_sum() -> None:
    bias = only(step_of(nn.Conv2d(3, 5, 3), torch.zeros(2, 3, 6, 6)), "convolution_backward", "bias")
    assert bias.flops == 2 * 5 * 4 * 4
    assert bias.nbytes == (2 * 5 * 4 * 4 + 5) * F32


class Attention(nn.Module):
    """Queries, keys and values of one head each; what is saved is in one parameter, so that all get gradients."""

    def __init__(self, *, causal: bool, rows: int, columns: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.zeros(2, 3, rows, 8))
        self.key, self.value = (nn.Parameter(torch.zeros(2, 3, columns, 8)) for _ in range(2))
        self.causal = causal

    def forward(self, scale: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(self.query, self.key, self.value, is_causal=self.causal) * scale


@pytest.mark.parametrize(("rows", "columns"), [(5, 5), (4, 7), (7, 4)])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_counts_the_pairs_that_see_each_other(causal: bool, rows: int, columns: int) -> None:
    step = step_of(Attention(causal=causal, rows=rows, columns=columns), torch.zeros(()))
    forward, backward = (op for op in step.ops if op.kind == "attention")
    mask = torch.ones(rows, columns).tril() if causal else torch.ones(rows, columns)
    product = 2 * (2 * 3) * int(mask.sum()) * 8
    assert forward.flops == 2 * product
    assert backward.flops == 5 * product


def test_attention_without_a_mask_as_torch_counts_its_parts() -> None:
    """Torch does not know the CPU's fused kernel, so it is shown the same attention in parts."""
    model = Attention(causal=False, rows=5, columns=6)
    with sdpa_kernel(SDPBackend.MATH):
        in_parts = torchs_count(model, torch.zeros(()))
    assert torchs_count(model, torch.zeros(())) == 0
    forward, backward = (op for op in step_of(model, torch.zeros(())).ops if op.kind == "attention")
    again = forward.flops // 2  # the fused kernel computes the scores twice instead of keeping them
    assert forward.flops + backward.flops == in_parts + again


def test_gpt_is_six_per_parameter_and_token_and_its_attention() -> None:
    length, width, blocks, vocabulary = 32, 64, 3, 50
    tokens = torch.zeros(4, length, dtype=torch.long)
    step = step_of(partial(GPT, length, vocabulary, width=width, heads=4, blocks=blocks), tokens)
    matrices = 12 * width**2 * blocks + vocabulary * width
    pairs = length * (length + 1) // 2
    attention = blocks * 4 * (2 + 5) * 2 * pairs * width
    assert products(step) == 6 * matrices * 4 * length + attention


def test_lstm_is_its_matrices_at_every_position() -> None:
    class Outputs(nn.LSTM):
        def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(x)[0]

    step = step_of(Outputs(6, 10), torch.zeros(7, 2, 6))
    forward, backward = (op.flops for op in step.ops if op.kind == "recurrent")
    assert forward == 2 * (7 * 2) * 4 * (6 * 10 + 10 * 10)
    assert backward == 2 * forward


@pytest.mark.parametrize(
    ("layer", "operator", "nbytes"),
    [
        (nn.Linear(7, 5, bias=False), "mm", (3 * 7 + 7 * 5 + 3 * 5) * F32),
        (nn.ReLU(), "relu", 2 * 21 * F32),
        (nn.Softmax(-1), "_softmax", 2 * 21 * F32),
        (nn.LayerNorm(7, elementwise_affine=False), "native_layer_norm", (2 * 21 + 2 * 3) * F32),
        (nn.Dropout(0.5), "native_dropout", 2 * 21 * F32 + 21),
    ],
)
def test_bytes_by_hand(layer: nn.Module, operator: str, nbytes: int) -> None:
    model = nn.Sequential(nn.Linear(7, 7), layer)
    ops = [op for op in step_of(model, torch.zeros(3, 7), platform="cuda").of("forward") if op.path == "1"]
    assert [(op.kernel.operator, op.nbytes) for op in ops] == [(operator, nbytes)]


def test_batch_norm_reads_twice() -> None:
    step = step_of(nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)), torch.zeros(2, 3, 8, 8))
    elements, channels = 2 * 4 * 8 * 8, 4
    forward, backward = (only(step, name) for name in ("native_batch_norm", "native_batch_norm_backward"))
    assert forward.nbytes == (3 * elements + (4 + 2) * channels) * F32
    assert backward.nbytes == ((2 + 2 + 1) * elements + (5 + 2) * channels) * F32


def test_embedding_touches_only_the_rows_asked_for() -> None:
    step = step_of(nn.Embedding(1000, 8), torch.zeros(2, 3, dtype=torch.long))
    indices, rows, table = 2 * 3 * 8, 2 * 3 * 8 * F32, 1000 * 8 * F32
    assert only(step, "embedding").nbytes == indices + 2 * rows
    backward = only(step, "embedding_dense_backward")
    # The gradient of the whole table is zeroed, then each row that is read is added to one of it.
    assert backward.nbytes == indices + table + 3 * rows


def test_views_cost_nothing_and_copies_do() -> None:
    class Turned(nn.Module):
        def __init__(self, *, copied: bool) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(4, 6))
            self.copied = copied

        def forward(self, x: Tensor) -> Tensor:
            turned = self.weight.t().unsqueeze(0).expand(2, 6, 4)[:, 1:].detach().requires_grad_()
            return (turned.contiguous() if self.copied else turned) * x + self.weight.sum()

    plain, copied = (step_of(Turned(copied=copied), torch.zeros(())).of("forward") for copied in (False, True))
    assert [op.kernel.operator for op in plain] == ["mul", "sum", "add", "pow", "sum"]
    assert [op.kernel.operator for op in copied] == ["clone", "mul", "sum", "add", "pow", "sum"]
    assert copied[0].nbytes == (5 * 4 + 2 * 5 * 4) * F32  # reads what was expanded once


def test_same_tensor_twice_is_read_once() -> None:
    class Square(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            x = super().forward(input)
            return x * x

    forward = step_of(Square(3, 5, bias=False), torch.zeros(2, 3)).of("forward")
    assert [op.nbytes for op in forward if op.kernel.operator == "mul"] == [2 * 2 * 5 * F32]


def test_every_operation_of_the_zoo_has_a_class() -> None:
    for name in ("resnet8", "vgg11", "cnn3m", "mlp"):
        kinds = {op.kind for op in step_of(MODELS[name]((3, 16, 16), 10), torch.zeros(2, 3, 16, 16)).ops}
        assert kinds <= set(KINDS) - {"other"}


def test_spec_counts_expanded_dimensions_once() -> None:
    assert Spec((2, 3, 4), torch.bfloat16).nbytes == 2 * 24
    assert Spec((2, 3, 4), torch.float32, (0, 1, 3)).nbytes == 4 * 12
    assert Spec((2, 3, 4), torch.float32, (0, 1, 3)).numel == prod((2, 3, 4))
    assert str(Spec((2, 3), torch.float32, (1, 2))) == "f32[2,3@1,2]"
