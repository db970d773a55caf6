"""Reports: valid JSON whatever the loss, nothing lost on Ctrl-C, displays fit for pipes, a picture for every run."""

import io
import json
import math
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist
from PIL import Image
from rich.console import Console
from workers import run_workers

from offbeat.errors import BadInput
from offbeat.gather import collect_json
from offbeat.layout import Layout, Ranks
from offbeat.report.history import STATUSES_PER_WORKER, History
from offbeat.report.json_file import write_json
from offbeat.report.live import Live
from offbeat.report.metrics import MetricsFile, read_metrics
from offbeat.report.outputs import write_outputs
from offbeat.report.progress import Progress
from offbeat.report.status import Result, Status
from offbeat.report.summary import DPI, SIZE_INCHES, choose_window, draw_summary
from offbeat.report.table import headline, human_bytes, human_seconds, print_result, quantile
from offbeat.trace import Event, Trace, chrome
from offbeat.train import board

STATUS = Status(
    rank=0, step=5, steps=10, seconds=1.5, loss=0.25, steps_per_second=3.3, computing_share=0.9,
    waiting_share=0.05, bytes_sent=1000, averages=2, delay=3.5, notes={},
)  # fmt: skip


def run(workers: int = 4, nodes: int = 2, steps: int = 40) -> tuple[Result, list[Status], list[Event], Ranks]:
    """A made-up run: uneven workers, an average every 8 steps, now and then a wait."""
    chance = random.Random(workers)
    statuses: list[Status] = []
    events: list[Event] = []
    for rank in range(workers):
        trace, now, averages = Trace(rank), 0.001 * chance.random(), 0
        for step in range(1, steps + 1):
            seconds = 0.012 * (1 + 0.3 * chance.random())
            trace.add("compute", "step", now, seconds)
            now += seconds
            if step % 8 == 0:
                trace.add("communicate", "average", now, 0.04, 410_000)
                trace.add("wait", "average", now, 0.003)
                now, averages = now + 0.003, averages + 1
            if step % 10 == 0 or step == steps:
                share = {kind: trace.seconds[kind] / now for kind in trace.seconds}
                statuses.append(
                    Status(
                        rank=rank,
                        step=step,
                        steps=steps,
                        seconds=now,
                        loss=2.3 * math.exp(-step / 20) + 0.1,
                        steps_per_second=step / now,
                        computing_share=share["compute"],
                        waiting_share=share["wait"],
                        bytes_sent=trace.bytes_sent,
                        averages=averages,
                        delay=3.2 if averages else None,
                        notes={},
                    )
                )
        events += trace.events
    last = tuple(status for status in statuses if status.step == steps)
    result = Result(
        task="digits", strategy="lasgd", options={"every": 8, "delay": None}, world="real", compute="real",
        workers=workers, nodes=nodes, seed=0, accuracy=0.972, loss=0.1, steps_per_second=70.0,
        computing_share=sum(status.computing_share for status in last) / workers,
        bytes_sent=sum(status.bytes_sent for status in last), seconds=12.3, per_worker=last,
    )  # fmt: skip
    return result, statuses, events, Layout.even(workers, nodes).node_of


