"""`offbeat.attach` around ordinary loops, in real processes: what comes out, and that nothing ever hangs.

Worker functions stand first: they run in the workers. References are written out in plain loops over all ranks.
"""

import copy
import io
import os
import pickle
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_model, save_file, save_model
from torch import nn
from workers import run_to_exit, run_workers

import offbeat
from offbeat.errors import BadInput, LostPeer, OffbeatError
from offbeat.layout import Layout

ALL = [
    "none",
    "ddp",
    "local_sgd:every=2",
    "local_sgd:every=1,warmup_steps=2",
    "lasgd",
    "lasgd:every=4,delay=2",
    "gossip",
]
LR = 0.05


# -- what the workers run ---------------------------------------------------------------------------------------------


def mlp(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def loss_of(model, rank, step):
    generator = torch.Generator().manual_seed(1000 * rank + step)
    inputs, targets = (torch.randn(5, size, generator=generator, dtype=torch.float64) for size in (6, 3))
    return (model(inputs) - targets).square().mean()


def own_rank():
    return int(os.environ["RANK"])


def values(model):
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def train(strategy, steps, *, skips=(), accumulate=1, momentum=0.0, weight_decay=0.0, gamma=1.0, seconds=()):
    """Rank r makes `steps[r]` steps, less those where (r, step) is in `skips`, and sleeps `seconds[r]` in each."""
    rank = own_rank()
    model = mlp(seed=rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=momentum, weight_decay=weight_decay)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma)
    with offbeat.attach(model, optimizer, strategy) as run:
        for step in range(steps[rank]):
            time.sleep(seconds[rank] if seconds else 0.0)
            optimizer.zero_grad()
            for micro in range(accumulate):
                (loss_of(model, rank, step * accumulate + micro) / accumulate).backward()
            if (rank, step) not in skips:
                optimizer.step()
            if gamma != 1.0:
                scheduler.step()
    assert not dist.is_initialized()
    return {"values": values(model), "steps": run.step, "report": run.strategy.report()}


