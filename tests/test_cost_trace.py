"""The trace of a training step: it is what torch really issues, and it says where each operation belongs."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop
from torch.utils.checkpoint import checkpoint

from offbeat.cost import Op, TracedStep, trace, trace_task
from offbeat.cost.arguments import spec_of
from offbeat.cost.op import LOSS, OPTIMIZER, Phase
from offbeat.cost.recorder import Recorder
from offbeat.errors import BadInput
from offbeat.train.models import GPT, MODELS, cnn
from offbeat.train.task import cross_entropy
from offbeat.train.tasks import load_task

Build = Callable[[], nn.Module]

CLASSES = torch.tensor([3, 1])
CHARACTERS = torch.zeros(2, 8, dtype=torch.long)
sgd = partial(SGD, lr=0.1, momentum=0.9)


def layers() -> nn.Module:
    """What the zoo has not: dropout, groups, transposed convolutions, other norms and pools."""
    return nn.Sequential(
        nn.Conv2d(4, 8, 3, groups=2), nn.Dropout(0.3), nn.GroupNorm(2, 8), nn.Hardswish(), nn.MaxPool2d(2),
        nn.ConvTranspose2d(8, 4, 3, stride=2), nn.AdaptiveAvgPool2d(3), nn.AvgPool2d(2), nn.Flatten(),
        nn.Linear(4, 5), nn.Softplus(),
    )  # fmt: skip


def zoo(name: str) -> tuple[Build, Tensor, Tensor]:
    """A model with a small batch."""
    if name == "layers":
        return layers, torch.zeros(2, 4, 11, 11), CLASSES
    if name == "gpt":
        return partial(GPT, 8, 12, width=16, heads=2, blocks=2), CHARACTERS, CHARACTERS
    shape = (3, 16, 16)
    return partial(MODELS[name], shape, 10), torch.zeros(2, *shape), CLASSES


def traced(name: str, **options: Any) -> TracedStep:
    model, inputs, targets = zoo(name)
    return trace(model, inputs, targets, **{"loss": cross_entropy, "optimizer": sgd, **options})


def really_issued(
    build: Build, inputs: Tensor, targets: Tensor, optimizer: Callable[[Iterable[nn.Parameter]], Optimizer]
) -> list[Op]:
    """The operations of a real step on real numbers."""
    torch.manual_seed(0)
    model = build()
    stepper = optimizer(model.parameters())
    recorder = Recorder(model)
    with recorder.hooked(), recorder:
        loss = cross_entropy(model(inputs), targets)
        recorder.phase = "backward"
        loss.backward()  # type: ignore[no-untyped-call]
    recorder.phase = "optimizer"
    stepper.step()
    with recorder:
        stepper.step()
    return recorder.ops


def bare(ops: Iterable[Op]) -> list[Op]:
    """Without what may be in caches: a real step's state lies wherever the allocator puts it."""
    return [replace(op, kernel=replace(op.kernel, near=(0, 0), warm=0, bulk=0)) for op in ops]


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet8", "resnet50", "vgg11", "gpt", "layers"])
def test_trace_is_what_torch_issues(name: str) -> None:
    model, inputs, targets = zoo(name)
    assert bare(traced(name).ops) == bare(really_issued(model, inputs, targets, sgd))


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_gradient_is_completed_once(name: str) -> None:
    step = traced(name)
    assert Counter(step.gradient_order) == Counter(step.parameters.keys())
    assert all(op.phase == "backward" for op in step.ops if op.completes)


def test_gradients_are_ready_from_the_last_layer_to_the_first() -> None:
    step = trace(lambda: cnn((1, 8, 8), 10), torch.zeros(2, 1, 8, 8), CLASSES, loss=cross_entropy, optimizer=sgd)
    assert [name.split(".")[0] for name in step.gradient_order] == ["9", "9", "7", "7", "3", "3", "0", "0"]


@pytest.mark.parametrize("name", ["resnet8", "gpt"])
def test_backward_belongs_to_the_module_whose_forward_it_undoes(name: str) -> None:
    step = traced(name)
    forward = Counter(op.path for op in step.of("forward") if op.kind in ("matmul", "convolution", "attention"))
    backward = Counter(op.path for op in step.of("backward") if op.kind in ("matmul", "convolution", "attention"))
    assert set(forward) == set(backward)
    assert {op.path for op in step.of("optimizer")} == {OPTIMIZER}
    assert [op.kernel.operator for op in step.ops if op.path == LOSS and op.phase == "forward"] == [
        "_log_softmax", "nll_loss_forward",
    ]  # fmt: skip
    for op in step.ops:
        for parameter in op.completes:
            if parameter != "token.weight":  # the head's gradient is added to the embedding's
                assert parameter.rpartition(".")[0] == op.path


