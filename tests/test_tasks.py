"""Tasks: samples, accuracy, every data source through real files, and the user's own file."""

import gzip
import json
import pickle
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import run_here
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from offbeat.errors import BadInput
from offbeat.train.data import idx
from offbeat.train.data.cifar10 import MEAN, STD, TEST_FILES, TRAIN_FILES, cifar10
from offbeat.train.data.digits import digits
from offbeat.train.data.idx import fashion_mnist, mnist
from offbeat.train.data.synthetic import synthetic
from offbeat.train.data.text import VOCABULARY, WINDOW, encode, text
from offbeat.train.shards import Shard
from offbeat.train.task import Samples, Task, correct, cross_entropy, evaluate
from offbeat.train.tasks import RECIPES, load_task

# Samples, accuracy, evaluation


class Pairs(Dataset[Any]):
    """A map-style dataset of whatever it is given."""

    def __init__(self, *pairs: object) -> None:
        self.pairs = pairs

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> object:
        return self.pairs[index]


@given(shape=st.lists(st.integers(1, 4), min_size=1, max_size=3))
def test_batch_takes_indices_of_any_shape(shape: list[int]) -> None:
    samples = Samples(inputs=torch.randn(6, 2, 3), targets=torch.arange(6))
    indices = torch.randint(6, shape)
    inputs, targets = samples.batch(indices)
    assert inputs.shape == (*shape, 2, 3)
    assert torch.equal(targets, indices)
    first = tuple(0 for _ in shape)
    assert torch.equal(inputs[first], samples.inputs[indices[first]])


def test_uint8_images_are_normalised_per_channel_in_the_batch() -> None:
    images = torch.randint(256, (5, 3, 4, 4), dtype=torch.uint8)
    samples = Samples(inputs=images, targets=torch.zeros(5, dtype=torch.uint8), mean=(0.1, 0.2, 0.3), std=(1, 2, 4))
    inputs, targets = samples.batch(torch.tensor([[0, 4], [2, 2]]))
    expected = images[4, 2].float() / 255
    torch.testing.assert_close(inputs[0, 1, 2], (expected - 0.3) / 4)
    assert samples.inputs.dtype == torch.uint8
    assert targets.dtype == torch.int64
    plain, _ = Samples(inputs=images, targets=torch.zeros(5)).batch(torch.tensor([4]))
    torch.testing.assert_close(plain[0, 2], expected)


@pytest.mark.parametrize(
    ("inputs", "targets", "mean"),
    [
        (torch.zeros(3, 1), torch.zeros(2), ()),
        (torch.zeros(0, 1), torch.zeros(0), ()),
        (torch.zeros(2, 1), torch.zeros(2), (0.5,)),
        (torch.zeros(2, 3, 1, 1, dtype=torch.uint8), torch.zeros(2), (0.5, 0.5)),
    ],
)
def test_samples_that_do_not_fit_are_refused(inputs: Tensor, targets: Tensor, mean: tuple[float, ...]) -> None:
    with pytest.raises(BadInput):
        Samples(inputs=inputs, targets=targets, mean=mean, std=mean)


def test_samples_of_datasets() -> None:
    inputs, targets = torch.randn(4, 2), torch.arange(4)
    fast = Samples.of(TensorDataset(inputs, targets))
    assert fast.inputs is inputs
    slow = Samples.of(Pairs(*[(inputs[i], i) for i in range(4)]))
    assert torch.equal(slow.inputs, inputs)
    assert torch.equal(slow.targets, targets)
    tensors = Samples.of(Pairs(*[(inputs[i], inputs[i] * 2) for i in range(4)]))
    assert torch.equal(tensors.targets, inputs * 2)