class Zoo(nn.Module):
    """All that is special in one model."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.conv = nn.Conv2d(3, 4, 3, padding=1).to(memory_format=torch.channels_last)
        self.norm = nn.BatchNorm2d(4)
        self.embed = nn.Linear(4, 4, bias=False)
        self.out = nn.Linear(4, 4, bias=False)
        self.out.weight = self.embed.weight
        self.wide = nn.Parameter(torch.randn(4, dtype=torch.float64))
        self.narrow = nn.Parameter(torch.randn(4).bfloat16())
        self.frozen = nn.Parameter(torch.full((5,), float(seed)), requires_grad=False)
        self.register_buffer("table", torch.full((2,), seed))

    def forward(self, x, *, scale=1.0):
        x = self.norm(self.conv(x)).mean((2, 3))
        x = self.out(torch.tanh(self.embed(x)))
        return (x * scale + self.wide.float() + self.narrow.float() + self.frozen[0]).square().mean()


def train_zoo(strategy):
    rank = own_rank()
    model = Zoo(seed=rank)
    start = values(model)
    groups = [{"params": [*model.conv.parameters(), model.wide, model.frozen], "lr": 0.02}]
    groups.append({"params": [*model.norm.parameters(), *model.embed.parameters(), model.narrow], "lr": 0.2})
    optimizer = torch.optim.Adam(groups)
    kept = dict(model.named_parameters()), type(model), set(model.__dict__), model.conv.weight.stride()
    with offbeat.attach(model, optimizer, strategy):
        begun = values(model)
        for step in range(3 + rank):
            model.train()
            torch.manual_seed(10 * rank + step)
            optimizer.zero_grad()
            model(torch.randn(4, 3, 5, 5), scale=0.5).backward()
            optimizer.step()
            model.eval()
            model(torch.randn(2, 3, 5, 5))  # an evaluation, with gradients and without, between the steps
            with torch.no_grad():
                model(torch.randn(2, 3, 5, 5))
            average = copy.deepcopy(model)  # as a moving average of the weights does
            average(torch.randn(2, 3, 5, 5))
    assert all(parameter is kept[0][name] for name, parameter in model.named_parameters())
    assert type(model) is kept[1]
    assert set(model.__dict__) == kept[2]
    assert model.conv.weight.stride() == kept[3]
    assert model.out.weight is model.embed.weight
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    assert {g["lr"] for g in optimizer.param_groups} == {0.02, 0.2}
    return start, begun, values(model)


def leave_as_found(strategy, folder):
    """After the block model and optimizer are ordinary ones, and can be attached again."""
    model = mlp(seed=own_rank())
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    loss_of(model, 0, 0).backward()
    optimizer.step()
    momentum = optimizer.state[model[0].weight]["momentum_buffer"]
    used = momentum.clone()
    with offbeat.attach(model, optimizer, strategy) as run:
        assert optimizer.state[model[0].weight]["momentum_buffer"] is momentum
        assert torch.equal(momentum, used)
        for step in range(4):
            optimizer.zero_grad()
            loss_of(model, own_rank(), step).backward()
            optimizer.step()
        file = Path(folder, f"inside-{own_rank()}")
        save_file(model.state_dict(), str(file))
        state = run.state_dict()
        run.load_state_dict(state)
    assert state["step"] == 4

    kept = values(model)
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert all(torch.equal(a, b) for a, b in zip(values(again).values(), kept.values(), strict=True))
    file = Path(folder, f"model-{own_rank()}")
    save_model(model, str(file))
    other = mlp(seed=9)
    load_model(other, str(file))
    assert all(torch.equal(a, b) for a, b in zip(values(other).values(), kept.values(), strict=True))
    torch.save(model.state_dict(), saved := io.BytesIO())
    assert len(saved.getvalue()) < 8000

    before = run.step, len(run.trace.events)
    if own_rank() == 0:  # alone: had a hook stayed, this would hang
        loss_of(model, 0, 0).backward()
        optimizer.step()
    assert (run.step, len(run.trace.events)) == before

    with offbeat.attach(model, optimizer, strategy) as second:
        for step in range(own_rank() + 1):
            loss_of(model, own_rank(), step).backward()
            optimizer.step()
    return second.step, values(model)


def attach_often():
    """Threads and file descriptors after the second round and after the fourth."""
    counts = []
    for _ in range(4):
        for strategy in ("ddp", "gossip", "lasgd"):
            train(strategy, [2, 2])
        time.sleep(0.1)
        counts.append((len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))))
    return counts[1], counts[3], [t.name for t in threading.enumerate()]


def own_process_group():
    """The script has its own process group: attach uses it and leaves it alone."""
    dist.init_process_group("gloo")
    results = []
    for strategy in ALL:
        model = mlp(seed=own_rank())
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        with offbeat.attach(model, optimizer, strategy) as run:
            for step in range(2 + own_rank()):
                optimizer.zero_grad()
                loss_of(model, own_rank(), step).backward()
                optimizer.step()
            assert run.rank == own_rank()
        total = torch.ones(1)
        dist.all_reduce(total)
        results.append((total.item(), values(model)))
    groups = len(dist.distributed_c10d._world.pg_map)
    dist.destroy_process_group()
    return results, groups


def lbfgs(strategy):
    model = mlp(seed=own_rank())
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=3)

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model, own_rank(), 0)
        loss.backward()
        return loss

    with offbeat.attach(model, optimizer, strategy):
        losses = [optimizer.step(closure).item() for _ in range(4 + 2 * own_rank())]
    return values(model), losses


def scaled(strategy):
    """torch's own GradScaler: an overflow on rank 1 makes it skip steps."""
    model = mlp(seed=0).float()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    with offbeat.attach(model, optimizer, strategy) as run:
        for step in range(9):
            optimizer.zero_grad()
            loss = loss_of(lambda x: model(x.float()), own_rank(), step)
            if own_rank() == 1 and step % 3 == 1:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    return values(model), run.step


