"""The command line: flags, one sentence for bad input, exit status 2."""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import click

from .connect import ENVIRONMENT
from .errors import BadInput, OffbeatError
from .leave import leave
from .lists import numbers, whole_numbers, without_lists
from .options import options_of, type_of
from .strategies import STRATEGIES, make_strategy
from .strategy import Strategy
from .usage import usage_sentence

BAD_INPUT, FAILURE = 2, 1
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
OWN_FLAGS = ("-h", "--help", "--version")  # any other flag without a command is one of train's
LET_CAUSE_SPEAK_SECONDS = 1.0
# What runs without arguments. Its real steps take half a millisecond, and workers that share a few cores would hardly
# get to average in so short a time: these take 10 ms, as those of a larger model would.
DEMO = ("train", "--step-seconds", "0.01")

Command = Callable[..., None]


class Interrupted(BaseException):
    """A signal ends the run: everything on the way out gives back what it holds."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.number = number


def main() -> None:
    """Run the command line; never ends in a traceback for what the user can mend."""
    if is_worker():
        be_a_worker()
    else:
        for number in ENDING_SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
                signal.signal(number, interrupt)
    if len(sys.argv) == 1:
        sys.argv += DEMO
    if len(sys.argv) > 1 and sys.argv[1].startswith("-") and sys.argv[1] not in OWN_FLAGS:
        sys.argv.insert(1, "train")
    try:
        status = cli.main(standalone_mode=False, prog_name="offbeat")
    except click.exceptions.Exit as error:
        status = error.exit_code
    except click.ClickException as error:
        status = complain(usage_sentence(error, cli.commands), BAD_INPUT)
    except (Interrupted, Exception) as error:
        interrupted = interruption_behind(error)
        if is_worker() and isinstance(error, Exception):
            end_worker(error)
        elif interrupted is not None:
            status = complain(f"{interrupted}; what was written so far is kept", 128 + interrupted.number)
        elif isinstance(error, OffbeatError):
            status = complain(str(error), BAD_INPUT if isinstance(error, BadInput) else FAILURE)
        else:
            raise
    status = status if isinstance(status, int) else 0
    if is_worker():
        leave(status)
    sys.exit(status)


def is_worker() -> bool:
    """Whether a launcher, ours or torchrun, started this process as one of several."""
    return all(name in os.environ for name in ENVIRONMENT)


def interrupt(number: int, _frame: FrameType | None) -> None:
    raise Interrupted(number)


def interruption_behind(error: BaseException | None) -> Interrupted | None:
    """A signal may come in the middle of anything: what then fails on the way out is its consequence."""
    while error is not None and not isinstance(error, Interrupted):
        error = error.__cause__ or error.__context__
    return error


def be_a_worker() -> None:
    """End at once when told to, also while torch waits and no Python handler would run; and with our launcher."""
    for number in ENDING_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    from .train.launch import end_with_launcher

    end_with_launcher()


def end_worker(error: Exception) -> NoReturn:
    """Say what is wrong, once (our own launcher does that for us), and go without waiting for anybody.

    Bad input is a cause. What else goes wrong is more often the consequence of another worker's end, so the
    launcher gets the time to notice that one first, and to end this one before it speaks.
    """
    from .train.launch import own_launcher, tell_launcher

    if not isinstance(error, BadInput):
        time.sleep(LET_CAUSE_SPEAK_SECONDS)
    if not isinstance(error, OffbeatError):
        traceback.print_exception(error)
    else:
        tell_launcher(error)
        if own_launcher() is None:
            complain(str(error), BAD_INPUT)
    leave(BAD_INPUT if isinstance(error, BadInput) else FAILURE)


def complain(sentence: str, status: int) -> int:
    print(f"offbeat: {sentence}", file=sys.stderr)
    return status


def strategy_flags(command: Command) -> Command:
    """A flag for every option of every strategy, made from the strategies' own fields."""
    owners: dict[str, list[type]] = {}
    for cls in STRATEGIES.values():
        for name in options_of(cls):
            owners.setdefault(name, []).append(cls)
    for name, classes in reversed(owners.items()):
        kind, optional = type_of(classes[0], name)
        choices = dict.fromkeys(choice for cls in classes for choice in options_of(cls)[name].metadata["one_of"])
        metavar = "|".join(choices) or {int: "N", float: "X"}.get(kind, "TEXT") + "|none" * optional
        command = click.option(f"--{name.replace('_', '-')}", name, metavar=metavar, help=option_help(name, classes))(
            command
        )
    return command