def test_first_convolution_needs_no_gradient_of_its_input() -> None:
    parts = [(op.path, op.kernel.part) for op in traced("cnn").of("backward") if op.kind == "convolution"]
    assert parts == [("3", "input"), ("3", "weight"), ("3", "bias"), ("0", "weight"), ("0", "bias")]


def test_each_part_of_a_layer_completes_its_own_gradient() -> None:
    ops = traced("cnn").of("backward")
    parts = {(op.kernel.part, op.completes) for op in ops if op.kind == "convolution" and op.path == "3"}
    assert parts == {("input", ()), ("weight", ("3.weight",)), ("bias", ("3.bias",))}
    linear = [(op.kernel.operator, op.completes) for op in ops if op.path == "9"]
    assert linear == [("mm", ()), ("mm", ("9.weight",)), ("sum", ("9.bias",))]


def test_tied_weight_is_complete_when_both_its_gradients_are_summed() -> None:
    ops = traced("gpt").of("backward")
    (index,) = [i for i, op in enumerate(ops) if "token.weight" in op.completes]
    assert ops[index].kernel.operator == "add"
    assert ops[index - 1].kernel.operator == "embedding_dense_backward"
    assert any(op.kind == "matmul" and op.kernel.outputs[0].shape == (12, 16) for op in ops[:index])


def test_frozen_parameters_cost_neither_gradient_nor_step() -> None:
    def build() -> nn.Module:
        model = nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 8))
        return model.requires_grad_(False).append(nn.Linear(8, 10))

    step = trace(build, torch.zeros(2, 6), CLASSES, loss=cross_entropy, optimizer=sgd)
    assert set(step.parameters) == set(step.gradient_order) == {"3.weight", "3.bias"}
    assert [op.path for op in step.of("backward") if op.kind == "matmul"] == ["3"]
    assert step.memory.gradients == step.memory.optimizer_state == (8 * 10 + 10) * 4
    assert step.memory.weights == (8 * 10 + 10 + 6 * 7 + 7 + 7 * 8 + 8) * 4


def test_all_frozen_is_refused() -> None:
    with pytest.raises(BadInput, match="no parameter that is trained"):
        trace(nn.Linear(2, 3).requires_grad_(False), torch.zeros(2, 2), CLASSES, loss=cross_entropy, optimizer=sgd)


def test_parameter_that_the_step_does_not_use_is_never_completed() -> None:
    class Spare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.spare = nn.Linear(4, 5), nn.Linear(4, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)  # type: ignore[no-any-return]

    step = trace(Spare, torch.zeros(2, 4), CLASSES, loss=cross_entropy, optimizer=sgd)
    assert set(step.gradient_order) == {"used.weight", "used.bias"}
    assert len(step.parameters) == 4
    assert step.memory.gradients == (4 * 5 + 5) * 4


def test_a_given_model_stays_as_it_is_and_traces_like_its_function() -> None:
    build, inputs, targets = zoo("gpt")
    model = build()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    step = trace(model, inputs, targets, loss=cross_entropy, optimizer=sgd)
    assert step == traced("gpt")  # the tie of embedding and head was kept, too
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_only_shapes_of_the_batch_count() -> None:
    build, inputs, targets = zoo("gpt")
    assert inputs is targets
    shapes = inputs.to("meta")
    assert trace(build, shapes, shapes, loss=cross_entropy, optimizer=sgd) == traced("gpt")


def test_several_inputs_by_place_or_by_name() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Bilinear(3, 4, 10)

        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            return self.layer(left, right)  # type: ignore[no-any-return]

    left, right = torch.zeros(2, 3), torch.zeros(2, 4)
    by_place = trace(Two, (left, right), CLASSES, loss=cross_entropy, optimizer=sgd)
    by_name = trace(Two, {"right": right, "left": left}, CLASSES, loss=cross_entropy, optimizer=sgd)
    assert by_place.ops == by_name.ops
    assert by_place.batch == 2