def compiled(strategy):
    model = torch.compile(mlp(seed=own_rank()), backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    with offbeat.attach(model, optimizer, strategy):
        for step in range(4 + own_rank()):
            optimizer.zero_grad()
            loss_of(model, own_rank(), step).backward()
            optimizer.step()
    return values(model)


def refused(cases):
    """What each rank is told when it is given its own entry."""
    said = []
    for strategy, seed, layout, sizes in cases:
        rank = own_rank()
        model = nn.Linear(sizes[rank], 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        try:
            with offbeat.attach(model, optimizer, strategy[rank], seed=seed[rank], layout=layout):
                said.append("")
        except BadInput as error:
            said.append(str(error))
        assert not dist.is_initialized()
        assert model.weight.untyped_storage().nbytes() == model.weight.nbytes
    return said


def raise_on_last_rank(strategy, at):
    """What each rank sees when the last one raises after `at` steps, and how soon."""
    rank, last = own_rank(), int(os.environ["WORLD_SIZE"]) - 1
    model = mlp(seed=rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    started = time.monotonic()
    try:
        with offbeat.attach(model, optimizer, strategy):
            for step in range(8):
                if rank == last and step == at:
                    raise ZeroDivisionError("mine")
                optimizer.zero_grad()
                loss_of(model, rank, step).backward()
                optimizer.step()
    except (ZeroDivisionError, OffbeatError) as error:
        seen = f"{type(error).__name__}: {error}"
    assert not dist.is_initialized()
    assert not model._forward_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert model[0].weight.untyped_storage().nbytes() == model[0].weight.nbytes
    return seen, time.monotonic() - started


def raise_in_flight():
    """Rank 1 raises with its average in flight, while rank 0 computes on for seconds."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    with offbeat.attach(model, optimizer, "lasgd"):
        for step in range(4):
            if own_rank() == 0 and step == 1:
                time.sleep(6)
            loss_of(model, own_rank(), step).backward()
            optimizer.step()
            if own_rank() == 1 and step == 1:
                print(f"raised at {time.monotonic()}", file=sys.stderr)
                raise ZeroDivisionError("mine")


def die_in_training():
    """Rank 1 is gone without a word, while rank 0 waits for it in backward."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    with offbeat.attach(model, optimizer, "ddp"):
        for step in range(4):
            if own_rank() == 1 and step == 2:
                time.sleep(0.5)
                os._exit(9)
            loss_of(model, own_rank(), step).backward()
            optimizer.step()


# -- references -------------------------------------------------------------------------------------------------------


def start_of(workers):
    return [copy.deepcopy(mlp(seed=0)) for _ in range(workers)]  # rank 0's, everywhere


def mean_of(models):
    tensors = [list(model.parameters()) for model in models]
    return [torch.stack(same).mean(0) for same in zip(*tensors, strict=True)]


def set_to(model, tensors):
    for parameter, tensor in zip(model.parameters(), tensors, strict=True):
        parameter.copy_(tensor)


def synchronous(steps, *, momentum=0.0, weight_decay=0.0, gamma=1.0, accumulate=1):
    """One process, the mean of the losses of all ranks that still have data."""
    model = mlp(seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=momentum, weight_decay=weight_decay)
    for step in range(max(steps)):
        optimizer.zero_grad()
        ranks = [rank for rank, count in enumerate(steps) if step < count]
        micros = range(step * accumulate, (step + 1) * accumulate)
        (sum(loss_of(model, rank, m) for rank in ranks for m in micros) / len(ranks) / accumulate).backward()
        optimizer.step()
        optimizer.param_groups[0]["lr"] *= gamma
    return values(model)


def local_step(model, rank, step):
    grads = torch.autograd.grad(loss_of(model, rank, step), list(model.parameters()))
    with torch.no_grad():
        for parameter, gradient in zip(model.parameters(), grads, strict=True):
            parameter.sub_(LR * gradient)


@torch.no_grad()
def local_sgd(workers, steps, every):
    models = start_of(workers)
    for step in range(1, steps + 1):
        for rank, model in enumerate(models):
            with torch.enable_grad():
                local_step(model, rank, step - 1)
        if step % every == 0 or step == steps:
            mean = mean_of(models)
            for model in models:
                set_to(model, mean)
    return values(models[0])


@torch.no_grad()
def lasgd(workers, steps, every, delay):
    models, in_flight, sent_at = start_of(workers), None, 0
    for step in range(1, steps + 1):
        for rank, model in enumerate(models):
            with torch.enable_grad():
                local_step(model, rank, step - 1)
        if in_flight and step - sent_at >= delay:
            in_flight = merge(models, in_flight)
        if not in_flight and step - sent_at >= every:
            in_flight, sent_at = [[p.clone() for p in model.parameters()] for model in models], step
            if delay == 0:
                in_flight = merge(models, in_flight)
    if in_flight:
        merge(models, in_flight)
    set_to(models[0], mean_of(models))
    return values(models[0])


def merge(models, sent):
    mean = [torch.stack(same).mean(0) for same in zip(*sent, strict=True)]
    for model, snapshot in zip(models, sent, strict=True):
        set_to(model, [p + m - s for p, m, s in zip(model.parameters(), mean, snapshot, strict=True)])


def assert_close(found, expected, tolerance=1e-12):
    assert found.keys() == expected.keys()
    for name in found:
        torch.testing.assert_close(found[name], expected[name], rtol=tolerance, atol=tolerance, msg=name)


def assert_equal_on_all_ranks(states, tolerance=0.0):
    for state in states[1:]:
        assert_close(state, states[0], tolerance)


# -- against the references -------------------------------------------------------------------------------------------


def test_ddp_is_sgd_on_the_whole_batch():
    results = run_workers(train, 3, "ddp", [6] * 3, momentum=0.9, weight_decay=0.01)
    for result in results:
        assert_close(result["values"], synchronous([6] * 3, momentum=0.9, weight_decay=0.01))
        assert result["steps"] == 6


def test_ddp_with_gradients_accumulated():
    for result in run_workers(train, 2, "ddp", [4, 4], accumulate=3, momentum=0.9):
        assert_close(result["values"], synchronous([4, 4], accumulate=3, momentum=0.9))


@pytest.mark.parametrize("steps", [[5, 3, 1], [1, 2, 6], [0, 0, 4], [0, 3, 2], [0, 0, 0]])
def test_ddp_goes_on_with_the_ranks_that_have_data(steps):
    results = run_workers(train, 3, "ddp", steps, momentum=0.9)
    for result in results:
        assert_close(result["values"], synchronous(steps, momentum=0.9))
        assert result["steps"] == max(steps)


def test_ddp_with_a_schedule_ends_where_the_ranks_with_data_do():
    for result in run_workers(train, 3, "ddp", [2, 6, 5], gamma=0.5):
        assert_close(result["values"], synchronous([2, 6, 5], gamma=0.5))


@pytest.mark.parametrize("every", [1, 3])
def test_local_sgd(every):
    for result in run_workers(train, 3, f"local_sgd:every={every}", [7] * 3):
        assert_close(result["values"], local_sgd(3, 7, every))
        if every == 1:
            assert_close(result["values"], synchronous([7] * 3))


def test_local_sgd_warms_up_as_ddp():
    for accumulate in (1, 2):
        results = run_workers(train, 2, "local_sgd:every=8,warmup_steps=6", [6, 6], accumulate=accumulate)
        for result in results:
            assert_close(result["values"], synchronous([6, 6], accumulate=accumulate))


def test_local_sgd_after_its_warmup():
    """Two synchronous steps, then local ones: the warm-up ends after the last micro-batch of its last step."""
    for result in run_workers(train, 2, "local_sgd:every=3,warmup_steps=2", [5, 5]):
        models = start_of(2)
        for model in models:
            model.load_state_dict(synchronous([2, 2]))
        for rank, model in enumerate(models):
            for step in (2, 3, 4):
                local_step(model, rank, step)
        with torch.no_grad():
            set_to(models[0], mean_of(models))
        assert_close(result["values"], values(models[0]))
        assert result["report"]["averages"] == 1


@pytest.mark.parametrize(("every", "delay"), [(1, 0), (4, 2), (3, 3), (1, 1)])
def test_lasgd(every, delay):
    for result in run_workers(train, 3, f"lasgd:every={every},delay={delay}", [11] * 3):
        assert_close(result["values"], lasgd(3, 11, every, delay))
        if delay == 0:
            assert_close(result["values"], synchronous([11] * 3))


def test_none_averages_once_at_the_end():
    for result in run_workers(train, 2, "none", [5, 5]):
        assert_close(result["values"], local_sgd(2, 5, every=5))


# -- uneven ranks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ALL)
@pytest.mark.parametrize("steps", [[7, 3, 0], [0, 1, 9]])
def test_ranks_may_end_at_different_steps(strategy, steps):
    results = run_workers(train, 3, strategy, steps, momentum=0.9, timeout_seconds=30)
    assert_equal_on_all_ranks([result["values"] for result in results], 1e-15)
    assert not torch.equal(results[0]["values"]["0.weight"], mlp(seed=0)[0].weight)


@pytest.mark.parametrize("strategy", [*ALL, "local_sgd:every=1,warmup_steps=5"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_ranks_may_skip_steps(strategy, accumulate):
    skips = {(1, 0), (1, 3), (1, 4), (2, 4)}
    results = run_workers(train, 3, strategy, [8, 8, 6], skips=skips, accumulate=accumulate, timeout_seconds=30)
    assert_equal_on_all_ranks([result["values"] for result in results], 1e-15)


@pytest.mark.parametrize("strategy", ["ddp", "lasgd", "local_sgd:every=1,warmup_steps=4"])
def test_grad_scaler(strategy):
    results = run_workers(scaled, 2, strategy)
    assert_equal_on_all_ranks([state for state, _ in results], 1e-6)
    assert all(torch.isfinite(tensor).all() for tensor in results[0][0].values())
    if strategy == "ddp":  # the overflow travels with the gradients, so both skip
        assert [steps for _, steps in results] == [6, 6]


def test_a_slow_rank_holds_nobody_up_in_lasgd():
    fast, slow = run_workers(train, 2, "lasgd", [40, 8], seconds=[0.0, 0.05])
    assert_close(fast["values"], slow["values"], 1e-15)
    assert fast["steps"] == 40


# -- all kinds of models and optimizers -------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ALL)
def test_all_that_is_special_comes_through(strategy):
    results = run_workers(train_zoo, 2, strategy)
    (first, _, _), (second, _, _) = results
    local = {"frozen", "table", "norm.num_batches_tracked"}
    for rank, (start, begun, end) in enumerate(results):
        for name in begun:
            assert torch.equal(begun[name], start[name] if name in local else first[name]), name
        assert torch.equal(end["frozen"], torch.full((5,), float(rank)))
        assert torch.equal(end["table"], torch.full((2,), rank))
        assert end["norm.num_batches_tracked"] == 3 + rank
        assert torch.equal(end["embed.weight"], end["out.weight"])
        assert [end[name].dtype for name in ("wide", "narrow")] == [torch.float64, torch.bfloat16]
        for name in {*end} - local:
            assert not torch.equal(end[name], first[name]), f"{name} was not trained"
            assert not torch.equal(end[name], second[name]), f"{name} was not trained"
    ends = [{name: end[name] for name in end if name not in local} for _, _, end in results]
    assert_equal_on_all_ranks(ends, 1e-6)


@pytest.mark.parametrize("strategy", ["ddp", "lasgd", "gossip"])
def test_optimizer_with_a_closure(strategy):
    results = run_workers(lbfgs, 2, strategy)
    assert_equal_on_all_ranks([state for state, _ in results], 1e-15)
    for _, losses in results:
        # Of lasgd the last may be higher: what L-BFGS knows of the curvature does not know of corrections.
        assert (min(losses[1:]) if strategy == "lasgd" else losses[-1]) < losses[0]


@pytest.mark.parametrize("strategy", ["ddp", "lasgd:every=2,delay=1"])
def test_compiled_model(strategy):
    states = run_workers(compiled, 2, strategy)
    assert_equal_on_all_ranks(states, 1e-15)
    if strategy == "ddp":
        plain = synchronous([4, 5])
        assert_close({name.removeprefix("_orig_mod."): tensor for name, tensor in states[0].items()}, plain)


# -- before and after -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ALL)
def test_model_and_optimizer_are_left_as_they_were_found(strategy, tmp_path):
    results = run_workers(leave_as_found, 2, strategy, str(tmp_path))
    assert_equal_on_all_ranks([state for _, state in results], 1e-15)


def test_attaching_again_and_again_leaves_nothing_behind():
    for (threads_before, files_before), (threads_after, files_after), threads in run_workers(attach_often, 2):
        assert threads_after <= threads_before
        assert files_after <= files_before
        assert threads == ["MainThread"]


def test_the_scripts_own_process_group_is_used_and_kept():
    (first, groups), (second, _) = run_workers(own_process_group, 2)
    for (total, mine), (_, theirs) in zip(first, second, strict=True):
        assert total == 2.0
        assert_close(mine, theirs, 1e-15)
    assert groups == 1


@pytest.mark.parametrize("strategy", ALL)
def test_alone_without_torchrun(strategy, monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    model = mlp(seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    with offbeat.attach(model, optimizer, strategy) as run:
        for step in range(5):
            optimizer.zero_grad()
            loss_of(model, 0, step).backward()
            optimizer.step()
    assert (run.rank, run.step, run.layout) == (0, 5, Layout((0,)))
    assert_close(values(model), synchronous([5]))
    assert not dist.is_initialized()


def test_one_worker_of_torchrun():
    (result,) = run_workers(train, 1, "ddp", [3])
    assert_close(result["values"], synchronous([3]))


# -- what cannot work -------------------------------------------------------------------------------------------------


def attach_alone(model, parameters, strategy="none", **options):
    with offbeat.attach(model, torch.optim.SGD(parameters, lr=LR), strategy, **options):
        pass


def test_bad_models_and_optimizers_are_refused():
    model, other = mlp(), mlp()
    with pytest.raises(BadInput, match="holds 4 of 8 parameters that are not in the model"):
        attach_alone(model, [*model.parameters(), *other.parameters()])
    with pytest.raises(BadInput, match="no trainable parameter"):
        attach_alone(other.requires_grad_(False), other.parameters())
    with pytest.raises(BadInput, match="did you mean 'lasgd'"):
        attach_alone(model, model.parameters(), "lasdg")
    with pytest.raises(BadInput, match="layout has 4 workers and this run has 1"):
        attach_alone(model, model.parameters(), layout=Layout.even(4))
    model.table = nn.Parameter(torch.arange(3), requires_grad=False)
    with pytest.raises(BadInput, match=r"holds a parameter of type torch\.int64"):
        attach_alone(model, model.parameters())
    attach_alone(model, [p for p in model.parameters() if p.requires_grad])
    model.spectrum = nn.Parameter(torch.zeros(3, dtype=torch.complex64))
    with pytest.raises(BadInput, match=r"'spectrum' is torch\.complex64"):
        attach_alone(model, [p for name, p in model.named_parameters() if name not in ("table", "spectrum")])


def test_ranks_that_differ_are_told():
    cases = [
        (["lasgd", "ddp"], [0, 0], None, [3, 3]),
        (["lasgd:every=2", "lasgd:every=3"], [0, 0], None, [3, 3]),
        (["gossip", "gossip"], [0, 1], None, [3, 3]),
        (["ddp", "ddp"], [0, 0], None, [3, 4]),
        (["ddp", "ddp"], [0, 0], Layout.even(3), [3, 3]),
        (["ddp", "ddp"], [0, 0], Layout.even(2, 2), [3, 3]),
    ]
    for said in run_workers(refused, 2, cases):
        assert "strategy of rank 1 is ddp(trail=0.0) and that of rank 0 lasgd(every=1, " in said[0]
        assert "lasgd(every=3" in said[1]
        assert "seed of rank 1 is 1" in said[2]
        assert "model of rank 1 is Linear with 2 tensors of 10 numbers" in said[3]
        assert "layout has 3 workers and this run has 2" in said[4]
        assert said[5] == ""


@pytest.mark.parametrize("strategy", ALL)
@pytest.mark.parametrize("at", [0, 3])
def test_an_exception_on_one_rank_reaches_all(strategy, at):
    *others, (own, seconds) = run_workers(raise_on_last_rank, 3, strategy, at, timeout_seconds=12)
    assert own == "ZeroDivisionError: mine"
    assert seconds < 5
    for seen, seconds in others:
        assert seen.startswith("LostPeer")
        assert seconds < 10


def replace_a_buffer():
    model = nn.BatchNorm1d(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    with offbeat.attach(model, optimizer, "lasgd"):
        model.running_var = model.running_var * 2
        optimizer.step()


def test_a_replaced_buffer_is_noticed():
    with pytest.raises(OffbeatError, match="buffer 'running_var' was replaced"):
        replace_a_buffer()


def test_a_process_that_raises_with_an_average_in_flight_exits_at_once():
    other, raiser = run_to_exit(raise_in_flight, 2)
    raised_at = float(raiser.stderr.split("raised at ")[1].split()[0])
    assert raiser.status == 1
    assert "ZeroDivisionError: mine" in raiser.stderr
    assert raiser.at_seconds - raised_at < 4
    assert other.status == 1
    assert other.at_seconds - raised_at < 12
    assert LostPeer.__name__ in other.stderr


def test_a_process_that_dies_ends_the_others():
    other, dead = run_to_exit(die_in_training, 2)
    assert dead.status == 9
    assert other.status == 1
    assert "LostPeer: a rank is lost: the average of gradients failed" in other.stderr
    assert other.at_seconds - dead.at_seconds < 5


def average_often(times):
    model = nn.Linear(300, 300)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with offbeat.attach(model, optimizer, "local_sgd:every=1"):
        start = [p.detach().clone() for p in model.parameters()]
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        for _ in range(times):
            optimizer.step()
    return [((p - s) / s.abs()).mean().item() for p, s in zip(model.parameters(), start, strict=True)]


def test_the_average_of_equal_weights_does_not_drift():
    """Three is no power of two: x / 3 is rounded, and rounded before the sum it would grow a little every time."""
    for drifts in run_workers(average_often, 3, 40):
        assert all(abs(drift) < 2e-8 for drift in drifts)


def stage_all(comm):
    """As on a GPU, where what is in flight is waited for by threads."""
    from offbeat.staging import Staging

    comm._stagings.update({ranks: Staging() for ranks in comm._groups})


def raise_with_staging():
    rank = int(os.environ["RANK"])
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    with offbeat.attach(model, optimizer, "lasgd") as run:
        stage_all(run.comm)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        if rank == 0:
            time.sleep(3.0)
        optimizer.step()
        if rank == 1:
            print(f"raised at {time.monotonic()} ", file=sys.stderr, flush=True)
            raise ZeroDivisionError("mine")
        optimizer.step()


def test_threads_that_stage_keep_no_process_alive():
    _, raiser = run_to_exit(raise_with_staging, 2)
    raised_at = float(raiser.stderr.split("raised at ")[1].split()[0])
    assert raiser.at_seconds - raised_at < 2.5


def train_staged(staged):
    torch.manual_seed(0)
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with offbeat.attach(model, optimizer, "lasgd:delay=2") as run:
        if staged:
            stage_all(run.comm)
        for step in range(9):
            optimizer.zero_grad()
            model(torch.full((1, 3), float(run.rank + step))).sum().backward()
            optimizer.step()
    return model.weight.detach().clone()


def test_staging_keeps_the_order_and_the_result():
    plain, staged = (run_workers(train_staged, 2, staged) for staged in (False, True))
    assert torch.equal(staged[0], staged[1])
    assert torch.equal(staged[0], plain[0])