def option_help(name: str, classes: Sequence[type[Strategy]]) -> str:
    """What the option means to each strategy that has it, and its default there."""
    meanings: dict[str, list[str]] = {}
    common = len(classes) == len(STRATEGIES) and len({options_of(cls)[name].default for cls in classes}) == 1
    for cls in classes[:1] if common else classes:
        field = options_of(cls)[name]
        default = "" if field.default is None else f", default {field.default}"
        meanings.setdefault(field.metadata["help"], []).append(f"{'all' if common else cls.name}{default}")
    return "; ".join(f"{help} [{'; '.join(users)}]" for help, users in meanings.items())


def job_flags(command: Command, *, lists: bool = False) -> Command:
    """What `train` and `simulate` have in common; of the latter, many take lists."""
    whole: dict[str, Any] = {"type": whole_numbers, "metavar": "N,..."} if lists else {"type": int}
    number: dict[str, Any] = {"type": numbers, "metavar": "X,..."} if lists else {"type": float}
    flags = [
        click.option("--task", default="digits", show_default=True, metavar="NAME|FILE.py:FUNCTION",
                     help="digits, mnist, fashion-mnist, cifar10, text, synthetic, or a function that returns a Task"),
        click.option("--model", metavar="NAME",
                     help="mlp, cnn, cnn3m, lenet, resnet8/18/20/50, vgg11/16, gpt [task's own]"),
        click.option("--data", type=click.Path(path_type=Path), help="where the task's files are"),
        click.option("--learning-rate", **number, help="[the task's own]"),
        click.option("--strategy", default="lasgd", show_default=True, metavar="NAME[:OPTION=VALUE,...]",
                     help=f"{', '.join(STRATEGIES)}; options as flags below, or as in lasgd:every=8,delay=2"),
        click.option("--workers", **whole, help="[4]"),
        click.option("--nodes", **whole, help="that the workers are spread over [one for every two workers]"),
        click.option("--epochs", type=int, help="[the task's own]"),
        click.option("--steps", type=int, help="per worker, instead of epochs"),
        click.option("--batch", **whole, help="samples per worker and step [the task's own]"),
        click.option("--seed", **whole, default=0, show_default=True),
        click.option("--out", type=click.Path(path_type=Path), metavar="DIR",
                     help="for model.safetensors, metrics.jsonl, trace.json (for Perfetto), summary.png, result.json"),
        click.option("--json", "json_file", metavar="FILE", help="for the result; - for standard output, alone there"),
        click.option("--quiet", is_flag=True, help="no progress, no table"),
    ]  # fmt: skip
    command = strategy_flags(command)
    for flag in reversed(flags):
        command = flag(command)
    return command


def make_job(given: Mapping[str, Any]) -> Any:
    """A Job from the flags that `job_flags` made."""
    from .train.job import Job

    option_names = {name for cls in STRATEGIES.values() for name in options_of(cls)}
    options = {name: given[name] for name in option_names if given[name] is not None}
    rest = {k: v for k, v in given.items() if k not in option_names and v is not None}
    json_file = rest.pop("json_file", None)
    spec = rest.pop("strategy")
    for name, value in options.items():
        if name in {part.partition("=")[0] for part in spec.partition(":")[2].split(",")}:
            raise BadInput(f"--{name.replace('_', '-')} {value} and --strategy {spec} both set {name}: give it once")
    strategy = make_strategy(spec, options)
    return Job(strategy=strategy, json=Path(json_file) if json_file not in (None, "-") else json_file, **rest)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="offbeat")
def cli() -> None:
    """Train one PyTorch model on many workers that do not wait for each other.

    Without a command: train. Without anything: train on handwritten digits, with steps of 10 ms (emulated).
    """


