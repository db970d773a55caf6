"""The table of a plan: a row per number of workers, a column per strategy."""

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..cost.plan import Answer, Row
from ..cost.verdict import band_of, knee, notes, verdict
from .table import counted, human_bytes, human_rate, human_seconds, percent

MOST_SIZES = 11  # columns


def print_plan(console: Console, answer: Answer) -> None:
    """The headline, the table, what the numbers are worth, the verdict."""
    if not console.is_terminal:
        console = Console(file=console.file, width=max(console.width, 160), emoji=False)
    console.print(Text(headline(answer), style="bold"), soft_wrap=True)
    console.print()
    console.print(plan_table(answer))
    console.print()
    for note in notes(answer):
        console.print(Text(note), soft_wrap=True)
    console.print(Text(verdict(answer), style="bold"), soft_wrap=True)


def headline(answer: Answer) -> str:
    question, step = answer.question, answer.prediction.trace
    parameters = sum(spec.numel for spec in step.parameters.values())
    return (
        f"{question.subject.name} ({parameters / 1e6:.3g} M parameters) on {counted(question.nodes, 'node')} x "
        f"{question.workers_per_node} {question.profile.device.name}, batch {question.batch} a worker: "
        f"{human_seconds(answer.prediction.time.seconds)} a step alone, {step.flops / 1e9:,.0f} GFLOP, "
        f"{human_bytes(step.memory.peak)} of memory"
    )


def plan_table(answer: Answer) -> Table:
    """Efficiency by number of workers; of all workers also the speed, the band, and what holds it back."""
    sizes = answer.question.sizes[-MOST_SIZES:]
    table = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
        caption=f"Efficiency: against as many workers that need not talk. On {sizes[-1]:,}: samples/s of all, a step, "
        "the efficiency's band, what bounds it, averages (or exchanges) per step. Knee: beyond it, twice the workers "
        "bring less than 1.8 times the speed; - where that is not so up to here. What averages less often than ddp, or "
        "later, may need more steps.",
        caption_justify="left",
    )
    table.add_column("strategy", no_wrap=True)
    for workers in sizes:
        table.add_column(f"{workers:,}", justify="right", no_wrap=True)
    for name in ("samples/s", "step", "band", "knee"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("bound by", no_wrap=True)
    table.add_column("averages", justify="right", no_wrap=True)
    for name in answer.question.strategies:
        rows = {row.workers: row for row in answer.of(name)}
        table.add_row(name, *(percent(rows[workers].efficiency) for workers in sizes), *_last(rows[sizes[-1]], answer))
    return table


def _last(row: Row, answer: Answer) -> list[str]:
    at = knee(answer.of(row.strategy))
    return [
        human_rate(row.samples_per_second),
        human_seconds(row.step_seconds),
        band_of(row),
        "-" if at is None else f"{at:,}",
        row.bottleneck,
        f"{row.averages_per_step:.2g}",
    ]