@pytest.mark.parametrize("optimizer", [SGD, Adam, AdamW, RMSprop, Adagrad])
def test_optimizer_updates_every_parameter_in_steady_state(optimizer: Callable[..., Optimizer]) -> None:
    step = traced("mlp", optimizer=partial(optimizer, lr=0.1))
    ops = step.of("optimizer")
    written = {op.kernel.inputs[i].shape for op in ops for i in op.kernel.written}
    assert {spec.shape for spec in step.parameters.values()} <= written
    assert not [op for op in ops if op.kernel.operator in ("zeros_like", "zeros", "clone")], "state is made only once"


def test_optimizers_on_a_gpu_update_all_parameters_at_once() -> None:
    parameters = len(traced("resnet8").parameters)
    one_by_one, together = traced("resnet8", optimizer=AdamW), traced("resnet8", optimizer=AdamW, platform="cuda")
    assert len(one_by_one.of("optimizer")) == 9 * parameters
    assert len(together.of("optimizer")) == 9
    assert {op.kind for op in together.of("optimizer")} == {"foreach"}
    assert bare(one_by_one.of("backward")) == bare(together.of("backward"))
    chosen = traced("resnet8", optimizer=partial(AdamW, foreach=False), platform="cuda")
    assert len(chosen.of("optimizer")) == 9 * parameters


def test_fused_optimizer_is_one_kernel() -> None:
    step = traced("mlp", optimizer=partial(AdamW, fused=True))
    counted, fused = step.of("optimizer")
    assert (counted.kind, fused.kind) == ("foreach", "optimizer")
    elements = sum(spec.numel for spec in step.parameters.values())
    steps = 4 * len(step.parameters)
    assert fused.nbytes == 4 * elements * (4 + 3) + steps  # reads weight, gradient, two moments; writes all but one


def test_autocast_casts_are_operations() -> None:
    step = traced("mlp", autocast=torch.bfloat16)
    forward = [(op.kernel.operator, op.kernel.dtype) for op in step.of("forward") if op.path == "1"]
    assert forward.count(("_to_copy", torch.float32)) == 3  # weight, bias and input to bfloat16
    assert ("addmm", torch.bfloat16) in forward
    completing = [op.kernel for op in step.ops if op.completes]
    assert {(kernel.operator, kernel.inputs[0].dtype, kernel.outputs[0].dtype) for kernel in completing} == {
        ("_to_copy", torch.bfloat16, torch.float32)
    }
    assert {op.kernel.dtype for op in step.of("optimizer")} == {torch.float32}


def test_autocast_on_a_gpu_normalises_in_float32() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 10))

    def norm_dtype(platform: Any) -> torch.dtype:
        step = trace(
            build, torch.zeros(2, 8), CLASSES, loss=cross_entropy, optimizer=sgd, platform=platform,
            autocast=torch.bfloat16,
        )  # fmt: skip
        (norm,) = (op for op in step.of("forward") if op.kind == "row_norm")
        return norm.kernel.dtype

    assert (norm_dtype("cpu"), norm_dtype("cuda")) == (torch.bfloat16, torch.float32)


@pytest.mark.parametrize(("autocast", "more"), [(None, {"forward": 1, "backward": 0}),
                                                (torch.bfloat16, {"forward": 0, "backward": -6})])  # fmt: skip
def test_attention_is_laid_out_otherwise_on_a_gpu(autocast: torch.dtype | None, more: dict[Phase, int]) -> None:
    """As an H200 has it: a transformer's layer, whose inputs are laid out by places first, copies what attention made
    in float32, and no gradients in bfloat16."""

    def copies(platform: Any, phase: Phase) -> int:
        step = trace(
            lambda: nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True), torch.zeros(4, 8, 16),
            None, loss=lambda made, _: made.mean(), optimizer=sgd, platform=platform, autocast=autocast,
        )  # fmt: skip
        return sum(op.kind == "copy" and op.path == "self_attn" for op in step.of(phase))

    assert {phase: copies("cuda", phase) - copies("cpu", phase) for phase in more} == more