@cli.command(short_help="Train for real, on local workers or under torchrun.")
@job_flags
@click.option("--device", metavar="cpu|cuda", help="[cuda where there is one]")
@click.option("--port", type=int, help="on which the local workers meet [any that is free]")
@click.option(
    "--step-seconds",
    type=float,
    metavar="X",
    help="emulated compute: a step lasts at least so long, the worker asleep for the rest [real compute]",
)
def train(device: str | None, port: int | None, **given: Any) -> None:
    """Train for real: starts local workers, or is one of them under `torchrun ... -m offbeat train`.

    \b
    offbeat train                                        4 workers, 2 nodes, lasgd, handwritten digits
    offbeat train --strategy ddp --workers 2             the baseline
    offbeat train --task fashion-mnist --out runs/one    pictures and a trace under runs/one
    offbeat train --task my_task.py:task                 your own model and data
    """  # fmt: skip
    from .train.command import train as run

    run(make_job(given), given, device, port, worker=is_worker())


@cli.command(short_help="Train in virtual time, on as many workers as you like.")
@partial(job_flags, lists=True)
@click.option(
    "--step-seconds",
    default="0.1",
    show_default=True,
    metavar="X|measured",
    help="compute time of a step; measured: on this machine, now (no longer the same bits every time)",
)
@click.option(
    "--device",
    metavar="NAME|FILE.json",
    help="compute time of a step by a profile instead, as in plan: h100, a100, l4, cpu1, cpu2, or a file of calibrate",
)
@click.option(
    "--link", default="1gbit", show_default=True, help="bandwidth of each node, both ways at once: 100mbit, 10gbit"
)
@click.option(
    "--latency",
    type=numbers,
    metavar="X,...",
    default=100e-6,
    show_default=True,
    help="of the link between nodes, in seconds, one way",
)
@click.option("--local-link", help="bandwidth of each worker inside its node [the device's, else 80gbit]")
@click.option("--local-latency", type=float, help="inside a node, in seconds, one way [the device's, else 5e-06]")
@click.option(
    "--straggler",
    multiple=True,
    metavar="RANK:FACTOR",
    help="that rank's steps take FACTOR times longer; repeatable, or as in 0:2+1:3; in a list none stands for none",
)
@click.option(
    "--jitter",
    type=numbers,
    metavar="X,...",
    default=0.0,
    show_default=True,
    help="standard deviation of step times, relative; seeded",
)
@click.option("--timing-only", is_flag=True, help="no model is trained: only the clock runs")
@click.option("--model-bytes", type=int, help="of parameters on the wire, with --timing-only [the model's own]")
@click.option("--evaluate-every", type=int, metavar="N", help="sweep: steps between two points of the curves [for 30]")
@click.option("--target-accuracy", type=float, metavar="X", help="sweep: how soon is the averaged model so good?")
@click.option("--processes", type=int, metavar="N", help="sweep: runs beside each other [one per CPU]")
def simulate(**given: Any) -> None:
    """Train in virtual time: the same strategies and real gradients, on a simulated cluster.

    \b
    offbeat simulate --workers 64 --nodes 64 --link 100mbit --strategy gossip
    offbeat simulate --straggler 0:2 --jitter 0.1 --strategy local_sgd --every 16
    offbeat simulate --timing-only --workers 4096 --nodes 4096 --steps 100 --strategy gossip
    offbeat simulate --device l4 --task cifar10 --timing-only --steps 100 --strategy ddp

    Several values with commas between make it a sweep, the product of all lists: of strategies, their options, workers,
    nodes, batches, learning rates, links, latencies, stragglers, jitters and seeds. It runs on all CPUs, prints one
    table, and leaves runs.jsonl, table.csv and plots in --out; started again there, it goes on where it was.

    \b
    offbeat simulate --strategy ddp,lasgd:every=8,delay=2,gossip --link 100mbit,1gbit --out runs/links
    offbeat simulate --strategy gossip --topology ring,exponential --rate 1,2 --workers 4,16 --seed 0,1,2
    """  # fmt: skip
    single = without_lists(given)
    if single is None:
        from .sweep.command import sweep

        sweep(given)
        return
    from .sim.command import simulate as run

    names = (
        "step_seconds",
        "link",
        "latency",
        "local_link",
        "local_latency",
        "straggler",
        "jitter",
        "timing_only",
        "model_bytes",
        "device",
    )
    hardware = {name: single.pop(name) for name in names}
    run(make_job(single), **hardware)


