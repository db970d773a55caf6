"""The tables of the races are what the kept results say."""

import importlib
import json
import math
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from commands import ROOT


@pytest.fixture(autouse=True)
def _found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


@pytest.fixture
def table() -> ModuleType:
    return importlib.import_module("race_table")


@pytest.fixture
def best() -> ModuleType:
    return importlib.import_module("race_best")


@pytest.fixture
def races() -> ModuleType:
    return importlib.import_module("races")


def record(seconds: dict[str, list[float | None]]) -> dict[str, Any]:
    runs = [
        {
            "strategy": strategy, "link": "100mbit", "failure": None, "accuracy": 0.9,
            "throughput_share": 0.5, "wire_utilisation": None, "cpu_share": 0.1, "repeat": seed, "seed": seed,
            "curve": [
                {"seconds": 0.0, "steps": 0, "accuracy": 0.0, "loss": 2.0},
                {"seconds": value or 1.0, "steps": 9, "accuracy": 0.0 if value is None else 0.8, "loss": 1.0},
            ],
        }
        for strategy, values in seconds.items()
        for seed, value in enumerate(values)
    ]  # fmt: skip
    return {
        "date": "2026-01-02T03:04:05Z", "command": ["offbeat", "compare"], "compute": "real", "target_accuracy": 0.8,
        "machine": {"cpus": 2, "gpu": None}, "versions": {"torch": "2.13.0"}, "runs": runs,
    }  # fmt: skip


def test_tables_and_results_agree(table: ModuleType) -> None:
    found = table.blocks()
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "README.md", ROOT / "docs" / "race.md")]
    lower_rates = {"race-rate-0.01", "race-rate-0.007", "race-rate-0.005", "race-targets"}
    others = {"race", "race-short", "race-epochs", "race-gpu", "race-gpu-rate", "race-ceilings", "race-straggler"}
    assert others | lower_rates == found.keys()
    assert {name for text in texts for name in re.findall(r"<!-- (race[^:]*):begin -->", text)} == found.keys()
    for name in found:
        assert sum(text.count(f"<!-- {name}:begin -->") for text in texts) == 1, name
    for text in texts:
        assert table.filled(text, found) == text, "not what benchmarks/race_table.py writes"


def test_the_fastest_comes_first_and_every_seed_is_shown(table: ModuleType) -> None:
    race = table.Race("accuracy", record({"none": [1.0], "ddp": [100.0, 120.0], "lasgd": [10.0, None], "sgp": [30.0]}))
    rows = table.to_accuracy_table([race])[2:]
    assert [row.split("|")[1].strip() for row in rows] == ["`none`", "`sgp`", "`ddp`", "`lasgd`"]
    assert "| 10.0, never | - |" in rows[3], "a median with one that never got there is none"
    assert "| 30.0 | 3.3 | 0.50 | - | 90.0% |" in rows[1], "compared in the seed that both have"
    assert "| 100, 120 | 1.0 |" in rows[2]


def test_who_needs_no_communication_is_in_the_table(table: ModuleType) -> None:
    race = table.Race("accuracy", record({"none": [15.0], "lasgd": [10.0], "ddp": [None]}))
    for rows in (table.to_accuracy_table([race]), table.to_accuracy_table([race], only=table.has_all_seeds([race]))):
        assert any(row.startswith("| `none` | 15.0 |") for row in rows)


def test_a_harder_target_has_a_column_of_its_own(table: ModuleType) -> None:
    race = table.Race("accuracy", record({"lasgd": [10.0], "ddp": [100.0]}))
    race.record["runs"][0]["curve"].append({"seconds": 20.0, "steps": 18, "accuracy": 0.9, "loss": 0.5})
    head, _, lasgd, ddp = table.to_accuracy_table([race], harder=0.85)
    assert head.startswith("| strategy | seconds to 80%, each seed | seconds to 85% | faster")
    assert lasgd.startswith("| `lasgd` | 10.0 | 15.0 | 10.0 |"), "half way from 80 to 90"
    assert ddp.startswith("| `ddp` | 100 | never | 1.0 |")


