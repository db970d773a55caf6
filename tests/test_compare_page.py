"""report.html in a real browser: made from outcomes written by hand, and once from a race."""

import json
import math
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from offbeat import cli
from offbeat.compare import outputs
from offbeat.compare.config import Config
from offbeat.compare.contest import ALONE, Contest, Entry, Outcome
from offbeat.compare.lap import Lap
from offbeat.compare.looks import labels_of
from offbeat.compare.measures import measure
from offbeat.compare.meetings import meetings
from offbeat.compare.outputs import write_outputs
from offbeat.compare.page_data import page_data, script_json
from offbeat.compare.snapshots import Point
from offbeat.compare.timeline import step_seconds, timeline
from offbeat.compare.worker import Report
from offbeat.layout import Layout

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
RIVAL, BROKEN = "rivals/other.py:train", "rivals/broken.py:train"
NASTY = "</script><script>alert('task')</script><!-- & \u2028"
ABOUT: dict[str, Any] = {
    "date": "2026-01-02T03:04:05Z",
    "command": ["offbeat", "compare", "--task", NASTY],
    "machine": {"cpus": 2, "processor": "x86_64", "gpu": None},
    "versions": {"offbeat": "0", "torch": "2", "python": "3"},
}
STEP = 0.1  # seconds, without communication
WAITS = {"none": 0.0, "ddp": 0.08, "lasgd": 0.005, "gossip": 0.0, RIVAL: 0.05}


def report(spec: str, rank: int, steps: int, chance: random.Random) -> Report:
    """A worker whose events began 5 s before the clock of its report did."""
    began, now, ends, events = 1000.0 + 0.001 * rank, 5.0, [], []

    def event(kind: str, name: str, start: float, seconds: float, nbytes: int = 0, peers: tuple[int, ...] = ()) -> None:
        events.append(
            {"kind": kind, "name": name, "rank": rank, "start": start, "seconds": seconds, "nbytes": nbytes,
             "peers": list(peers)}
        )  # fmt: skip

    for step in range(steps):
        own, wait = STEP * chance.uniform(0.95, 1.05), WAITS[spec] * chance.uniform(0.5, 1.0)
        if spec == "ddp":  # waits for gradients within its step
            event("communicate", "gradients", now + own / 2, wait + own / 4, 40_000, (0, 1, 2, 3))
            event("wait", "gradients", now + 3 * own / 4, wait)
            event("compute", "step", now, own)
        else:
            event("compute", "step", now, own)
            if wait:
                event("wait", "average", now + own, wait)
        if spec == "lasgd" and step % 4 == 0:
            event("communicate", "average", now, 3 * own, 40_000, (0, 1, 2, 3))
        if spec == "gossip":
            for part in range(3):
                event("communicate", "swap", now + (0.2 + 0.1 * part) * own, 0.1 * own, 9000, ((rank + 1) % 4,))
        now += own + wait
        ends.append(began + now - 5.0)
    return Report(
        rank=rank, began_at=began, step_ends=ends, losses=[2.3 * math.exp(-k / 15) + 0.1 for k in range(steps)],
        ended_at=ends[-1] + 0.1, cpu_seconds=1.0, waiting_share=None if spec == RIVAL else WAITS[spec] / 0.2,
        events=[] if spec == RIVAL else events,
    )  # fmt: skip


def outcome(contest: Contest, entry: Entry, alone: float | None) -> Outcome:
    if entry.strategy == BROKEN:
        return Outcome(entry, None, None, None, f"worker 0 ended with status 1: {NASTY}")
    chance, layout = random.Random(str(entry)), contest.layout(entry.workers)
    steps = contest.steps or 40
    reports = [report(entry.strategy, rank, steps, chance) for rank in range(entry.workers)]
    seconds = reports[0].step_ends[-1] - reports[0].began_at
    slow = chance.uniform(2, 3)
    curve = [
        Point(seconds * k / 10, steps * k / 10, 0.93 - 0.8 * math.exp(-k / slow), 2.3 * math.exp(-k / slow))
        for k in range(1, 11)
    ]
    config = Config(
        contestant=entry.strategy, folder="", task=contest.task, node_of=layout.node_of, steps=steps, batch=8,
        seed=entry.seed,
    )  # fmt: skip
    moved = 10_000 * list(WAITS).index(entry.strategy)
    sent = [(999.0 + k, [moved * k] * layout.nodes) for k in range(10)]
    lap = Lap(config, reports, sent, curve)
    link = [12_500.0 * 8] * layout.nodes if entry.link else []
    found = measure(lap, samples_per_step=8, target_accuracy=contest.target_accuracy, link=link)
    return Outcome(entry, lap, found, found.steps_per_second / alone if alone else 1.0)