@cli.command(short_help="Show a graph of workers: how fast they come to agree on it, and a picture.")
@click.argument("name", default="ring", metavar="[NAME|FILE]")
@click.option("--workers", type=int, default=16, show_default=True)
@click.option("--rate", type=float, default=1.0, show_default=True, metavar="X", help="exchanges per worker and step")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE.png", help="for a picture")
@click.option("--json", "json_file", metavar="FILE", help="for the numbers; - for standard output, alone there")
def topology(name: str, workers: int, rate: float, out: Path | None, json_file: str | None) -> None:
    """Show a graph of workers: how fast they come to agree on it, and a picture.

    NAME: ring, exponential, complete, torus, hypercube, star, random_regular (or random_regular-DEGREE-SEED),
    or a FILE of edges with a dot or a slash in its name, one edge `0 1` a line.

    \b
    offbeat topology ring --workers 16
    offbeat topology random_regular-4 --workers 64 --rate 2 --json -
    offbeat topology torus --workers 24 --out torus.png
    """  # fmt: skip
    from .topology.command import show

    show(name, workers, rate, out=out, json_file=json_file)


@cli.command(short_help="Race strategies on an emulated cluster: real processes, shaped links.")
@click.option(
    "--strategies",
    default="ddp,local_sgd,lasgd",
    show_default=True,
    metavar="SPEC,SPEC,...|FILE.py:FUNCTION",
    help="ours, as in lasgd:every=8; or a rival's function",
)
@click.option("--link", metavar="RATE,...", help="of each node, each way; several as in 100mbit,1gbit [100mbit]")
@click.option("--workers", type=whole_numbers, default="4", show_default=True, help="several as in 4,8")
@click.option("--nodes", type=int, help="that the workers are spread over [one for each worker]")
@click.option("--delay", type=float, help="seconds that are added to each link, one way [0]")
@click.option("--loopback", is_flag=True, help="no namespaces and no shaping: workers meet on loopback")
@click.option(
    "--straggler", multiple=True, metavar="RANK:FACTOR", help="that rank takes FACTOR times longer; repeatable"
)
@click.option("--task", default="digits", show_default=True, metavar="NAME|FILE.py:FUNCTION", help="as for train")
@click.option("--model", metavar="NAME", help="[the task's own]")
@click.option("--data", type=click.Path(path_type=Path), help="where the task's files are")
@click.option("--learning-rate", type=float, help="[the task's own]")
@click.option("--batch", type=int, help="samples per worker and step [the task's own]")
@click.option("--steps", type=int, help="per worker, instead of epochs")
@click.option("--epochs", type=int, help="[the task's own]")
@click.option(
    "--step-seconds",
    type=float,
    metavar="X",
    help="emulated compute: the worker is asleep for what a step lacks of it [real compute]",
)
@click.option("--target-accuracy", type=float, metavar="X", help="asks for the time until the mean of all is so good")
@click.option("--snapshots", type=int, metavar="N", help="points of the curve of accuracy [30 with a target, else 1]")
@click.option(
    "--limit-seconds",
    type=float,
    metavar="X",
    help="of a lap, with the start of its workers; one that takes longer is ended, listed as failed, and the race "
    "goes on [3600]",
)
@click.option("--repeats", type=int, default=1, show_default=True, help="interleaved; each with the next seed")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--device", metavar="cpu|cuda", default="cpu", show_default=True, help="cuda: all workers share one GPU")
@click.option("--bf16", is_flag=True, help="autocast to bfloat16")
@click.option("--augment", is_flag=True, help="images are moved a few pixels and mirrored, anew in every step")
@click.option(
    "--schedule",
    metavar="constant|one-cycle",
    default="constant",
    show_default=True,
    help="of the learning rate; one-cycle: up to it in the first fifth of the steps, then down to nearly 0",
)
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="for report.html, PNGs and compare.json")
@click.option("--json", "json_file", metavar="FILE", help="for the result; - for standard output, alone there")
@click.option("--quiet", is_flag=True, help="no progress, no table")
def compare(**given: Any) -> None:
    """Race ways of synchronising: the same model, data, seed and steps, in network namespaces with shaped links.

    \b
    offbeat compare --strategies ddp,lasgd,gossip --link 100mbit --step-seconds 0.17 --steps 60
    offbeat compare --task cifar10 --target-accuracy 0.7 --repeats 3 --out race
    """  # fmt: skip
    from .compare.command import compare as run

    run(**given)