def test_dropout_is_fused_on_a_gpu_only() -> None:
    """A transformer's layer drops attention's scores inside the attention, and activations outside of it."""

    def operators(platform: Any) -> Counter[str]:
        step = trace(
            lambda: nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True), nn.Linear(8, 5)),
            torch.zeros(2, 3, 8), torch.zeros(2, 3, dtype=torch.long),
            loss=cross_entropy, optimizer=sgd, platform=platform,
        )  # fmt: skip
        return Counter(op.kernel.operator for op in step.of("forward"))

    on_gpu, on_cpu = operators("cuda"), operators("cpu")
    assert on_gpu["native_dropout"] == 3
    assert on_gpu["_scaled_dot_product_flash_attention_for_cpu"] == 1
    assert on_gpu["_safe_softmax"] == on_gpu["bernoulli_"] == 0
    assert on_cpu["_safe_softmax"] + on_cpu["_softmax"] == 1
    assert on_cpu["bernoulli_"] == 4
    assert F.dropout.__module__ == "torch.nn.functional", "torch is as it was"


def test_checkpointed_activations_are_computed_again() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 6))
            self.head = nn.Linear(6, 10)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(checkpoint(self.body, x, use_reentrant=False))  # type: ignore[no-any-return]

    step = trace(Checkpointed, torch.zeros(2, 6), CLASSES, loss=cross_entropy, optimizer=sgd)
    again = [op.path for op in step.of("backward") if op.kernel.operator == "addmm"]
    assert again[0] == "body.0"
    assert set(step.gradient_order) == set(step.parameters)


def test_model_that_computes_its_settings_with_tensors_is_built() -> None:
    def build() -> nn.Module:
        rates = [rate.item() for rate in torch.linspace(0.1, 0.3, 3)]
        blocks = [nn.Sequential(nn.Linear(6, 6), nn.Dropout(rate)) for rate in rates]
        blocks[1][0].weight = blocks[0][0].weight
        return nn.Sequential(*blocks, nn.Linear(6, 10))

    step = trace(build, torch.zeros(2, 6), CLASSES, loss=cross_entropy, optimizer=sgd)
    assert len(step.parameters) == 7  # one is tied
    assert not nn.Linear(2, 2).weight.is_meta, "parameters are real again"


@pytest.mark.parametrize(
    ("build", "shape", "dtype"),
    [
        (lambda: nn.Linear(6, 10).bfloat16(), (2, 6), torch.bfloat16),
        (lambda: nn.Linear(6, 10).double(), (2, 6), torch.float64),
        (lambda: nn.Sequential(nn.Conv2d(4, 10, 3).to(memory_format=torch.channels_last), Mean()), (2, 4, 8, 8), None),
        (
            lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 2, enable_nested_tensor=False),
            (2, 8),
            None,
        ),
        (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 10)), (2, 6), None),
        (lambda: nn.Sequential(nn.Unflatten(1, (2, 3)), nn.GRU(3, 10), Last()), (2, 6), None),
        (lambda: Constant(), (2, 6), None),
    ],
)
def test_models_that_are_cast_or_copied_while_built(build: Build, shape: tuple[int, ...], dtype: Any) -> None:
    inputs = torch.zeros(shape, dtype=dtype)
    model = build()
    given, built = (trace(m, inputs, CLASSES, loss=cross_entropy, optimizer=sgd) for m in (model, build))
    assert given == built
    assert {name: spec_of(parameter) for name, parameter in model.named_parameters()} == built.parameters
    assert [op.kernel for op in built.ops] == [op.kernel for op in really_issued(build, inputs, CLASSES, sgd)]


class Last(nn.Module):
    def forward(self, outputs: tuple[Tensor, Tensor]) -> Tensor:
        return outputs[0][:, -1]


class Constant(nn.Linear):
    """Keeps a tensor that is neither a parameter nor a buffer."""

    def __init__(self) -> None:
        super().__init__(6, 10)
        self.scales = [torch.ones(10)]

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * self.scales[0]


def test_sparse_gradients_are_refused() -> None:
    with pytest.raises(BadInput, match="makes sparse tensors, which cannot be traced: set sparse=False"):
        trace(lambda: nn.Embedding(9, 5, sparse=True), CHARACTERS, CHARACTERS, loss=cross_entropy, optimizer=sgd)


