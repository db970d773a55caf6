"""Sweeps: many runs in virtual time, beside each other, each once.

from dataclasses import replace
from offbeat.sweep import Setting, sweep

base = Setting(task="digits", steps=200, link="100mbit", target_accuracy=0.9)
settings = [replace(base, strategy=s, seed=n) for s in ("ddp", "lasgd:every=8", "gossip") for n in range(3)]
for run in sweep(settings, out=Path("runs/links")):
    print(run.setting.strategy, run.setting.seed, run.accuracy, run.seconds_to_target)
"""

from ..sim.curve import Point
from .finished import Finished
from .rows import Row, rows_of
from .run import sweep
from .setting import Setting

__all__ = ["Finished", "Point", "Row", "Setting", "rows_of", "sweep"]
