"""How good are predictions? Real steps of architectures that no calibration has seen, against what a profile says.

    python benchmarks/predicted.py --device profile.json [--cuda] [--out predicted.png]

Prints a row per model and batch, then mean and worst error; wanted: mean <= 5 %, worst <= 12 %.
"""

import argparse
import statistics
from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib.figure import Figure

from offbeat.cost.device_profile import load_profile
from offbeat.cost.measured_step import measured_step
from offbeat.cost.predict import predict
from offbeat.cost.zoo import held_out
from offbeat.report.table import human_seconds, percent

BATCHES = {"cpu": (2, 8, 16, 32), "cuda": (16, 64, 128, 256)}
WANTED_MEAN, WANTED_WORST = 0.05, 0.12


@dataclass(frozen=True)
class Compared:
    model: str
    batch: int
    predicted: float  # seconds
    measured: float

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", required=True, help="a profile")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--seconds", type=float, default=4.0, help="at most, for one model and batch")
    parser.add_argument("--out", type=Path, help="for a picture")
    given = parser.parse_args()
    if given.threads:
        torch.set_num_threads(given.threads)
    profile = load_profile(given.device)
    device = torch.device("cuda" if profile.platform == "cuda" else "cpu")
    autocast = torch.bfloat16 if profile.setup.get("autocast") == "bf16" else None
    rows = []
    for subject in held_out(profile.platform, autocast):
        for batch in BATCHES[profile.platform]:
            predicted = predict(subject.at(batch), profile).time.seconds
            measured = measured_step(subject, batch, device, at_most_seconds=given.seconds)
            rows.append(row := Compared(subject.name, batch, predicted, measured))
            print(
                f"{row.model:>10} batch {row.batch:>3}: predicted {human_seconds(predicted):>9}, "
                f"measured {human_seconds(measured):>9}, {100 * row.error:+6.1f} %",
                flush=True,
            )
    errors = [abs(row.error) for row in rows]
    mean, worst = statistics.mean(errors), max(errors)
    said = f"mean {percent(mean, 1)}, worst {percent(worst, 1)} of {len(rows)} steps"
    print(f"{profile.device.name}, {profile.label}: {said}")
    if given.out is not None:
        draw(given.out, rows, f"{profile.device.name}: mean error {percent(mean, 1)}, worst {percent(worst, 1)}")
    raise SystemExit(0 if mean <= WANTED_MEAN and worst <= WANTED_WORST else 1)


def draw(path: Path, rows: list[Compared], title: str) -> None:
    """Predicted against measured, a colour per model."""
    figure = Figure(figsize=(6.5, 6), layout="constrained")
    axes = figure.add_subplot()
    for name in dict.fromkeys(row.model for row in rows):
        own = [row for row in rows if row.model == name]
        axes.plot([1e3 * row.measured for row in own], [1e3 * row.predicted for row in own], "o", label=name)
    ends = [1e3 * min(row.measured for row in rows), 1e3 * max(row.measured for row in rows)]
    axes.plot(ends, ends, color="#66737f", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="measured, ms", ylabel="predicted, ms", title=title)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
