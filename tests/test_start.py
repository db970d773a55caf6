"""What a process loads before it works: seconds of every command, and of every worker."""

import os
import subprocess
import sys

import torch
from workers import environment, free_port

from offbeat.compiler import COMPILER, METHODS, TELLS
from offbeat.train.data.digits import pixels_and_labels


def printed_by(code: str, **environment: str) -> str:
    """What a fresh process prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_worker_trains_without_what_takes_long_to_load() -> None:
    heavy = printed_by(
        "import sys; from offbeat.cli import cli\n"
        "cli.main(['train', '--workers', '1', '--steps', '3', '--quiet'], standalone_mode=False)\n"
        "import offbeat.compare.worker, offbeat.cost.predict\n"
        "heavy = ('torch._dynamo', 'torch._inductor', 'sympy', 'sklearn', 'scipy', 'networkx', 'matplotlib', 'timm')\n"
        "print(*(name for name in heavy if name in sys.modules))",
        **environment(0, 1, free_port()),
    )
    assert not heavy.split(), heavy


def test_the_compiler_is_kept_out_of_optimizers_from_when_it_is_loaded() -> None:
    """As torch has it by itself, whatever was called before."""
    code = (
        "import sys, torch; from offbeat.compiler import *\n"
        "leave_compiler_unloaded(); leave_compiler_unloaded()\n"
        "optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.5)\n"
        "optimizer.param_groups[0]['params'][0].grad = torch.ones(2)\n"
        "optimizer.step(); optimizer.load_state_dict(optimizer.state_dict()); optimizer.zero_grad()\n"
        "print(optimizer.param_groups[0]['params'][0].tolist(), COMPILER in sys.modules)\n"
        "import torch._dynamo\n"
        "optimizer.param_groups[0]['params'][0].grad = torch.ones(2)\n"
        "optimizer.step()\n"
        "print(optimizer.param_groups[0]['params'][0].tolist())\n"
        "optimizer.zero_grad()\n"
        "own = getattr(type(optimizer).zero_grad.__wrapped__, KEPT_OUT)\n"
        "print(own._torchdynamo_disable, own.__module__.partition('.')[0])\n"
    )
    assert printed_by(code).splitlines() == ["[0.5, 0.5] False", "[0.0, 0.0]", "True torch"]


def test_torch_has_methods_that_load_the_compiler() -> None:
    """Otherwise there is nothing to leave unloaded, and offbeat.compiler can go."""
    for name in METHODS:
        assert hasattr(getattr(torch.optim.Optimizer, name), "__wrapped__"), name
    names = printed_by(
        f"import torch; print(torch.optim.SGD.step.__code__.co_name, {COMPILER!r} in __import__('sys').modules)"
    )
    assert names.split() == [TELLS, "False"]


def test_digits_are_those_of_scikit_learn() -> None:
    from sklearn.datasets import load_digits

    pixels, labels = pixels_and_labels()
    theirs = load_digits(return_X_y=True)
    assert (pixels == theirs[0]).all()
    assert (labels == theirs[1]).all()
    assert (pixels.dtype, labels.dtype) == (theirs[0].dtype, theirs[1].dtype)
