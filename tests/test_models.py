"""The zoo: parameter counts as published, shapes, causality, and refusals."""

import pytest
import torch
from torch import nn

from offbeat.errors import BadInput
from offbeat.train.models import GPT, MODELS, Shape, find_model
from offbeat.train.task import cross_entropy

IMAGE_MODELS = sorted(set(MODELS) - {"mlp", "gpt"})
CIFAR: Shape = (3, 32, 32)


def on_meta(name: str, shape: Shape, classes: int) -> nn.Module:
    with torch.device("meta"):
        return MODELS[name](shape, classes)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "parameters"),
    [
        ("mlp", (1, 8, 8), 10, 64 * 128 + 128 + 128 * 10 + 10),
        ("cnn", (1, 28, 28), 10, 220_234),
        ("cnn", CIFAR, 10, 282_250),
        ("cnn3m", CIFAR, 10, 2_985_354),
        ("lenet", (1, 28, 28), 10, 3_039_946),
        ("resnet8", CIFAR, 10, 78_042),
        ("resnet20", CIFAR, 10, 272_474),
        ("resnet18", CIFAR, 10, 11_173_962),
        ("resnet18", (3, 224, 224), 1000, 11_689_512),  # torchvision's count
        ("resnet50", CIFAR, 10, 23_520_842),
        ("resnet50", (3, 224, 224), 1000, 25_557_032),  # torchvision's count
        ("vgg11", CIFAR, 10, 9_228_362),
        ("vgg16", CIFAR, 10, 14_724_042),
        ("gpt", (64,), 96, 809_216),
    ],
)
def test_parameter_count(name: str, shape: Shape, classes: int, parameters: int) -> None:
    assert sum(p.numel() for p in on_meta(name, shape, classes).parameters()) == parameters


@pytest.mark.parametrize("name", IMAGE_MODELS)
@pytest.mark.parametrize("shape", [CIFAR, (1, 28, 28), (1, 8, 8), (3, 224, 224), (3, 33, 65)])
def test_image_models_take_images_of_any_size(name: str, shape: Shape) -> None:
    assert on_meta(name, shape, 7)(torch.zeros(2, *shape, device="meta")).shape == (2, 7)


@pytest.mark.parametrize("shape", [(5,), (1, 8, 8), (2, 3, 4, 5)])
def test_mlp_flattens_anything(shape: Shape) -> None:
    assert MODELS["mlp"](shape, 3)(torch.zeros(2, *shape)).shape == (2, 3)


@pytest.mark.parametrize("name", ["mlp", "cnn", "cnn3m", "resnet8", "resnet20", "gpt"])
def test_weights_follow_the_seed_and_gradients_reach_all(name: str) -> None:
    shape = (16,) if name == "gpt" else (1, 8, 8)
    torch.manual_seed(1)
    model = MODELS[name](shape, 10)
    torch.manual_seed(1)
    again = MODELS[name](shape, 10)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    inputs = torch.randint(10, (4, 16)) if name == "gpt" else torch.randn(4, *shape)
    outputs = model(inputs)
    cross_entropy(outputs, torch.randint(10, outputs.shape[:-1])).backward()  # type: ignore[no-untyped-call]
    for parameter in model.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()
        assert parameter.grad.any()


def test_only_resnets_and_vggs_have_batch_norm() -> None:
    normed = {
        name
        for name in IMAGE_MODELS
        if any(isinstance(module, nn.BatchNorm2d) for module in on_meta(name, CIFAR, 10).modules())
    }
    assert normed == {"resnet8", "resnet20", "resnet18", "resnet50", "vgg11", "vgg16"}


def test_large_images_get_the_imagenet_stem() -> None:
    def stem_kernel(side: int) -> tuple[int, ...]:
        return tuple(next(on_meta("resnet18", (3, side, side), 10).parameters()).shape[2:])

    assert [stem_kernel(side) for side in (32, 64, 65, 224)] == [(3, 3), (3, 3), (7, 7), (7, 7)]


def test_gpt_embedding_and_head_are_one_parameter() -> None:
    model = MODELS["gpt"]((8,), 11)
    assert isinstance(model, GPT)
    vocabulary_sized = [name for name, p in model.named_parameters() if 11 in p.shape]
    assert vocabulary_sized == ["token.weight"]
    assert len(model.state_dict()) == len(list(model.parameters()))
    characters = torch.tensor([[1, 2, 3]])
    before = model(characters)
    with torch.no_grad():
        model.token.weight[10] += 1  # a character that is not in the input
    after = model(characters)
    assert torch.equal(before[..., :10], after[..., :10])
    assert not torch.equal(before[..., 10], after[..., 10])


def test_gpt_does_not_look_ahead() -> None:
    torch.manual_seed(0)
    model = MODELS["gpt"]((8,), 11)
    characters = torch.randint(10, (2, 8))
    changed = characters.clone()
    changed[:, 5] = 10
    before, after = model(characters), model(changed)
    torch.testing.assert_close(before[:, :5], after[:, :5])
    assert (before[:, 5:] - after[:, 5:]).abs().amax(-1).min() > 1e-4


@pytest.mark.parametrize("name", IMAGE_MODELS)
def test_image_model_refuses_flat_input(name: str) -> None:
    with pytest.raises(BadInput, match=rf"model {name} reads images .* shape \(64,\): choose mlp"):
        MODELS[name]((64,), 10)


def test_gpt_refuses_images() -> None:
    with pytest.raises(BadInput, match=r"gpt reads characters .* \(3, 32, 32\): choose an image model"):
        MODELS["gpt"](CIFAR, 10)


def test_unknown_model_suggests_the_nearest() -> None:
    assert find_model("resnet18") is MODELS["resnet18"]
    with pytest.raises(BadInput, match=r"there is no model 'resnet81': did you mean 'resnet"):
        find_model("resnet81")
