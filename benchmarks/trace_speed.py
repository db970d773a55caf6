"""How long does the trace of a large model take, and how much memory? Prints both for GPTs of 7 and 10 billion.

Each in a process of its own, so that the most memory it ever held is its own.
"""

import argparse
import resource
import subprocess
import sys
import time

import torch
from torch.optim import AdamW

from offbeat.cost import trace
from offbeat.train.models import GPT
from offbeat.train.task import cross_entropy

SIZES = {"7B": (4096, 32, 34), "10B": (5120, 40, 32)}  # width, heads, blocks
LENGTH, VOCABULARY = 2048, 50_304
WANTED_SECONDS, WANTED_GIB = 30.0, 2.0


def measure(size: str, platform: str) -> None:
    width, heads, blocks = SIZES[size]
    tokens = torch.zeros(1, LENGTH, dtype=torch.long, device="meta")
    start = time.perf_counter()
    step = trace(
        lambda: GPT(LENGTH, VOCABULARY, width=width, heads=heads, blocks=blocks),
        tokens,
        tokens,
        loss=cross_entropy,
        optimizer=AdamW,
        platform="cuda" if platform == "cuda" else "cpu",
        autocast=torch.bfloat16,
    )
    seconds = time.perf_counter() - start
    gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
    parameters = sum(spec.numel for spec in step.parameters.values())
    print(
        f"{size:>4} {platform:>4}: {parameters / 1e9:5.2f} G parameters, {len(step.ops):5} operations, "
        f"{step.flops / 1e12:6.1f} TFLOP, {step.memory.peak / (1 << 30):6.1f} GiB to train; "
        f"traced in {seconds:4.1f} s (wanted {WANTED_SECONDS:.0f}) and {gib:4.2f} GiB (wanted {WANTED_GIB:.0f})"
    )
    if seconds > WANTED_SECONDS or gib > WANTED_GIB:
        raise SystemExit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", nargs=2, metavar=("SIZE", "PLATFORM"), help="measure in this process")
    given = parser.parse_args()
    if given.one:
        measure(*given.one)
        return
    failed = 0
    for size in SIZES:
        for platform in ("cpu", "cuda"):
            failed += subprocess.run([sys.executable, __file__, "--one", size, platform], check=False).returncode
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