class Looks(nn.Module):
    """A model that needs to see values."""

    def __init__(self, at: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 10)
        self.looking = nn.Module()
        self.looking.forward = at  # type: ignore[method-assign]

    def forward(self, x: Tensor) -> Tensor:
        return self.looking(self.inner(x))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "look",
    [
        lambda x: x if x.sum() > 0 else -x,
        lambda x: x * x.mean().item(),
        lambda x: x[x > 0].sum() * x,
        lambda x: x * len(x.nonzero()),
        lambda x: x * float(x.detach().numpy().sum()),
        lambda x: x * sum(x.flatten().tolist()),
    ],
)
def test_looking_at_values_is_refused_in_one_sentence(look: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(BadInput, match=r"looks at the values of a tensor .* only shapes: use operations") as refusal:
        trace(lambda: Looks(look), torch.zeros(2, 6), CLASSES, loss=cross_entropy, optimizer=sgd)
    assert "\n" not in str(refusal.value)


def test_refusal_names_the_module() -> None:
    with pytest.raises(BadInput, match=r"module 'looking' looks at the values"):
        trace(
            lambda: Looks(lambda x: x * x.mean().item()), torch.zeros(2, 6), CLASSES, loss=cross_entropy, optimizer=sgd
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inputs": torch.zeros(2, 7)}, r"module '1' raised RuntimeError: .*check that the batch fits"),
        ({"loss": lambda outputs, _targets: outputs}, "loss must be a tensor of one number: take its mean"),
        ({"loss": lambda _outputs, _targets: 0.0}, "loss must be a tensor of one number"),
        ({"loss": lambda outputs: outputs.mean()}, "the forward pass raised TypeError: .* positional argument"),
        ({"model": lambda: "a model"}, "returned str, not a Module"),
        ({"platform": "gpu"}, "there is no platform 'gpu'.*cpu, cuda"),
        ({"optimizer": partial(SGD, lr=-1.0)}, "making the optimizer raised ValueError: Invalid learning rate"),
        ({"optimizer": torch.optim.LBFGS}, "the optimizer's step raised TypeError"),
    ],
)
def test_other_failures_say_where_and_why(options: dict[str, Any], message: str) -> None:
    model, inputs, targets = zoo("mlp")
    given = {"model": model, "inputs": inputs, "targets": targets, "loss": cross_entropy, "optimizer": sgd, **options}
    with pytest.raises(BadInput, match=message) as refusal:
        trace(**given)
    assert "\n" not in str(refusal.value)


def test_tasks_are_traced_at_any_batch(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(
        "import torch\nfrom torch import nn\nfrom offbeat.train.task import Samples, Task, cross_entropy\n"
        "def task():\n"
        "    data = Samples(inputs=torch.zeros(3, 5, dtype=torch.uint8), targets=torch.zeros(3, dtype=torch.uint8))\n"
        "    return Task(name='own', model=lambda: nn.Linear(5, 2), optimizer=torch.optim.Adam,\n"
        "                loss=cross_entropy, train=data, test=data)\n"
    )
    task = load_task(f"{own}:task", seed=0)
    step = trace_task(task, batch=1000)  # more than there are samples
    (addmm,) = (op for op in step.of("forward") if op.kind == "matmul")
    assert [spec.shape for spec in addmm.kernel.inputs] == [(2,), (1000, 5), (5, 2)]
    assert addmm.kernel.dtype == torch.float32  # as the task's images are handed out
    assert step.batch == 1000
    assert trace_task(task).batch == task.batch
    with pytest.raises(BadInput, match="a batch of 0 samples"):
        trace_task(task, batch=0)


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


def test_signature_tells_what_time_depends_on_and_nothing_else() -> None:
    def signatures(conv: nn.Module, rate: float = 0.1) -> list[str]:
        step = trace(
            nn.Sequential(conv, Mean()), torch.zeros(2, 4, 9, 9), CLASSES,
            loss=cross_entropy, optimizer=partial(SGD, lr=rate, momentum=0.9),
        )  # fmt: skip
        return [op.kernel.signature for op in step.ops]

    convolutions = [
        nn.Conv2d(4, 8, 3), nn.Conv2d(4, 8, 3, stride=2), nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(4, 8, 3, groups=4),
        nn.Conv2d(4, 8, 3, dilation=2), nn.Conv2d(4, 8, 5), nn.Conv2d(4, 8, 3, bias=False),
        nn.ConvTranspose2d(4, 8, 3), nn.Conv2d(4, 8, 3).to(memory_format=torch.channels_last),
    ]  # fmt: skip
    assert len({signatures(conv)[0] for conv in convolutions}) == len(convolutions)
    assert signatures(convolutions[0], rate=0.1) == signatures(convolutions[0], rate=0.2)