def test_each_is_compared_at_its_best_rate(best: ModuleType, races: ModuleType) -> None:
    low = record({"lasgd": [20.0, 10.0, 30.0], "lasgd:trail=0.1": [5.0, None, None], "none": [None, None, 9.0]})
    high = record({"r/torchft_diloco.py:train": [40.0, 60.0, None], "lasgd": [21.0, 21.0, 21.0]})
    for kept, rate in ((low, "0.1"), (high, "0.2")):
        kept["command"] += ["--learning-rate", rate]
    both = [races.Race("low", low), races.Race("high", high)]
    without = "20.0 (0.1) | 60.0 (0.2) | 3.00 (2.00, 6.00, -)"
    rows = best.targets_table(both, targets=(0.8,))[2:]
    assert rows[0] == f"| 80% | never | {without} | {without} |", "a trail is no help there"


def test_an_accuracy_that_was_lost_again_was_not_kept_to_the_end(races: ModuleType) -> None:
    run = record({"lasgd": [10.0]})["runs"][0]
    accuracies = {10.0: 0.8, 20.0: 0.9, 30.0: 0.7, 40.0: 0.9, 50.0: 0.85}
    run["curve"] = [{"seconds": at, "steps": 1, "accuracy": value, "loss": 1.0} for at, value in accuracies.items()]
    assert races.seconds_of(run, 0.8) == 10.0
    assert races.seconds_to_the_end(run, 0.8) == pytest.approx(35.0), "half way from 70 to 90"
    assert races.seconds_to_the_end(run, 0.7) == 10.0
    assert races.seconds_to_the_end(run, 0.9) is None
    assert races.seconds_to_the_end({**run, "failure": "no such luck"}, 0.7) is None


def test_accuracies_at_equal_epochs_are_held_against_ddp_with_the_same_seed(table: ModuleType) -> None:
    kept = record({"none": [1.0], "lasgd": [1.0, 1.0], "ddp": [1.0]})
    for run, accuracy in zip(kept["runs"], (0.5, 0.905, 0.8, 0.9), strict=True):
        run["accuracy"] = accuracy
    assert table.epochs_table([table.Race("epochs", kept)])[2:] == [
        "| `ddp` | 90.0% | - |",
        "| `lasgd` | 90.5%, 80.0% | +0.5, - |",
        "| `none` | 50.0% | -40.0 |",
    ]


def test_who_never_gets_there_is_no_times_as_fast(best: ModuleType) -> None:
    never, some = best.Best((math.inf, math.inf, 9.0), "0.1"), best.Best((8.0, 10.0, 12.0), "0.2")
    assert never.over(some) == some.over(never) == "-"
    assert best.Best((8.0, math.inf, 12.0), "0.1").over(some) == "1.20 (1.00, -, 1.00)"


def test_who_was_not_raced_with_every_seed_is_nobody(best: ModuleType, races: ModuleType) -> None:
    kept = record({"lasgd": [20.0, 10.0]})
    kept["command"] += ["--learning-rate", "0.1"]
    assert best.targets_table([races.Race("few", kept)], targets=(0.8,))[2] == (
        "| 80% | never | never | never | - | never | never | - |"
    )


def test_a_seed_that_failed_keeps_its_place_in_every_column(table: ModuleType) -> None:
    kept = record({"lasgd": [10.0, 20.0]})
    kept["runs"][0].update(failure="no such luck", accuracy=None, throughput_share=None)
    row = table.to_accuracy_table([table.Race("accuracy", kept)])[2]
    assert row == "| `lasgd` | failed, 20.0 | - | -, 0.50 | -, - | -, 90.0% |"


def test_the_latest_run_of_a_seed_counts(table: ModuleType) -> None:
    early, late = record({"ddp": [100.0, 120.0], "lasgd": [20.0]}), record({"lasgd": [10.0]})
    late["date"] = "2026-02-02T03:04:05Z"
    rows = table.to_accuracy_table([table.Race("late", late), table.Race("early", early)])[2:]
    assert "| 10.0 | 10.0 |" in rows[0]
    assert "| 100, 120 | 1.0 |" in rows[1]


