"""random_layers: what a calibration learns from beside whole models."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from offbeat.cost.counts import flops_of
from offbeat.cost.features import NAMES, class_of, features
from offbeat.cost.kernel import Kernel
from offbeat.cost.random_layers import CLASSES, SCALES, random_layers
from offbeat.cost.trace import Platform


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_random_layers_have_gradients_of_their_inputs_and_the_widths_of_networks(
    platform: Platform, autocast: torch.dtype | None
) -> None:
    cases, scale = random_layers(seed=0, platform=platform, autocast=autocast), SCALES[platform]
    steps = [subject.at(batch) for subject, batch in (next(cases) for _ in range(72 // scale.layers))]
    convolutions = [op.kernel for step in steps for op in step.ops if op.kind == "convolution"]
    parts = Counter(kernel.part for kernel in convolutions)
    assert parts["input"] == parts["weight"] == parts[""] > 16
    weights = [kernel.tensor("weight") for kernel in convolutions if class_of(kernel) == "convolution/forward"]
    round_ones = [weight for weight in weights if weight is not None and not any(n % 64 for n in weight.shape[:2])]
    assert 0.2 < len(round_ones) / len(weights) < 0.7
    attentions = [op.kernel for step in steps for op in step.of("forward") if op.kind == "attention"]
    assert len({features(kernel)[NAMES.index("dim1")] for kernel in attentions}) > 1  # of several lengths


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
@pytest.mark.parametrize(("kind", "share"), [("convolution", "busy_convolutions"), ("matmul", "busy")])
def test_as_many_layers_as_asked_for_keep_the_device_busy(
    platform: Platform, kind: str, share: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy_ones(value: float) -> float:
        monkeypatch.setattr("offbeat.cost.random_layers.SCALES", {platform: replace(scale, **{share: value})})
        cases = random_layers(seed=0, platform=platform)
        steps = [subject.at(batch) for subject, batch in (next(cases) for _ in range(72 // scale.layers))]
        forwards = [op.kernel for step in steps for op in step.of("forward") if op.kind == kind]
        layers = [kernel for kernel in forwards if kernel.outputs[0].shape[-1] != CLASSES]
        return sum(map(is_busy, layers)) / len(layers)

    def is_busy(kernel: Kernel) -> bool:
        numbers = max(spec.numel for spec in (*kernel.inputs, *kernel.outputs))
        return flops_of(kernel) >= scale.busy_flops or numbers >= scale.busy_numbers

    scale = SCALES[platform]
    assert busy_ones(0.0) < 0.75
    assert busy_ones(1.0) > 0.95
    assert platform == "cpu" or busy_ones(getattr(scale, share)) > 0.6


def test_half_of_a_cpus_products_are_of_one_row_a_sample() -> None:
    def single(share: float) -> float:
        """Of all layers, those whose input is a row of features."""
        scales = {"cpu": replace(SCALES["cpu"], single=share)}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("offbeat.cost.random_layers.SCALES", scales)
            cases = random_layers(seed=0, platform="cpu")
            inputs = [each for subject, _batch in (next(cases) for _ in range(6)) for each in subject.sample[0]]
        return sum(each.dim() == 2 for each in inputs) / len(inputs)

    products = SCALES["cpu"].products
    assert single(0.0) < 0.1  # many rows may be one, too
    assert single(1.0) == pytest.approx(products, abs=0.15)
    assert single(SCALES["cpu"].single) == pytest.approx(products / 2, abs=0.15)


def test_random_layers_follow_the_seed_and_fit_into_the_memory() -> None:
    def drawn(seed: int, most_bytes: float = float("inf")) -> list[tuple[int, int]]:
        cases = random_layers(seed=seed, platform="cuda", most_bytes=most_bytes)
        return [(batch, subject.at(batch).memory.peak) for subject, batch in (next(cases) for _ in range(2))]

    free = drawn(0)
    assert free == drawn(0) != drawn(1)
    limit = 0.5 * max(peak for _, peak in free)
    fitting = drawn(0, limit)
    assert all(batch == 2 or peak <= limit for batch, peak in fitting)
    for (batch, peak), (smaller, _) in zip(free, fitting, strict=True):
        assert smaller < batch if peak > limit else smaller == batch


def test_a_cpu_sees_many_depthwise_convolutions_with_a_stride() -> None:
    """Their gradients are computed by other kernels than those without, many times as slow in 16 bits."""
    cases = random_layers(seed=0, platform="cpu", autocast=torch.bfloat16)
    strided = [
        dict(op.kernel.arguments)["stride"] != (1, 1)
        for subject, batch in (next(cases) for _ in range(8))
        for op in subject.at(batch).of("backward")
        if class_of(op.kernel) == "convolution/input/depthwise"
    ]
    assert 3 <= sum(strided) < len(strided)