def race(**changes: Any) -> tuple[Contest, list[Outcome]]:
    """Four workers on two nodes, two links, two repeats; a rival, and one that fails."""
    contest = Contest(strategies=("ddp", "lasgd", "gossip"), links=("100kbit", None), nodes=2, target_accuracy=0.8,
                      snapshots=10, repeats=2, step_seconds=STEP, **changes)  # fmt: skip
    object.__setattr__(contest, "strategies", (*contest.strategies, RIVAL, BROKEN))  # whose files are not there
    object.__setattr__(contest, "task", NASTY)
    outcomes: list[Outcome] = []
    alone = None
    for entry in contest.entries():
        outcomes.append(outcome(contest, entry, None if entry.strategy == ALONE else alone))
        if (found := outcomes[-1].measures) is not None and entry.strategy == ALONE:
            alone = found.steps_per_second
    return contest, outcomes


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("race")
    told = write_outputs(folder, *race(), ABOUT)
    assert told == f"open {folder / 'report.html'} in a browser"
    return folder


class Browsed:
    """A page that was opened, and what it complained about or asked the network for."""

    def __init__(self, page: Any) -> None:
        self.page, self.complaints, self.requests = page, [], []
        page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: (self.complaints.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: self.requests.append(request.url))

    def open(self, path: Path) -> Any:
        self.page.goto(path.as_uri(), wait_until="load")
        self.page.wait_for_selector("#timeline .main-svg")
        return self.page

    def check(self, path: Path) -> None:
        asked = [url for url in self.requests if not url.startswith(("data:", "blob:"))]
        assert asked == [path.as_uri()], "the page needs no network"
        assert self.complaints == []


@pytest.fixture
def browsed() -> Iterator[Browsed]:
    if CHROMIUM is None:
        pytest.skip("no chromium is installed, and as root scripts/test would install it")
    from playwright.sync_api import sync_playwright

    mark = f"--offbeat-test={os.getpid()}"  # which chromium does not know, and we know it by
    with sync_playwright() as playwright:
        arguments = ["--disable-gpu", "--disable-dev-shm-usage", mark]
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=arguments, chromium_sandbox=os.geteuid() != 0, timeout=60_000
        )
        try:
            page = browser.new_page(viewport={"width": 1200, "height": 900})
            page.set_default_timeout(20_000)
            yield Browsed(page)
        finally:
            browser.close()
    assert not running(mark), "the browser is gone with its test"


