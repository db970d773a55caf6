"""One run of a sweep, in this process."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from ..report.meter import Meter
from ..sim.curve import Curve
from ..sim.run import run
from ..sim.simulate import load_what_is_needed, prepare
from ..train.ending import finish_run
from ..train.job import blaming_own_task
from .finished import Finished
from .setting import Setting

SAY_SECONDS = 0.5

Say = Callable[[float], None]  # told every now and then which share of the run is done


def run_one(setting: Setting, say: Say = lambda _share: None) -> Finished:
    """The same bits wherever it runs, and whatever runs beside it."""
    with blaming_own_task(setting.task, "in the simulation"), one_thread():
        return _run(setting, say)


def _run(setting: Setting, say: Say) -> Finished:
    job, cluster, began = setting.job, setting.cluster, time.perf_counter()
    task = load_what_is_needed(job, setting.model_bytes)
    model_task = None if setting.timing_only else task
    with torch.random.fork_rng(devices=[]):
        prepared = prepare(job, task, setting.workers, timing_only=setting.timing_only, model_bytes=setting.model_bytes)
        learners, steps = prepared.learners, prepared.steps
        curve = Curve(model_task, learners, steps, prepared.shards, seed=job.seed, every=setting.evaluate_every)
        said_at = time.monotonic()

        def watch(meter: Meter, now: float) -> None:
            nonlocal said_at
            curve.watch(meter, now)
            if time.monotonic() - said_at > SAY_SECONDS:
                say(curve.done)
                said_at = time.monotonic()

        done = run(
            job.strategy,
            cluster,
            learners,
            steps,
            seed=job.seed,
            nbytes=prepared.nbytes,
            plan=prepared.plan,
            watch=watch,
        )
    result = finish_run(
        job,
        model_task,
        None if model_task is None else learners.mean_model(),
        cluster.layout,
        last=done.statuses,
        history=(),
        events=(),
        world="virtual",
        compute=f"{'given' if setting.device is None else 'predicted'}, {cluster.step_seconds:.3g} s a step",
    )
    return Finished(
        setting=setting,
        accuracy=result.accuracy,
        loss=result.loss,
        seconds=result.seconds,
        steps_per_second=result.steps_per_second,
        computing_share=result.computing_share,
        waiting_share=sum(status.waiting_share for status in done.statuses) / len(done.statuses),
        bytes_sent=result.bytes_sent,
        consensus_distance=curve.points[-1].consensus_distance,
        curve=tuple(curve.points),
        real_seconds=time.perf_counter() - began,
    )


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch with one thread: runs beside each other are the faster for it, and sums come in one order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
