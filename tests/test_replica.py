"""Replica: flat buffers under a model's own tensors, and back."""

import copy
import pickle

import pytest
import torch
from torch import nn

from offbeat.errors import BadInput, OffbeatError
from offbeat.replica import ALIGNMENT, CHUNK, Replica, add_difference_, consensus_distance, flatten


class Mixed(nn.Module):
    """Three dtypes, a frozen parameter, a tied one, channels_last, BatchNorm, an empty and an integer tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        self.norm = nn.BatchNorm2d(4)
        self.wide = nn.Parameter(torch.randn(5, dtype=torch.float64))
        self.narrow = nn.Parameter(torch.randn(2, 3, dtype=torch.bfloat16))
        self.frozen = nn.Parameter(torch.randn(7), requires_grad=False)
        self.tied = self.conv.bias
        self.empty = nn.Parameter(torch.zeros(0, 3))
        self.scalar = nn.Parameter(torch.tensor(2.0))
        self.register_buffer("table", torch.arange(4))


def test_model_keeps_its_objects_values_and_strides():
    torch.manual_seed(0)
    model = Mixed()
    before = {name: (t, t.detach().clone(), t.stride()) for name, t in model.state_dict(keep_vars=True).items()}
    replica = flatten(model)
    for name, tensor in model.state_dict(keep_vars=True).items():
        same, value, stride = before[name]
        assert tensor is same
        assert torch.equal(tensor, value)
        assert tensor.stride() == stride
    assert model.conv.weight.is_contiguous(memory_format=torch.channels_last)
    assert [flat.dtype for flat in replica.flats] == [torch.float64, torch.bfloat16, torch.float32]
    assert all(slot.offset % ALIGNMENT == 0 for slot in replica.slots)


def test_buffers_are_the_model():
    model = Mixed()
    frozen, table = model.frozen.clone(), model.table.clone()
    replica = flatten(model)
    for flat in replica.flats:
        flat.fill_(3.0)
    moved = {slot.name for slot in replica.slots}
    assert moved == {
        "tied", "conv.weight", "norm.weight", "norm.bias", "norm.running_mean", "norm.running_var",
        "wide", "narrow", "empty", "scalar",
    }  # fmt: skip
    for name, tensor in model.state_dict().items():
        if name in moved | {"conv.bias"}:
            assert torch.all(tensor == 3.0), name
    assert torch.equal(model.frozen, frozen)
    assert torch.equal(model.table, table)
    assert model.tied is model.conv.bias


def test_without_buffers_statistics_stay_where_they_are():
    model = Mixed()
    address = model.norm.running_mean.data_ptr()
    replica = flatten(model, buffers=False)
    assert model.norm.running_mean.data_ptr() == address
    assert all(slot.is_parameter for slot in replica.slots)


def test_released_model_is_an_ordinary_one():
    model = Mixed()
    replica = flatten(model)
    value = model.conv.weight.detach().clone()
    replica.release()
    for flat in replica.flats:
        flat.zero_()
    assert torch.equal(model.conv.weight, value)
    assert model.conv.weight.is_contiguous(memory_format=torch.channels_last)
    assert model.conv.weight.untyped_storage().nbytes() == value.nbytes
    assert torch.equal(copy.deepcopy(model).conv.weight, value)
    assert torch.equal(pickle.loads(pickle.dumps(model)).conv.weight, value)


def test_parameters_tied_by_memory_stay_tied():
    model = nn.Module()
    model.first = nn.Parameter(torch.arange(6.0))
    model.second = nn.Parameter(model.first.data)
    replica = flatten(model)
    with torch.no_grad():
        model.first.add_(1)
    assert torch.equal(model.first, model.second)
    replica.release()
    with torch.no_grad():
        model.first.add_(1)
    assert torch.equal(model.first, model.second)
    assert torch.equal(model.first, torch.arange(6.0) + 2)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: nn.Linear(2, 2).requires_grad_(False), "no trainable parameter"),
        (lambda: nn.ParameterList([torch.zeros(2, dtype=torch.complex64)]), "only floating-point"),
        (lambda: nn.LazyLinear(3), "no shape yet"),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_what_cannot_be_averaged_is_refused(make, says):
    with pytest.raises(BadInput, match=says):
        flatten(make())


def test_a_tensor_that_was_replaced_is_noticed():
    model = Mixed()
    replica = flatten(model)
    replica.check(model)
    model.norm.running_mean = model.norm.running_mean * 0.9
    with pytest.raises(OffbeatError, match=r"buffer 'norm\.running_mean' was replaced"):
        replica.check(model)

    model = Mixed()
    replica = flatten(model)
    model.wide.data = model.wide.data * 2
    with pytest.raises(OffbeatError, match="parameter 'wide' was replaced"):
        replica.check(model)


def test_description_tells_models_apart():
    same = [flatten(nn.Linear(3, 4)).describe() for _ in range(2)]
    assert same[0] == same[1]
    assert "2 tensors of 16 numbers" in same[0]
    assert flatten(nn.Linear(4, 3)).describe() != same[0]
    assert flatten(nn.Linear(3, 4).double()).describe() != same[0]


@pytest.mark.parametrize("size", [1, CHUNK, 2 * CHUNK + 5])
def test_add_difference(size):
    x, plus, minus = torch.randn(3, size).unbind()
    expected = x + plus - minus
    add_difference_(x, plus, minus)
    torch.testing.assert_close(x, expected, rtol=0, atol=1e-6)


def test_consensus_distance():
    replicas = [flatten(nn.Linear(3, 1, bias=False)) for _ in range(2)]
    for value, replica in enumerate(replicas):
        replica.flats[0][:3] = 2.0 * value
    assert consensus_distance(replicas) == pytest.approx(3**0.5)


def test_the_smallest_tensors_are_set_apart_and_neighbours_stay_together() -> None:
    replica = flatten(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Linear(40, 30), nn.Linear(30, 2)))
    small, rest = replica.set_apart(4 * (8 * 16 + 32 + 64))  # all but the weights of the first linear layer
    assert [len(piece) for piece in rest.flats] == [1200]
    assert [len(piece) for piece in small] == [32 + 3 * 16, 32 + 64 + 16 + 2 * 16]
    pieces = sorted([*small, *rest.flats], key=lambda piece: piece.data_ptr())
    assert torch.equal(torch.cat(pieces), replica.flats[0])
    nothing, all_of_it = replica.set_apart(63)
    assert nothing == ()
    assert all_of_it is replica


def test_parameters_apart_from_buffers_keep_their_tensors() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(20))
            self.empty = nn.Parameter(torch.zeros(0, dtype=torch.float64))  # alone of its dtype
            self.register_buffer("mean", torch.full((5,), 2.0))
            self.register_buffer("wide", torch.full((2,), 3.0, dtype=torch.bfloat16))

    replica = flatten(Mixed())
    parameters, buffers = replica.apart_from_buffers()
    assert [slot.name for slot in parameters.slots] == ["first", "second"]
    assert parameters.numbers == 23
    small, rest = parameters.set_apart(16 * 4)
    assert [len(piece) for piece in (*small, *rest.flats)] == [16, 32], "each starts on a cache line of its own"
    assert sorted(float(buffer[0]) for buffer in buffers) == [2.0, 3.0]
    buffers[0].fill_(7.0)
    assert any(bool((flat == 7.0).any()) for flat in replica.flats), "views"


@pytest.mark.parametrize("count", [1, 2, 3, 7, 100])
def test_fragments_cover_x_once_and_evenly(count: int) -> None:
    flats = (torch.arange(1000.0), torch.arange(700.0).double())
    fragments = Replica(flats).fragments(count)
    assert len(fragments) == count
    for dtype, flat in zip((torch.float32, torch.float64), flats, strict=True):
        pieces = [piece for fragment in fragments for piece in fragment if piece.dtype == dtype]
        assert torch.equal(torch.cat(pieces), flat)
        assert all(piece.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr() for piece in pieces)
    sizes = [sum(piece.nbytes for piece in fragment) for fragment in fragments]
    assert max(sizes) - min(sizes) <= 2 * 16 * 8


def test_padding_does_not_count_as_numbers() -> None:
    replica = flatten(nn.Linear(2, 1))
    assert replica.numbers == 3
    with pytest.raises(BadInput, match="fragments=4 does not fit: x has 3 numbers, so use that or fewer"):
        replica.fragments(4)