@cli.command(short_help="What would it cost: predict training on clusters of any size.")
@click.option(
    "--model",
    default="resnet50",
    show_default=True,
    metavar="NAME|timm:NAME|FILE.py:FUNCTION",
    help="of the zoo, of timm, or a function that returns a Task, or a model and inputs of one sample",
)
@click.option("--input", "input_shape", type=whole_numbers, metavar="C,H,W", help="shape of one sample [the model's]")
@click.option("--classes", type=int, help="[the model's]")
@click.option("--optimizer", metavar="sgd|adamw", help="[adamw for gpt, else sgd]")
@click.option("--bf16", is_flag=True, help="autocast to bfloat16")
@click.option(
    "--device",
    default="h100",
    show_default=True,
    metavar="NAME|FILE.json",
    help="a profile: a100, h100, h200, l4, rtx4090, cpu1, cpu2, ..., or a file written by calibrate",
)
@click.option("--nodes", type=int, default=8, show_default=True)
@click.option("--workers-per-node", type=int, default=8, show_default=True)
@click.option(
    "--link",
    default="100gbit",
    show_default=True,
    help="bandwidth of each node, both ways at once; measured: as the profile's all-reduces and swaps",
)
@click.option("--latency", type=float, default=10e-6, show_default=True, help="of that link, in seconds, one way")
@click.option("--local-link", help="bandwidth of each worker inside its node [the device's]")
@click.option("--local-latency", type=float, help="inside a node, in seconds [the device's]")
@click.option(
    "--all-reduce",
    default="fastest",
    show_default=True,
    metavar="NAME",
    help="fastest (of the next two), ring, tree, hierarchical",
)
@click.option("--batch", type=int, help="samples per worker and step [the task's, else 32]")
@click.option("--strategies", default="all", show_default=True, metavar="SPEC,SPEC,...", help="as in ddp,lasgd:every=8")
@click.option(
    "--straggler", multiple=True, metavar="RANK:FACTOR", help="that rank takes FACTOR times longer; repeatable"
)
@click.option("--jitter", type=float, default=0.0, show_default=True, help="standard deviation of step times, relative")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="for plan.json and the pictures")
@click.option("--json", "json_file", metavar="FILE", help="for the numbers; - for standard output, alone there")
@click.option("--quiet", is_flag=True, help="no progress, no table")
def plan(**given: Any) -> None:
    """What would it cost: step time, throughput and efficiency of every strategy, before any machine is rented.

    The model is traced without its memory and without data; the device is known by a profile.

    \b
    offbeat plan                                                       ResNet-50 on 1 to 64 H100
    offbeat plan --model gpt --device a100 --nodes 128 --link 10gbit   up to 1,024 workers
    offbeat plan --model my_model.py:build --batch 16 --bf16 --out plan
    offbeat plan --strategies ddp,lasgd,gossip --straggler 0:2 --json -
    """  # fmt: skip
    from .cost.command import plan as run

    run(**given)


@cli.command(short_help="Measure this device, so that plan can predict it.")
@click.option("--device", metavar="cpu|cuda", help="[cuda where there is one]")
@click.option("--name", help="of the profile [the device's own]")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE.json", help="[among the profiles of Offbeat]")
@click.option("--minutes", type=float, default=8.0, show_default=True, help="at most, all in all; 10 or fewer")
@click.option("--workers", type=int, help="also time all-reduces and swaps among so many local workers [no]")
@click.option("--bf16/--no-bf16", default=None, help="also under autocast to bfloat16 [on a GPU]")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--quiet", is_flag=True, help="no progress, no summary")
def calibrate(**given: Any) -> None:
    """Measure this device: its kernels, and across workers its all-reduces and swaps; writes one profile.

    Interrupted, it goes on where it was. Under torchrun the collectives are those of the launcher's workers.

    \b
    offbeat calibrate                         this device, about 8 minutes
    offbeat calibrate --minutes 2 --workers 2
    torchrun --nproc-per-node 8 -m offbeat calibrate --device cuda
    """  # fmt: skip
    from .cost.calibrate_command import calibrate as run

    run(**given, under_launcher=is_worker())
