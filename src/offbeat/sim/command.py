"""What `offbeat simulate` does with its flags."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from ..compiler import leave_compiler_unloaded
from ..errors import BadInput
from ..layout import Layout
from ..train.job import Job, blaming_own_task
from .cluster import INSIDE_A_NODE, Cluster
from .network import Link
from .rates import parse_rate
from .simulate import measured_step_seconds
from .simulate import simulate as run

MOST_JITTER = 100.0
USUAL_SECONDS = "0.1"  # what --step-seconds is, unless given
NO_STRAGGLER = "none"
BETWEEN_STRAGGLERS = re.compile(r"\+(?=\d+:)")  # the plus of 0:1e+3 is none of them


def simulate(
    job: Job,
    *,
    step_seconds: str,
    link: str,
    latency: float,
    local_link: str | None,
    local_latency: float | None,
    straggler: tuple[str, ...],
    jitter: float,
    timing_only: bool,
    model_bytes: int | None,
    device: str | None = None,
) -> None:
    leave_compiler_unloaded()
    check_device(device, step_seconds)
    measured = step_seconds == "measured"
    cluster = make_cluster(
        job.layout,
        step_seconds=1.0 if measured else parse_seconds(step_seconds),
        link=link,
        latency=latency,
        local_link=local_link,
        local_latency=local_latency,
        stragglers=parse_stragglers(straggler),
        jitter=jitter,
        device=device,
    )
    with blaming_own_task(job.task, "in the simulation"):
        if measured:
            cluster = replace(cluster, step_seconds=measured_step_seconds(job))
        if device is not None:
            cluster = on_device(cluster, job, device, model_bytes)
        run(
            job,
            cluster,
            timing_only=timing_only,
            model_bytes=model_bytes,
            step_seconds_are="measured" if measured else "given" if device is None else "predicted",
        )


def on_device(cluster: Cluster, job: Job, device: str, model_bytes: int | None) -> Cluster:
    """The same with steps as a profile predicts them; where other bytes travel than the model's, at the usual times."""
    from ..cost.for_simulation import predicted_step

    seconds, shape = predicted_step(job, device)
    return replace(cluster, step_seconds=seconds, shape=shape if model_bytes is None else None)


def check_device(device: str | None, step_seconds: str) -> None:
    if device is not None and step_seconds != USUAL_SECONDS:
        raise BadInput(f"--device {device} and --step-seconds {step_seconds} both say how long a step takes: give one")


def make_cluster(
    layout: Layout,
    *,
    step_seconds: float,
    link: str,
    latency: float,
    local_link: str | None,
    local_latency: float | None,
    stragglers: Mapping[int, float],
    jitter: float,
    device: str | None = None,
) -> Cluster:
    """Links as people write them; inside a node, where none are given, the device's own."""
    if jitter > MOST_JITTER:
        raise BadInput(f"--jitter {jitter} does not fit: it must be at most {MOST_JITTER}, and 0.1 is already much")
    if device is not None:
        from ..cost.for_simulation import wires_with

        wires = wires_with(device, link, latency, local_link, local_latency)
        (between, local), swaps = wires.as_links(), wires.swaps()
    else:
        swaps = ()
        between = Link(bytes_per_second=parse_rate(link), seconds=latency)
        local = Link(
            bytes_per_second=INSIDE_A_NODE.bytes_per_second if local_link is None else parse_rate(local_link),
            seconds=INSIDE_A_NODE.seconds if local_latency is None else local_latency,
        )
    return Cluster(
        layout=layout,
        step_seconds=step_seconds,
        link=between,
        local=local,
        swaps=swaps,
        stragglers=stragglers,
        jitter=jitter,
    )


def parse_seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BadInput(f"--step-seconds {text} does not fit: give seconds, such as 0.1, or 'measured'") from None


def parse_stragglers(texts: Iterable[str]) -> dict[int, float]:
    """All of one run: `0:2`, several as `0:2+1:3` or one by one, `none` for none."""
    texts = list(texts)
    factors: dict[int, float] = {}
    if texts == [NO_STRAGGLER]:
        return factors
    for rank, factor in (parse_straggler(each) for text in texts for each in BETWEEN_STRAGGLERS.split(text)):
        if rank in factors:
            raise BadInput(f"--straggler {rank}:{factor:g} comes after {rank}:{factors[rank]:g}: name each rank once")
        factors[rank] = factor
    return factors


def parse_straggler(text: str) -> tuple[int, float]:
    rank, colon, factor = text.partition(":")
    try:
        return int(rank), float(factor if colon else "nothing")
    except ValueError:
        raise BadInput(f"--straggler {text} does not fit: write RANK:FACTOR, as in 0:2") from None