class Stream(IterableDataset[Any]):
    """A dataset without a length."""

    def __iter__(self) -> Iterator[Any]:
        return iter(())


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (Pairs(), "empty"),
        (Pairs(("image", 3)), r"sample 0 of Pairs is \(str, int\)"),
        (Pairs(torch.zeros(2)), "sample 0 of Pairs is Tensor"),
        (Pairs((torch.zeros(2), 0), (torch.zeros(3), 0)), "differ in shape"),
        (TensorDataset(torch.zeros(2)), "1 tensors"),
        (Stream(), "map-style"),
    ],
)
def test_samples_of_other_things_are_refused(dataset: Dataset[Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        Samples.of(dataset)


def test_correct_counts_classes_and_sequences() -> None:
    assert correct(torch.tensor([[1.0, 2.0], [3.0, 0.0]]), torch.tensor([1, 1])) == (1, 2)
    targets = torch.randint(5, (3, 4))
    assert correct(nn.functional.one_hot(targets, 5).float(), targets) == (12, 12)


@pytest.mark.parametrize(
    ("outputs", "targets"),
    [
        (torch.zeros(4, 2), torch.zeros(4)),
        (torch.zeros(4, 1), torch.zeros(4, dtype=torch.long)),
        (torch.zeros(()), torch.zeros(4, dtype=torch.long)),
        (torch.zeros(4, 3, 2), torch.zeros(4, dtype=torch.long)),
    ],
)
def test_what_is_no_scores_of_classes_has_no_accuracy(outputs: Tensor, targets: Tensor) -> None:
    assert correct(outputs, targets) is None


def test_evaluate_weighs_batches_by_size_and_restores_modes() -> None:
    task = load_task("digits", seed=0)
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Dropout(), nn.Linear(64, 10))
    model[1].eval()  # frozen by the user
    accuracy, loss = evaluate(model, task, batch=7)
    assert [module.training for module in model] == [True, False, True, True]
    assert all(parameter.grad is None for parameter in model.parameters())
    model.eval()
    outputs = model(task.test.inputs)
    assert loss == pytest.approx(cross_entropy(outputs, task.test.targets).item(), rel=1e-5)
    assert accuracy == correct(outputs, task.test.targets)[0] / 360


@pytest.mark.parametrize(("batch", "epochs"), [(0, 1), (1, 0)])
def test_task_refuses_empty_batches_and_no_epochs(batch: int, epochs: int) -> None:
    part = Samples(inputs=torch.zeros(1), targets=torch.zeros(1))
    with pytest.raises(BadInput, match="at least 1"):
        Task(
            name="none", model=nn.Identity, optimizer=torch.optim.SGD, loss=cross_entropy,
            train=part, test=part, batch=batch, epochs=epochs,
        )  # fmt: skip


# digits and synthetic


def test_digits_are_split_and_normalised() -> None:
    parts = digits()
    assert (len(parts.train), len(parts.test), parts.classes) == (1437, 360, 10)
    assert parts.train.inputs.shape == (1437, 1, 8, 8)
    assert parts.train.inputs.mean().item() == pytest.approx(0, abs=1e-5)
    assert parts.train.inputs.std().item() == pytest.approx(1, abs=1e-5)
    assert torch.equal(digits().test.targets, parts.test.targets)
    assert parts.test.targets.bincount().min() > 20


def test_digits_learns_with_four_workers_averaged_every_eight_steps() -> None:
    task = load_task("digits", seed=0)
    models = []
    for _ in range(4):
        torch.manual_seed(0)
        models.append(task.model())
    optimizers = [task.optimizer(model.parameters()) for model in models]
    shards = [Shard(samples=1437, rank=r, workers=4, batch=task.batch, seed=0) for r in range(4)]
    for step in range(15 * shards[0].steps_per_epoch):  # of 40 epochs by default
        for model, optimizer, shard in zip(models, optimizers, shards, strict=True):
            inputs, targets = task.train.batch(shard.indices(step))
            optimizer.zero_grad()
            task.loss(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        if step % 8 == 7:
            with torch.no_grad():
                for replicas in zip(*(model.parameters() for model in models), strict=True):
                    mean = torch.stack(list(replicas)).mean(0)
                    for replica in replicas:
                        replica.copy_(mean)
    accuracy, _ = evaluate(models[0], task)
    assert accuracy >= 0.96


def test_synthetic_follows_its_seed_and_sizes() -> None:
    parts = synthetic(seed=1, train=50, test=20, features=8, classes=3)
    again = synthetic(seed=1, train=50, test=20, features=8, classes=3)
    assert (parts.train.inputs.shape, len(parts.test), parts.classes) == ((50, 8), 20, 3)
    assert torch.equal(parts.train.targets, again.train.targets)
    assert not torch.equal(parts.train.inputs, synthetic(seed=2, train=50, features=8).train.inputs)
    assert synthetic(seed=0).train.targets.bincount(minlength=10).min() > 100


# idx files


def write_idx(path: Path, values: Tensor, magic: int | None = None) -> None:
    header = struct.pack(f">{1 + values.dim()}I", 0x0800 + values.dim() if magic is None else magic, *values.shape)
    content = header + values.numpy().tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def write_mnist(folder: Path, suffix: str = "") -> tuple[Tensor, Tensor]:
    """The four files, 6 train and 4 test images; returns the train part."""
    folder.mkdir(parents=True, exist_ok=True)
    images = torch.randint(256, (10, 28, 28), dtype=torch.uint8)
    labels = torch.randint(10, (10,), dtype=torch.uint8)
    for part, rows in (("train", slice(6)), ("t10k", slice(6, 10))):
        write_idx(folder / f"{part}-images-idx3-ubyte{suffix}", images[rows])
        write_idx(folder / f"{part}-labels-idx1-ubyte{suffix}", labels[rows])
    return images[:6], labels[:6]


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("folder", ["", "mnist", "MNIST/raw"])
def test_idx_round_trip(tmp_path: Path, suffix: str, folder: str) -> None:
    images, labels = write_mnist(tmp_path / folder, suffix)
    parts = mnist(tmp_path)
    assert torch.equal(parts.train.inputs.squeeze(1), images)
    assert torch.equal(parts.train.targets, labels.long())
    assert parts.test.inputs.shape == (4, 1, 28, 28)
    inputs, _ = parts.train.batch(torch.tensor([0]))
    torch.testing.assert_close(inputs[0, 0], (images[0].float() / 255 - 0.1307) / 0.3081)


def test_fashion_mnist_is_found_where_debian_puts_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(idx, "DEBIAN_FASHION_MNIST", tmp_path / "debian")
    images, _ = write_mnist(tmp_path / "debian", ".gz")
    assert torch.equal(fashion_mnist().train.inputs.squeeze(1), images)
    with pytest.raises(BadInput, match=r"elsewhere.*apt-get install dataset-fashion-mnist"):
        fashion_mnist(tmp_path / "elsewhere")  # a folder that was named is not silently replaced


def test_missing_idx_file(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"no train-images-idx3-ubyte or .*--data DIR") as caught:
        mnist(tmp_path)
    assert str(tmp_path) in str(caught.value)
    write_mnist(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(BadInput, match="t10k-labels-idx1-ubyte"):
        mnist(tmp_path)


def test_truncated_idx_file(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    whole = 16 + 6 * 28 * 28
    with pytest.raises(BadInput, match=rf"ubyte holds {whole - 1} bytes where {whole} were expected"):
        mnist(tmp_path)
    path.write_bytes(b"\0\0\x08")
    with pytest.raises(BadInput, match="holds 3 bytes, fewer than the 16 of its header"):
        mnist(tmp_path)


def test_damaged_gzip(tmp_path: Path) -> None:
    write_mnist(tmp_path, ".gz")
    path = tmp_path / "train-images-idx3-ubyte.gz"
    packed = path.read_bytes()
    for content in (packed[:-9], b"not gzip", packed[:20] + bytes(100) + packed[120:]):
        path.write_bytes(content)
        with pytest.raises(BadInput, match=r"train-images-idx3-ubyte\.gz .*--data DIR"):
            mnist(tmp_path)


def test_idx_with_bad_magic_labels_or_counts(tmp_path: Path) -> None:
    images, labels = write_mnist(tmp_path)
    images_path, labels_path = (tmp_path / f"train-{name}-ubyte" for name in ("images-idx3", "labels-idx1"))
    write_idx(images_path, images, magic=0x0D03)
    with pytest.raises(BadInput, match=r"begins with 0x00000d03 where .* begins with 0x00000803"):
        mnist(tmp_path)
    write_idx(images_path, images)
    write_idx(labels_path, labels[:5])
    with pytest.raises(BadInput, match="holds 5 labels for 6 images"):
        mnist(tmp_path)
    write_idx(labels_path, labels.fill_(10))
    with pytest.raises(BadInput, match="holds the label 10 where 0 to 9"):
        mnist(tmp_path)
    write_idx(images_path, images[:0])
    with pytest.raises(BadInput, match="holds no data"):
        mnist(tmp_path)


# cifar10


def write_cifar(folder: Path, records: int = 3) -> Tensor:
    """Six files; returns all records [6 * records, 3073]."""
    folder.mkdir(parents=True, exist_ok=True)
    table = torch.randint(256, (6 * records, 3073), dtype=torch.uint8)
    table[:, 0] %= 10
    for name, rows in zip((*TRAIN_FILES, *TEST_FILES), table.split(records), strict=True):  # type: ignore[no-untyped-call]
        (folder / name).write_bytes(rows.numpy().tobytes())
    return table


@pytest.mark.parametrize("folder", ["", "cifar-10-batches-bin"])
def test_cifar_round_trip(tmp_path: Path, folder: str) -> None:
    table = write_cifar(tmp_path / folder)
    parts = cifar10(tmp_path, records_per_file=3)
    assert torch.equal(parts.train.inputs.flatten(1), table[:15, 1:])
    assert torch.equal(parts.train.targets, table[:15, 0].long())
    assert torch.equal(parts.test.targets, table[15:, 0].long())
    inputs, _ = parts.test.batch(torch.tensor([2]))
    blue = table[17, 1 + 2 * 1024 :].view(32, 32).float() / 255
    torch.testing.assert_close(inputs[0, 2], (blue - MEAN[2]) / STD[2])


def test_bad_cifar_files(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"no data_batch_1\.bin in .*--data DIR"):
        load_task("cifar10", data=tmp_path, seed=0)
    write_cifar(tmp_path)
    with pytest.raises(BadInput, match=r"data_batch_1\.bin holds 9219 bytes where 30730000 were expected"):
        load_task("cifar10", data=tmp_path, seed=0)
    path = tmp_path / "data_batch_3.bin"
    path.write_bytes(b"\x0a" + path.read_bytes()[1:])
    with pytest.raises(BadInput, match=r"data_batch_3\.bin holds the label 10"):
        cifar10(tmp_path, records_per_file=3)
    path.unlink()
    with pytest.raises(BadInput, match=r"data_batch_3\.bin cannot be read"):
        cifar10(tmp_path, records_per_file=3)


# text


def test_text_windows_are_shifted_by_one(tmp_path: Path) -> None:
    corpus = "".join(chr(97 + i * i % 23) for i in range(2000))
    (tmp_path / "corpus.txt").write_text(corpus)
    parts = text(tmp_path / "corpus.txt")
    tokens, vocabulary = encode(corpus)
    assert parts.classes == vocabulary == len(set(corpus)) + 1
    assert (len(parts.train), len(parts.test)) == (1799 // WINDOW, 199 // WINDOW)
    assert torch.equal(parts.train.inputs.flatten(), tokens[: 28 * WINDOW])
    assert torch.equal(parts.train.targets.flatten(), tokens[1 : 28 * WINDOW + 1])
    assert torch.equal(parts.test.inputs[0], tokens[1800 : 1800 + WINDOW])


def test_rare_characters_share_number_0() -> None:
    common = "".join(chr(0x4E00 + i) for i in range(VOCABULARY - 1))
    tokens, vocabulary = encode(common * 2 + "xy" + common[0])
    assert vocabulary == VOCABULARY
    assert tokens[-3:].tolist() == [0, 0, 1]
    assert tokens[:-3].min() == 1


def test_text_of_a_folder_is_read_in_order_and_capped(tmp_path: Path) -> None:
    for name in ("b.md", "a.txt", "c.bin"):
        (tmp_path / name).write_text(name[0] * 1000)
    parts = text(tmp_path, characters=1500)
    inputs = parts.train.inputs.flatten()
    assert parts.classes == 3
    assert inputs[:1000].tolist() == [1] * 1000
    assert set(inputs[1000:].tolist()) == {2}


def test_the_standard_library_is_the_default_text() -> None:
    parts = text(characters=100_000)
    assert len(parts.train) == (90_000 - 1) // WINDOW
    assert parts.classes <= VOCABULARY
    assert torch.equal(parts.train.inputs, text(characters=100_000).train.inputs)


def test_bad_text(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no text files"):
        text(tmp_path)
    with pytest.raises(BadInput, match="cannot be read"):
        text(tmp_path / "none.txt")
    (tmp_path / "short.txt").write_text("x" * 640)
    with pytest.raises(BadInput, match=r"short\.txt holds 640 characters, too few"):
        text(tmp_path / "short.txt")


# load_task


def test_task_models_follow_the_seed_and_tasks_can_be_sent_to_workers() -> None:
    task = load_task("synthetic", seed=3)
    sent = pickle.loads(pickle.dumps(task))
    torch.manual_seed(5)
    first = task.model()
    torch.manual_seed(5)
    second = sent.model()
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert torch.equal(sent.train.inputs, task.train.inputs)


def test_model_and_learning_rate_can_be_replaced(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    task = load_task("mnist", data=tmp_path, model="resnet8", learning_rate=0.125, seed=0)
    model = task.model()
    assert model(task.train.batch(torch.arange(2))[0]).shape == (2, 10)
    assert task.optimizer(model.parameters()).param_groups[0]["lr"] == 0.125
    default = load_task("mnist", data=tmp_path, seed=0)
    rate = default.optimizer(model.parameters()).param_groups[0]["lr"]
    assert rate == RECIPES["mnist"].learning_rate


def test_gpt_learns_text(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("the same words again and " * 200)
    task = load_task("text", data=tmp_path / "corpus.txt", seed=0)
    torch.manual_seed(0)
    model = task.model()
    optimizer = task.optimizer(model.parameters())
    assert isinstance(optimizer, torch.optim.AdamW)
    shard = Shard(samples=len(task.train), rank=0, workers=1, batch=8, seed=0)
    for step in range(60):
        inputs, targets = task.train.batch(shard.indices(step))
        optimizer.zero_grad()
        task.loss(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    accuracy, loss = evaluate(model, task)
    assert accuracy is not None
    assert accuracy > 0.8
    assert loss < 1


@pytest.mark.parametrize(
    ("name", "model", "rate", "message"),
    [
        ("digit", None, None, r"no task 'digit': did you mean 'digits'\?"),
        ("digits", "mpl", None, r"no model 'mpl': did you mean 'mlp'\?"),
        ("digits", "gpt", None, "model gpt does not fit task digits"),
        ("text", "mlp", None, "model mlp does not fit task text"),
        ("synthetic", "cnn", None, r"model cnn reads images .* \(32,\)"),
        ("digits", None, 0.0, "learning rate 0.0 must be"),
        ("digits", None, float("nan"), "learning rate nan must be"),
        ("own.py:make", "cnn", None, "own.py:make brings its own"),
        ("own.py", None, None, "'own.py' names no function of a file"),
    ],
)
def test_bad_choices(name: str, model: str | None, rate: float | None, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        load_task(name, model=model, learning_rate=rate, seed=0)


def test_data_for_a_task_without_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="digits reads no files"):
        load_task("digits", data=tmp_path, seed=0)


# The user's own file

OWN = """
from dataclasses import dataclass

import torch
from beside import CLASSES, FEATURES
from offbeat.train.task import Samples, Task, cross_entropy


@dataclass
class Config:
    hidden: "int" = 3


def make():
    from beside import LATE  # the folder is importable while the function runs, too

    part = Samples(inputs=torch.randn(8, FEATURES), targets=torch.zeros(8).long())
    return Task(
        name="own", model=lambda: torch.nn.Linear(FEATURES, CLASSES), loss=cross_entropy,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1), train=part, test=part,
    )


def regression():
    inputs = torch.randn(32, FEATURES)
    part = Samples(inputs=inputs, targets=inputs.sum(1, keepdim=True))
    return Task(
        name="regression", model=lambda: torch.nn.Linear(FEATURES, 1), loss=torch.nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1), train=part, test=part,
    )


def fails():
    raise RuntimeError("no\\n  luck")


def leaves():
    raise SystemExit(3)


def returns_other():
    return {"name": "own"}


def needs(argument):
    return argument


NUMBER = 3
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "beside.py").write_text("CLASSES, FEATURES, LATE = 2, 5, 0\n")
    monkeypatch.delitem(sys.modules, "beside", raising=False)
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path / "own.py"


def test_own_task_is_loaded_and_leaves_the_path_alone(own: Path) -> None:
    before = list(sys.path)
    task = load_task(f"{own}:make", seed=0)
    assert task.name == "own"
    assert task.model()(task.train.inputs).shape == (8, 2)
    assert sys.path == before


def test_a_task_without_classes_ends_with_a_loss_and_no_accuracy(own: Path, tmp_path: Path) -> None:
    out, file = tmp_path / "out", tmp_path / "result.json"
    flags = f"--task {own}:regression --steps 40 --batch 8 --json {file} --out {out}"
    run_here(["simulate", *flags.split()], tmp_path)
    record = json.loads(file.read_text())
    assert record["accuracy"] is None
    assert record["loss"] < 0.1
    assert json.loads((out / "result.json").read_text()) == record
    assert {"model.safetensors", "summary.png"} <= {path.name for path in out.iterdir()}


def test_own_task_is_found_by_relative_path(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(own.parent)
    assert load_task("own.py:make", seed=0).name == "own"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("mke", r"own\.py has no function 'mke'"),
        ("NUMBER", r"own\.py has no function 'NUMBER'"),
        ("fails", r"fails\(\) of .*own\.py raised RuntimeError: no luck:"),
        ("leaves", r"leaves\(\) of .*own\.py raised SystemExit: 3:"),
        ("returns_other", r"returns_other\(\) of .*own\.py returned dict"),
        ("needs", r"needs\(\) of .*own\.py raised TypeError: .*'argument'"),
        ("", "names no function"),
    ],
)
def test_mistakes_in_the_own_function(own: Path, function: str, message: str) -> None:
    before = list(sys.path)
    with pytest.raises(BadInput, match=message) as caught:
        load_task(f"{own}:{function}", seed=0)
    assert "\n" not in str(caught.value)
    assert sys.path == before


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import nowhere_to_be_found", r"own\.py raised ModuleNotFoundError: .*nowhere_to_be_found"),
        ("def make(:", r"own\.py raised SyntaxError: .*line 1"),
        ("1 / 0", r"own\.py raised ZeroDivisionError: division by zero"),
    ],
)
def test_mistakes_in_the_own_file(own: Path, source: str, message: str) -> None:
    own.write_text(source)
    with pytest.raises(BadInput, match=message):
        load_task(f"{own}:make", seed=0)
    assert not any(str(own) in name for name in sys.modules)


def test_no_such_own_file(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"no Python file .*none\.py"):
        load_task(f"{tmp_path}/none.py:make", seed=0)
