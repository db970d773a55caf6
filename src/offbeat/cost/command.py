"""What `offbeat plan` does with its flags."""

import sys
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from ..errors import BadInput
from ..lists import split_specs
from ..report.json_file import write_json
from ..report.plan_table import print_plan
from ..report.status import to_json
from ..sim.command import MOST_JITTER, parse_stragglers
from ..strategies import STRATEGIES
from .device_profile import load_profile
from .plan import Answer, Question, strategies_of
from .plan import plan as run
from .subject import find_subject
from .verdict import NEVER_AVERAGES, best, knee, notes, verdict
from .wires import wires_of

ALL = tuple(name for name in STRATEGIES if name != NEVER_AVERAGES)


def plan(
    *,
    model: str,
    input_shape: tuple[int, ...] | None,
    classes: int | None,
    optimizer: str | None,
    bf16: bool,
    device: str,
    nodes: int,
    workers_per_node: int,
    link: str,
    latency: float,
    local_link: str | None,
    local_latency: float | None,
    all_reduce: str,
    batch: int | None,
    strategies: str,
    straggler: tuple[str, ...],
    jitter: float,
    seed: int,
    out: Path | None,
    json_file: str | None,
    quiet: bool,
) -> None:
    profile = load_profile(device)
    wires = replace(wires_of(profile, link, latency, local_link, local_latency), all_reduce_by=all_reduce)
    if not 0 <= jitter <= MOST_JITTER:
        raise BadInput(f"--jitter {jitter} does not fit: it must be 0 to {MOST_JITTER}, and 0.1 is already much")
    if out is not None and out.exists() and not out.is_dir():
        raise BadInput(f"--out {out} is a file: give the name of a folder")
    subject = find_subject(
        model, platform=profile.platform, input_shape=input_shape, classes=classes, optimizer=optimizer, bf16=bf16
    )
    question = Question(
        subject=subject,
        profile=profile,
        wires=wires,
        nodes=nodes,
        workers_per_node=workers_per_node,
        batch=subject.batch if batch is None else batch,
        strategies=ALL if strategies == "all" else strategies_of(split_specs(strategies)),
        stragglers=parse_stragglers(straggler),
        jitter=jitter,
        seed=seed,
    )
    answer = answered(question, quiet)
    if out is not None:
        from ..report.plan_plots import draw_plan  # matplotlib takes its time

        try:
            out.mkdir(parents=True, exist_ok=True)
            (out / "plan.json").write_text(to_json(record(answer), indent=2) + "\n", encoding="utf-8")
            drawn = draw_plan(out, answer)
        except OSError as error:
            raise BadInput(f"--out {out} cannot be written to ({error.strerror}): give a folder of yours") from error
        if not quiet:
            print(f"in {out}: plan.json, {', '.join(path.name for path in drawn)}", file=sys.stderr)
    if json_file is not None:
        write_json(json_file, record(answer))
    if not quiet:
        print_plan(Console(stderr=json_file == "-", emoji=False), answer)


def answered(question: Question, quiet: bool) -> Answer:
    """With a line of progress where somebody watches."""
    if quiet or not sys.stderr.isatty():
        return run(question)
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True, emoji=False), transient=True) as bar:
        task = bar.add_task(f"planning {question.subject.name}", total=None)
        return run(question, lambda done, wanted: bar.update(task, completed=done, total=wanted))


def record(answer: Answer) -> dict[str, object]:
    """For JSON."""
    question, prediction = answer.question, answer.prediction
    chosen = best([row for row in answer.rows if row.workers == question.workers])
    time = prediction.time
    return {
        "model": question.subject.name,
        "device": question.profile.device.name,
        "label": question.profile.label,
        "nodes": question.nodes,
        "workers_per_node": question.workers_per_node,
        "batch": question.batch,
        "parameters": sum(spec.numel for spec in prediction.trace.parameters.values()),
        "flops": prediction.trace.flops,
        "memory_bytes": prediction.trace.memory.peak,
        "step_seconds_alone": time.seconds,
        "forward_seconds": time.forward_seconds,
        "backward_seconds": time.backward_seconds,
        "optimizer_seconds": time.optimizer_seconds,
        "band": list(prediction.band),
        "estimated_by_roofline": dict(prediction.estimated) if question.profile.label == "calibrated" else None,
        "taken_for_others_of_their_class": dict(prediction.likened) if question.profile.label == "calibrated" else None,
        "best": chosen.strategy,
        "knee": {name: knee(answer.of(name)) for name in question.strategies},
        "verdict": verdict(answer),
        "notes": notes(answer),
        "rows": [row.as_dict() for row in answer.rows],
    }