def strictly(text: str) -> Any:
    """JSON as the standard has it: a bare NaN or Infinity is an error."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


# --- status and result ---


@pytest.mark.parametrize("loss", [0.25, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("delay", [3.5, None])
def test_a_status_survives_json(loss: float, delay: float | None) -> None:
    status = replace(STATUS, loss=loss, delay=delay)
    back = Status.from_dict(strictly(json.dumps(status.as_dict())))
    assert repr(back) == repr(status)  # NaN equals nothing, not even itself


@pytest.mark.parametrize(
    ("change", "named"),
    [({"loss": "low"}, "loss"), ({"rank": 1.5}, "rank"), ({"step": True}, "step"), ({"lost": 1}, "lost")],
)
def test_a_status_of_another_shape_is_refused(change: dict[str, Any], named: str) -> None:
    with pytest.raises(BadInput, match=named):
        Status.from_dict({**STATUS.as_dict(), **change})


def test_a_status_must_be_complete() -> None:
    with pytest.raises(BadInput, match="lacks delay"):
        Status.from_dict({key: value for key, value in STATUS.as_dict().items() if key != "delay"})


def test_a_result_goes_to_a_file_and_to_standard_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = replace(run()[0], accuracy=None, loss=math.nan)
    write_json(tmp_path / "result.json", result.as_dict())
    write_json("-", result.as_dict())
    text = (tmp_path / "result.json").read_text()
    assert capsys.readouterr().out == text
    assert repr(Result.from_dict(strictly(text))) == repr(result)
    with pytest.raises(BadInput, match="cannot be written"):
        write_json(tmp_path / "no such folder" / "result.json", result.as_dict())


# --- history ---


@pytest.mark.parametrize("workers", [1, 3])
def test_history_thins_evenly(workers: int) -> None:
    history, steps = History(workers), 10 * STATUSES_PER_WORKER
    for step in range(steps):
        for rank in range(workers):
            history.add(replace(STATUS, rank=rank, step=step))
    for rank in range(workers):
        kept = [status.step for status in history.statuses if status.rank == rank]
        assert STATUSES_PER_WORKER / 2 - 1 <= len(kept) <= STATUSES_PER_WORKER
        assert len({after - before for before, after in pairwise(kept)}) == 1


# --- board and gathering, on the way to the first rank ---


def test_a_lost_store_ends_the_thread_of_the_board_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lost:
        def check(self, keys: list[str]) -> bool:
            raise dist.DistNetworkError("connection reset by peer")

    monkeypatch.setattr(board, "POST_SECONDS", 0.001)
    posts = board.Board(0, 1, list)
    with monkeypatch.context() as lost:
        lost.setattr(posts, "_store", Lost())
        posts.__enter__()
        posts._thread.join(10)
        assert not posts._thread.is_alive()
    posts.__exit__(None, None, None)  # an exception that had escaped the thread would fail the test


def collect() -> list[Any]:
    dist.init_process_group("gloo")
    values = collect_json("x" * 10 * dist.get_rank())
    dist.destroy_process_group()
    return values


def test_only_the_first_rank_collects() -> None:
    assert run_workers(collect, 3) == [["", "x" * 10, "x" * 20], [], []]


# --- metrics ---


def test_metrics_are_on_disk_before_the_file_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "metrics.jsonl"
    with MetricsFile(path) as metrics:
        metrics.write(STATUS)
        metrics.write({"kind": "epoch", "epoch": 1, "loss": math.nan})
        assert read_metrics(path) == [STATUS, {"kind": "epoch", "epoch": 1, "loss": "nan"}]
        with pytest.raises(BadInput, match="kind"):
            metrics.write({"epoch": 1})
    assert all(strictly(line)["kind"] for line in path.read_text().splitlines())


@pytest.mark.parametrize("torn_at", [1, 20, -1])
def test_a_torn_last_line_is_left_out_and_mended(tmp_path: Path, torn_at: int) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsFile(path) as metrics:
        metrics.write(STATUS)
    whole = path.read_text()
    path.write_text(whole + whole.rstrip("\n")[:torn_at])
    assert read_metrics(path) == [STATUS]
    later = replace(STATUS, step=6)
    with MetricsFile(path) as metrics:
        metrics.write(later)
    assert read_metrics(path) == [STATUS, later]


def test_a_last_line_that_lacks_only_its_newline_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsFile(path) as metrics:
        metrics.write(STATUS)
    path.write_text(path.read_text().rstrip("\n"))
    with MetricsFile(path) as metrics:
        metrics.write(STATUS)
    assert read_metrics(path) == [STATUS, STATUS]


def test_a_torn_line_in_the_middle_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"kind": "ep\n{"kind": "epoch"}\n')
    with pytest.raises(BadInput, match="line 1"):
        read_metrics(path)


# --- progress ---


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_pipe_gets_a_plain_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as some CI sets it
    now = [0.0]
    file = io.StringIO()
    with Progress("lasgd", console=Console(file=file), every_seconds=3.0, clock=lambda: now[0]) as progress:
        for step in range(1, 11):
            progress.update([replace(STATUS, step=step), replace(STATUS, rank=1, step=step, loss=math.nan)])
            now[0] += 1.0
    lines = file.getvalue().splitlines()
    assert [line.split(",")[0] for line in lines] == [
        "lasgd: step 1 of 10 (10 %)",
        "lasgd: step 4 of 10 (40 %)",
        "lasgd: step 7 of 10 (70 %)",
        "lasgd: step 10 of 10 (100 %)",
    ]
    assert "0:03 elapsed, 0:06 left" in lines[1]
    assert "\x1b" not in file.getvalue()
    assert "\r" not in file.getvalue()


@pytest.mark.parametrize("file", [io.StringIO(), Terminal()])
def test_quiet_prints_nothing(file: io.StringIO) -> None:
    with Progress(quiet=True, console=Console(file=file)) as progress:
        progress.update([STATUS])
    assert file.getvalue() == ""


@pytest.mark.parametrize("workers", [1, 16, 300])
def test_the_display_fits_a_terminal(workers: int) -> None:
    progress = Progress("lasgd on digits", world="virtual", quiet=True)
    console = Console(file=io.StringIO(), width=80)
    console.print(progress.render())
    progress.update(run(workers, nodes=1, steps=10)[1])
    with console.capture() as capture:
        console.print(progress.render())
    lines = capture.get().splitlines()
    assert len(lines) == 3 + (workers if workers <= 16 else 3)
    assert "step 10 of 10" in lines[0]
    assert ("median" in capture.get()) == (workers > 16)
    assert "…" not in "".join(lines[1:])


@pytest.mark.parametrize("error", [None, KeyboardInterrupt, RuntimeError])
def test_the_terminal_gets_its_cursor_back(error: type[BaseException] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    file = Terminal()

    def work() -> None:
        with Progress(console=Console(file=file, force_terminal=True, width=80)) as progress:
            progress.update([STATUS])
            if error is not None:
                raise error

    if error is None:
        work()
    else:
        with pytest.raises(error):
            work()
    hidden, shown = file.getvalue().rfind("\x1b[?25l"), file.getvalue().rfind("\x1b[?25h")
    assert 0 <= hidden < shown
    assert "step 5 of 10" in file.getvalue()


def test_a_second_interruption_leaves_no_terminal_without_its_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    file = Terminal()
    display = Live(console=Console(file=file, force_terminal=True, width=80), auto_refresh=False)
    display.start()

    def refresh() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(display, "refresh", refresh)
    monkeypatch.setattr(display.console, "pop_render_hook", refresh)
    with pytest.raises(KeyboardInterrupt):
        display.stop()
    assert 0 <= file.getvalue().rfind("\x1b[?25l") < file.getvalue().rfind("\x1b[?25h")


# --- the table ---


@pytest.mark.parametrize(("workers", "nodes"), [(1, 1), (4, 2), (16, 4), (300, 38), (4096, 512)])
def test_the_table_fits_80_columns(workers: int, nodes: int) -> None:
    result, _, _, node_of = run(workers, nodes, steps=8)
    # Numbers as large as they get, in the widest of tables.
    large = tuple(replace(status, step=100_000, bytes_sent=10**11, averages=12_500) for status in result.per_worker)
    console = Console(file=io.StringIO(), width=80)
    with console.capture() as capture:
        print_result(console, replace(result, per_worker=large), node_of)
    text = capture.get()
    assert "…" not in text
    assert "100 GB" in text
    first = [line.split()[0] for line in text.splitlines()[2:] if line.strip()]
    if workers <= 16:
        assert [word for word in first if word.isdigit()] == [str(rank) for rank in range(workers)]
    else:
        assert {"min", "25", "median", "75", "max"} <= set(first)
    assert "all" in first


def test_the_table_prints_on_an_ascii_terminal() -> None:
    result, _, _, node_of = run()
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii")
    print_result(Console(file=file, width=80), result, node_of)
    file.flush()
    assert b"#####" in raw.getvalue()


def test_the_headline_says_it_in_one_sentence() -> None:
    result = replace(run()[0], computing_share=0.98)
    assert headline(result) == (
        "lasgd on digits: accuracy 97.2 % of the averaged model, "
        "4 workers on 2 nodes computing 98 % of the time, 12.3 s"
    )
    timing = replace(result, accuracy=None, loss=None, world="virtual", workers=1, nodes=1)
    assert headline(timing) == (
        "lasgd on digits: timing only, 1 worker on 1 node computing 98 % of the time, 12.3 s of virtual time"
    )


def test_numbers_read_well() -> None:
    assert [human_bytes(n) for n in (0, 999, 1000, 1_234_567, 999_999, 5e17)] == [
        "0 B", "999 B", "1 kB", "1.23 MB", "1 MB", "500 PB",
    ]  # fmt: skip
    assert [human_seconds(s) for s in (0.0123, 0.9999, 12.34, 125, 7500)] == [
        "12.3 ms", "1.0 s", "12.3 s", "2 min 05 s", "2 h 05 min",
    ]  # fmt: skip
    assert quantile([3.0, 1.0, 2.0], at=0.5) == 2.0
    assert math.isnan(quantile([3.0, math.nan, 2.0], at=1.0))


# --- the picture ---


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert image.size == tuple(round(inches * DPI) for inches in SIZE_INCHES)
        return np.asarray(image.convert("RGB"))


@pytest.mark.parametrize(("workers", "nodes", "steps"), [(1, 1, 1), (4, 2, 40), (300, 38, 16)])
def test_a_picture_for_every_size(tmp_path: Path, workers: int, nodes: int, steps: int) -> None:
    draw_summary(tmp_path / "summary.png", *run(workers, nodes, steps))
    picture = pixels(tmp_path / "summary.png")
    blue = (picture == (0x2F, 0x7F, 0xB8)).all(axis=2)  # computing
    assert blue[picture.shape[0] // 2 :].sum() > 20_000
    assert (picture[: picture.shape[0] // 2] < 128).any()  # the loss, the numbers


def test_a_picture_of_next_to_nothing(tmp_path: Path) -> None:
    result, statuses, _, node_of = run()
    bare = replace(result, accuracy=None, loss=None, per_worker=())
    draw_summary(tmp_path / "bare.png", bare, [], [], node_of)
    lost = [replace(status, loss=math.nan) for status in statuses]
    draw_summary(tmp_path / "lost.png", result, lost, [Event("wait", "average", 0, 0.0, 0.0)], node_of)
    early = [replace(STATUS, rank=rank, seconds=0.1 * rank) for rank in range(4)]  # one status each
    draw_summary(tmp_path / "early.png", result, early, [Event("compute", "step", 2, 1.0, 0.0)], node_of)
    for name in ("bare", "lost", "early"):
        assert (pixels(tmp_path / f"{name}.png") < 128).any()


def test_the_window_shows_single_steps_around_an_exchange() -> None:
    events = [Event("compute", "step", rank, 0.01 * step, 0.009) for rank in (0, 1) for step in range(1000)]
    average = Event("communicate", "average", 1, 6.0, 0.05)
    begin, end = choose_window([*events, average])
    assert end - begin == pytest.approx(0.12)
    assert begin <= average.start < average.start + average.seconds <= end
    begin, end = choose_window(events)
    assert begin < 5.0 < end


# --- the folder ---


def test_the_outputs_are_whole(tmp_path: Path) -> None:
    result, statuses, events, node_of = run()
    directory = tmp_path / "a" / "b"
    for _ in range(2):  # the second replaces the first
        paths = write_outputs(directory, result, statuses, iter(events), node_of)
        assert sorted(path.name for path in directory.iterdir()) == ["result.json", "summary.png", "trace.json"]
        assert set(paths) == set(directory.iterdir())
    pixels(directory / "summary.png")
    assert Result.from_dict(strictly((directory / "result.json").read_text())) == result


def test_perfetto_can_open_the_trace(tmp_path: Path) -> None:
    result, statuses, events, node_of = run()
    write_outputs(tmp_path, result, statuses, events, node_of)
    rows = strictly((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {row["pid"]: row["args"]["name"] for row in rows if row["name"] == "process_name"}
    assert names == {rank: f"rank {rank} (node {node})" for rank, node in enumerate(node_of)}
    complete = [row for row in rows if row["ph"] != "M"]
    for row in complete:
        assert row["ph"] == "X"
        assert isinstance(row["pid"], int)
        assert isinstance(row["tid"], int)
        assert row["ts"] >= 0
        assert row["dur"] >= 0
    for rank in range(len(node_of)):
        own = sorted((row["cat"], row["name"], row["ts"], row["dur"]) for row in complete if row["pid"] == rank)
        assert own == sorted((e.kind, e.name, e.start * 1e6, e.seconds * 1e6) for e in events if e.rank == rank)


def test_a_folder_that_cannot_be_made_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(BadInput, match="--out"):
        write_outputs(tmp_path / "file", *run(steps=8))


def test_a_picture_that_fails_leaves_the_old_one_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_outputs(tmp_path, *run(steps=8))
    before = (tmp_path / "summary.png").read_bytes()

    def half(path: Path, *_: object) -> None:
        path.write_bytes(b"half a picture")
        raise KeyboardInterrupt

    monkeypatch.setattr("offbeat.report.summary.draw_summary", half)
    with pytest.raises(KeyboardInterrupt):
        write_outputs(tmp_path, *run(steps=16))
    assert (tmp_path / "summary.png").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 3


def test_overlapping_exchanges_get_tracks_of_their_own() -> None:
    events = [
        Event("communicate", "average", 0, 0.0, 1.0),
        Event("communicate", "swap", 0, 0.5, 1.0),
        Event("communicate", "average", 0, 1.0, 1.0),
        Event("compute", "step", 0, 0.0, 2.0),
    ]
    rows = [row for row in chrome(events, (0,))["traceEvents"] if row["ph"] == "X"]
    for tid in {row["tid"] for row in rows}:
        spans = sorted((row["ts"], row["ts"] + row["dur"]) for row in rows if row["tid"] == tid)
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert len({row["tid"] for row in rows}) == 3