def test_a_base_that_never_got_there_is_compared_by_how_long_it_tried(table: ModuleType) -> None:
    kept = record({"ddp": [None], "lasgd": [10.0]})
    kept["runs"][0]["curve"][-1]["seconds"] = 87.0
    lasgd, ddp = table.to_accuracy_table([table.Race("accuracy", kept)])[2:]
    assert "| 10.0 | more than 8 |" in lasgd
    assert "| never | - |" in ddp


def test_where_the_base_got_there_in_some_seeds_its_median_is_of_what_is_known(table: ModuleType) -> None:
    own, base = {0: 10.0, 1: 10.0, 2: 10.0}, {0: 50.0, 1: None, 2: None}
    assert table.ratio(own, base, {0: 300.0, 1: 100.0, 2: 200.0}) == "more than 10"
    assert table.ratio(own, {0: None}, {0: 5.0}) == "-"


def test_one_that_could_not_run_is_listed_with_the_reason(table: ModuleType) -> None:
    kept = record({"ddp": [100.0]})
    kept["runs"].append({**kept["runs"][0], "strategy": "rivals/x_y.py:train:every=3", "failure": "no such luck"})
    assert any("x y, `every=3` | could not run: no such luck" in row for row in table.to_accuracy_table(
        [table.Race("accuracy", kept)]
    ))  # fmt: skip


def test_only_what_stands_between_the_marks_is_replaced(table: ModuleType) -> None:
    text = "a\n<!-- race:begin -->\nold\n<!-- race:end -->\nb\n"
    assert table.filled(text, {"race": ["new"], "other": ["x"]}) == text.replace("old", "new")


KEPT = sorted((ROOT / "benchmarks" / "results").glob("*.json"))


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_seconds_to_the_target_are_by_the_rule_of_the_tables(table: ModuleType, path: Path) -> None:
    kept = json.loads(path.read_text(encoding="utf-8"))
    target = kept.get("target_accuracy")
    for run in kept["runs"]:
        if "curve" in run and run["failure"] is None:
            seconds = None if target is None else table.seconds_of(run, target)
            assert run["seconds_to_target"] == pytest.approx(seconds), f"{run['strategy']}, seed {table.seed_of(run)}"


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_a_kept_race_is_the_one_of_its_name_or_says_what_differs(table: ModuleType, path: Path) -> None:
    races: dict[str, str] = importlib.import_module("race").RACES
    race = table.Race.read(path.stem)
    if "curve" in race.record["runs"][0]:  # others are of other benchmarks
        said = race.record.get("differs")
        assert (options(race.record["command"][2:]) == options(races[path.stem].split())) == (said is None)
        assert (race.laps == len(race.record["runs"])) == ("left_out" not in race.record), "laps that are missing"


def options(words: list[str]) -> dict[str, str]:
    """Flags and their values, in whatever order."""
    values = [word if not word.startswith("--") else "" for word in (*words[1:], "")]
    found = {word: value for word, value in zip(words, values, strict=True) if word.startswith("--")}
    return {"--repeats": "1", **found}


def test_laps_that_are_missing_are_told_below_the_table(table: ModuleType) -> None:
    kept = record({"none": [None], "lasgd": [1.0]})
    kept["command"] += ["--strategies", "lasgd,gossip"]
    assert not table.Race("accuracy", {**kept, "command": [*kept["command"][:-1], "lasgd"]}).caption.count("laps")
    kept["left_out"] = "gossip: it was late"
    assert "; 2 of its 3 laps, without gossip: it was late; compute real)" in table.Race("accuracy", kept).caption


def test_kept_results_name_no_place_on_the_machine() -> None:
    for path in KEPT:
        kept = json.loads(path.read_text(encoding="utf-8"))
        assert {"date", "command", "machine", "versions", "runs"} <= kept.keys()
        assert not [word for word in kept["command"] if Path(word).is_absolute()]