def running(mark: str) -> list[str]:
    """The command lines with that word in them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended meanwhile
            found.append(path.read_bytes().decode(errors="replace"))
    return [line for line in found if mark in line]


def boxes(page: Any, selector: str) -> list[tuple[float, float]]:
    """Width and height of every element as drawn."""
    found: list[tuple[float, float]] = page.eval_on_selector_all(
        selector, "all => all.map(each => each.getBoundingClientRect()).map(box => [box.width, box.height])"
    )
    return found


def column(page: Any, number: int) -> list[str]:
    texts: list[str] = page.eval_on_selector_all(
        f"#result tbody td:nth-child({number})", "all => all.map(each => each.firstChild.nextSibling?.textContent ?? "
        "each.textContent)" if number == 1 else "all => all.map(each => each.firstChild.textContent)"
    )  # fmt: skip
    return texts


def wait_for_change(drawn: Any, before: str, seconds: float = 10.0) -> None:
    until = time.monotonic() + seconds
    while drawn.inner_html() == before:
        assert time.monotonic() < until, "nothing has changed"
        drawn.page.wait_for_timeout(50)


@pytest.mark.timeout(120)
def test_everything_is_drawn(written: Path, browsed: Browsed) -> None:
    page = browsed.open(written / "report.html")
    for selector, least in (
        ("#curves .scatterlayer path.js-line", 10),  # five strategies, twice
        ("#throughput .barlayer path", 5),
        ("#wire .barlayer path", 4),  # none sends nothing
        ("#timeline .barlayer path", 100),
        ("#cluster rect.node", 3),  # two nodes and the switch
        ("#cluster circle", 4),
    ):
        drawn = [box for box in boxes(page, selector) if max(box) > 1]
        assert len(drawn) >= least, selector
    assert page.locator("#curves .annotation-text").text_content() == "target 80 %"
    assert "100kbit" in page.locator("#cluster").text_content()
    assert NASTY in page.locator("h1").text_content(), "what a user wrote is shown as it was written"
    failed = page.locator("td.reason")
    assert failed.count() == 2, "one for each link"
    assert "could not run: worker 0 ended with status 1: </script>" in failed.first.text_content()
    facts = page.locator("#facts").text_content()
    for words in ("the task's own", "emulated, 0.1 s a step", "100kbit", "2 CPUs", "torch 2", "--task", "2026-01-02"):
        assert words in facts
    browsed.check(written / "report.html")


@pytest.mark.timeout(120)
def test_choices(written: Path, browsed: Browsed) -> None:
    from playwright.sync_api import expect

    page = browsed.open(written / "report.html")

    lines = page.locator("#curves .scatterlayer path.js-line")
    chip = page.locator("#legend .chip", has_text="lasgd")
    expect(lines).to_have_count(10)
    chip.click()
    expect(lines).to_have_count(8)  # it ran twice
    assert chip.get_attribute("aria-pressed") == "false"
    chip.click()
    expect(lines).to_have_count(10)

    drawn = page.locator("#curves .cartesianlayer")
    for choice in ("#curve-x [data-value=steps]", "#curve-y [data-value=test]", "#curve-y [data-value=training]"):
        before = drawn.inner_html()
        page.click(choice)
        wait_for_change(drawn, before)

    drawn = page.locator("#timeline .barlayer")
    for name in ("ddp", "lasgd", "gossip", "other.py:train"):
        before = drawn.inner_html()
        page.select_option("#timeline-strategy", label=name)
        wait_for_change(drawn, before)
    assert "does not tell" in page.locator("#timeline-note").text_content()
    assert page.locator("#timeline-strategy option", has_text="broken").count() == 0, "it has no timeline"
    before = drawn.inner_html()
    page.locator('#timeline [data-title="Zoom in"]').click()
    wait_for_change(drawn, before)

    page.select_option("#cluster-strategy", label="gossip")
    layout = Layout.even(4, 2)
    assert page.locator("#cluster path.meeting").count() == len(meetings("gossip", layout).edges) > 0
    page.select_option("#place", label="4 workers, loopback (not shaped)")
    expect(page.locator("#wire-box")).to_be_hidden()
    assert "not shaped" in page.locator("#bars-note").text_content()
    browsed.check(written / "report.html")


@pytest.mark.timeout(120)
def test_the_table_can_be_sorted(written: Path, browsed: Browsed) -> None:
    page = browsed.open(written / "report.html")
    head = page.locator("#result th", has_text="throughput")
    head.locator("button").click()
    rising = column(page, 4)
    assert head.get_attribute("aria-sort") == "ascending"
    shares = [float(text) for text in rising if text[0].isdigit()]
    assert len(shares) == 10
    assert shares == sorted(shares)
    assert all("could not run" in text for text in rising[-2:]), "those without a number come last"
    head.locator("button").click()
    falling = column(page, 4)
    assert [float(text) for text in falling[:10]] == sorted(shares, reverse=True)
    assert all("could not run" in text for text in falling[-2:])
    page.locator("#result th", has_text="strategy").locator("button").click()
    names = column(page, 1)
    assert names == sorted(names)
    browsed.check(written / "report.html")


@pytest.mark.timeout(120)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_and_in_the_dark(scheme: str, written: Path, browsed: Browsed) -> None:
    browsed.page.emulate_media(color_scheme=scheme)
    browsed.page.set_viewport_size({"width": 390, "height": 800})
    page = browsed.open(written / "report.html")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390, "nothing but the table scrolls sideways"
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(18, 23, 28)")
    browsed.check(written / "report.html")


def test_the_page_is_moderate_in_size(written: Path) -> None:
    contest, outcomes = race(steps=400)
    data = page_data(contest, outcomes, ABOUT)
    assert max(len(bars) for each in data["timelines"] for bars in each["workers"]) <= 300
    assert len(script_json(data)) < 600_000
    pictures = {path.name for path in written.glob("*.png")}
    assert pictures == {
        f"{name}-4-{link}.png" for name in ("accuracy", "throughput", "timeline") for link in ("100kbit", "loopback")
    }
    assert all((written / name).stat().st_size > 10_000 for name in pictures)


def test_a_timeline_is_on_the_clock_of_the_report() -> None:
    _, outcomes = race()
    for outcome in outcomes[:5]:
        assert outcome.lap is not None
        ends = [end - 1000.0 for end in outcome.lap.reports[1].step_ends]
        bars = timeline(outcome.lap, 10_000)[1]
        own = [bar for bar in bars if bar.what in ("compute", "wait", "step")]
        assert own[0].start == pytest.approx(0.001, abs=1e-4)
        assert own[-1].end == pytest.approx(ends[-1], abs=1e-4), outcome.entry
        for before, after in pairwise(own):
            assert after.start == pytest.approx(before.end, abs=1e-6), "one thing after the other"
        assert step_seconds([bars]) == pytest.approx(ends[-1] / len(ends), rel=0.1)
        words = {bar.words(1) for bar in bars if bar.what == "communicate"}
        assert words == {
            "none": set(), "ddp": {"gradients with 0, 2, 3: 40 kB"}, "lasgd": {"average with 0, 2, 3: 40 kB"},
            "gossip": {"swap with 2: 27 kB in 3 parts"}, RIVAL: set(),
        }[outcome.entry.strategy]  # fmt: skip


def slowed(report: Report, factor: float) -> Report:
    """The same worker, taking longer for everything."""
    ends = [report.began_at + factor * (end - report.began_at) for end in report.step_ends]
    events = [
        {**e, "start": 5.0 + factor * (e["start"] - 5.0), "seconds": factor * e["seconds"]} for e in report.events
    ]
    return replace(report, step_ends=ends, events=events, ended_at=ends[-1] + 0.1)


@pytest.mark.parametrize(("spec", "factor"), [("lasgd", 5.0), ("gossip", 3.0), (RIVAL, 5.0)])
def test_a_long_race_with_a_straggler_has_a_report(tmp_path: Path, spec: str, factor: float) -> None:
    """The fast workers have ended long before the part of the lap that is shown of the slow one."""
    contest, _ = race(steps=1000)
    found = outcome(contest, Entry(spec, "100kbit", 4, 0, 0), 1.0)
    assert found.lap is not None
    reports = [slowed(found.lap.reports[0], factor), *found.lap.reports[1:]]
    outcomes = [replace(found, lap=replace(found.lap, reports=reports))]
    write_outputs(tmp_path, contest, outcomes, ABOUT)
    assert (tmp_path / "report.html").stat().st_size > 100_000
    assert (tmp_path / "timeline.png").stat().st_size > 5_000
    assert all(timeline(outcomes[0].lap, 300))  # type: ignore[arg-type]


def test_labels_are_short_where_that_is_enough() -> None:
    assert labels_of(["a/b.py:f", "ddp", "c/b.py:f", "c/d.py:f"]) == ["a/b.py:f", "ddp", "c/b.py:f", "d.py:f"]


def test_who_meets_whom() -> None:
    layout = Layout.even(6, 2)
    assert meetings("gossip:topology=ring", layout).edges == ((0, 1), (0, 5), (1, 2), (2, 3), (3, 4), (4, 5))
    assert "must be a power of two" in meetings("gossip:topology=hypercube", layout).sentence
    assert len(meetings("sgp", layout).edges) == 6 * 3
    assert meetings("daso", layout).sentence == "Gradients are averaged within each node, models across the nodes."
    assert meetings("lasgd", layout).sentence == meetings("ddp", layout).sentence == "All workers average together."
    assert meetings(RIVAL, layout).edges == meetings("none", layout).edges == ()


def test_nothing_in_the_data_ends_the_script() -> None:
    text = script_json({"x": NASTY, "bad": math.nan})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text)["x"] == NASTY


def test_without_plotly_the_rest_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    assert write_outputs(tmp_path, *race(), ABOUT) == outputs.NO_PLOTLY
    assert not (tmp_path / "report.html").exists()
    assert len(list(tmp_path.glob("*.png"))) == 6


def test_a_race_in_which_all_failed_has_a_page(tmp_path: Path, browsed: Browsed) -> None:
    contest, outcomes = race()
    write_outputs(tmp_path, contest, [each for each in outcomes if each.failure], ABOUT)
    browsed.page.goto((tmp_path / "report.html").as_uri())
    browsed.page.wait_for_selector("td.reason")
    assert browsed.page.locator("#timeline-note").text_content() == "No lap was finished."
    browsed.check(tmp_path / "report.html")


ARGUMENTS = "compare --loopback --workers 2 --strategies lasgd --steps 10 --step-seconds 0.01 --quiet --out"


@pytest.fixture(scope="module")
def raced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("raced")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("sys.argv", ["offbeat", *ARGUMENTS.split(), str(folder)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
    assert ended.value.code == 0
    return folder


@pytest.mark.timeout(120)
def test_a_race_leaves_its_report(raced: Path) -> None:
    assert {path.name for path in raced.iterdir()} == {
        "compare.json", "report.html", "loss.png", "throughput.png", "timeline.png"
    }  # fmt: skip


@pytest.mark.timeout(120)
def test_the_report_of_a_race(raced: Path, browsed: Browsed) -> None:
    page = browsed.open(raced / "report.html")
    assert len(boxes(page, "#timeline .barlayer path")) >= 20
    assert column(page, 1) == ["none", "lasgd"]
    browsed.check(raced / "report.html")


def test_a_race_that_is_broken_off_leaves_its_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, outcomes = race()

    def run_contest(_contest: Contest, *, ended: Any, **_: Any) -> None:
        ended(outcomes[0])
        raise cli.Interrupted(signal.SIGINT)

    monkeypatch.setattr("offbeat.compare.command.run_contest", run_contest)
    monkeypatch.setattr("sys.argv", ["offbeat", *ARGUMENTS.split(), str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 128 + signal.SIGINT
    assert {"compare.json", "report.html"} < {path.name for path in tmp_path.iterdir()}
