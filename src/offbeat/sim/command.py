"""What `offbeat simulate` does with its flags."""

from ..errors import BadInput
from ..train.job import Job
from .cluster import Cluster
from .network import Link, parse_rate
from .simulate import measured_step_seconds
from .simulate import simulate as run


def simulate(
    job: Job,
    *,
    step_seconds: str,
    link: str,
    latency: float,
    local_link: str,
    local_latency: float,
    straggler: tuple[str, ...],
    jitter: float,
    timing_only: bool,
    model_bytes: int | None,
) -> None:
    cluster = Cluster(
        layout=job.layout,
        step_seconds=measured_step_seconds(job) if step_seconds == "measured" else parse_seconds(step_seconds),
        link=Link(bytes_per_second=parse_rate(link), seconds=latency),
        local=Link(bytes_per_second=parse_rate(local_link), seconds=local_latency),
        stragglers=dict(parse_straggler(text) for text in straggler),
        jitter=jitter,
    )
    run(job, cluster, timing_only=timing_only, model_bytes=model_bytes)


def parse_seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BadInput(f"--step-seconds {text} does not fit: give seconds, such as 0.1, or 'measured'") from None


def parse_straggler(text: str) -> tuple[int, float]:
    rank, colon, factor = text.partition(":")
    try:
        return int(rank), float(factor if colon else "nothing")
    except ValueError:
        raise BadInput(f"--straggler {text} does not fit: write RANK:FACTOR, as in 0:2") from None
