"""The end of a run, in both worlds: evaluate the averaged model, write the outputs, print the table."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import safetensors.torch
from rich.console import Console
from torch import nn

from ..errors import BadInput
from ..layout import Layout
from ..options import options_of
from ..report.json_file import check_json, try_to_write, write_json
from ..report.outputs import write_outputs
from ..report.status import Result, Status
from ..report.table import print_result
from ..trace import Event
from .job import Job
from .task import Task, evaluate


def finish_run(
    job: Job,
    task: Task | None,
    model: nn.Module | None,
    layout: Layout,
    *,
    last: Sequence[Status],
    history: Sequence[Status],
    events: Iterable[Event],
    world: Literal["real", "virtual"],
    compute: str,
) -> Result:
    """`last` is every worker's status at the end, `history` all that were seen; task or model None: timing only."""
    accuracy, loss = (None, None) if task is None or model is None else evaluate(model, task)
    count = len(last)
    result = Result(
        task=job.task if task is None else task.name,
        strategy=job.strategy.name,
        options={name: getattr(job.strategy, name) for name in options_of(type(job.strategy))},
        world=world,
        compute=compute,
        workers=count,
        nodes=layout.nodes,
        seed=job.seed,
        accuracy=accuracy,
        loss=loss,
        steps_per_second=sum(status.steps_per_second for status in last) / count,
        computing_share=sum(status.computing_share for status in last) / count,
        bytes_sent=sum(status.bytes_sent for status in last),
        seconds=max(status.seconds for status in last),
        per_worker=tuple(last),
    )
    if job.out is not None:
        if model is not None:
            save_model(model, job.out / "model.safetensors")
        write_outputs(job.out, result, history, events, layout.node_of)
    if not job.quiet:
        console = Console(stderr=True, emoji=False)
        print_result(console, result, layout.node_of)
        if job.out is not None:
            console.print(f"model, metrics, trace and picture are in {job.out}", highlight=False)
    if job.json is not None:
        write_json(job.json, result.as_dict())
    return result


def check_outputs(job: Job) -> None:
    """Before a run: that its results will find their place, so that nothing is trained in vain."""
    if job.out is not None:
        try:
            job.out.mkdir(parents=True, exist_ok=True)
            try_to_write(job.out / ".offbeat")
        except OSError as error:
            raise BadInput(f"--out {job.out} cannot be written to ({error.strerror}): give a folder of yours") from None
    if job.json is not None:
        check_json(job.json)


def save_model(model: nn.Module, path: Path) -> None:
    """All parameters and buffers; tied weights once, as safetensors wants it."""
    temporary = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        safetensors.torch.save_model(model, str(temporary))
        temporary.replace(path)
    except OSError as error:
        raise BadInput(
            f"the model cannot be written to {path} ({error.strerror}): give --out a folder of yours"
        ) from None
    finally:
        temporary.unlink(missing_ok=True)


def fresh_metrics(out: Path) -> Path:
    """The path of a run's metrics, with what an earlier run left there gone."""
    path = out / "metrics.jsonl"
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise BadInput(f"{path} cannot be replaced ({error.strerror}): give --out a folder of yours") from None
    return path
