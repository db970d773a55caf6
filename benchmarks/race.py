"""The races of the README, each one call of `offbeat compare`, its numbers kept under benchmarks/results.

    python benchmarks/race.py NAME ...      run races (as root: the links are shaped), keep benchmarks/results/NAME.json
    python benchmarks/race_table.py         write tables and pictures from what is kept

Needs the extras `compare` and `rivals`, and the data of Fashion-MNIST (Debian: dataset-fashion-mnist, or --data).
"""

import argparse
import json
import signal
import subprocess
import sys
from pathlib import Path

from kept import commit

from offbeat.emulate.children import dying_with_us
from offbeat.report.outputs import replacing

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
RIVALS = "benchmarks/rivals"

RACE = (
    "--task fashion-mnist --model lenet --batch 16 --workers 4 --link 100mbit --step-seconds 0.1 "
    "--steps 240 --target-accuracy 0.82 --snapshots 30"
)
AT_THE_RATE = f"{RACE} --learning-rate 0.02"
EPOCHS = "--task fashion-mnist --model lenet --batch 16 --learning-rate 0.02 --workers 4 --epochs 2 --repeats 2"
NARROW, TRAIL = "lasgd:wire_dtype=bfloat16", "trail=0.1"
AVERAGES, PAIRS = f"lasgd,{NARROW}", "gossip,a2cid2"
POST_LOCAL = f"{RIVALS}/post_local_sgd.py:train:every=32"
DILOCO = f"{RIVALS}/torchft_diloco.py:train:every=24,fragments=2,delay=9"
OUR_DILOCO = "diloco:every=20,fragments=4,delay=5"
BOTH_DILOCOS = f"{DILOCO},{DILOCO},{TRAIL}"  # without a trail and with one
FASTEST = f"{NARROW},{NARROW},{TRAIL},{BOTH_DILOCOS}"
OTHER_RIVALS = ",".join(
    [
        f"{RIVALS}/torchft_local_sgd.py:train:every=32",
        f"{RIVALS}/torchft_diloco.py:train:every=24,fragments=4,delay=5",
        f"{RIVALS}/post_local_sgd.py:train:every=16",
        f"{RIVALS}/hivemind_local.py:train:every=16",
        f"{RIVALS}/hivemind_local.py:train:every=32",
        f"{RIVALS}/torch_ddp.py:train:hook=bf16",
        f"{RIVALS}/torch_ddp.py:train:hook=fp16",
        f"{RIVALS}/decent_dp.py:train:topology=ring",
        f"{RIVALS}/decent_dp.py:train:topology=one-peer-exp",
    ]
)
CEILINGS = "--task fashion-mnist --model lenet --batch 2 --workers 4"
GPU = (
    "--task fashion-mnist --model resnet18 --batch 128 --learning-rate 0.05 --bf16 --device cuda --workers 8 "
    "--link 1gbit --target-accuracy 0.9"
)
AT_BEST_RATE = GPU.replace("--learning-rate 0.05", "--learning-rate 0.03")
WITH_MOMENTUM, WITH_MORE = f"{NARROW},momentum=0.5", f"{NARROW},momentum=0.6"
DILOCO_ON_GPU = "diloco:every=24,fragments=4,delay=6,wire_dtype=bfloat16"
RACES = {
    "accuracy": f"{AT_THE_RATE} --repeats 3 --strategies lasgd,{FASTEST},{PAIRS},{POST_LOCAL}",
    "accuracy-lasgd": f"{AT_THE_RATE} --repeats 3 --strategies lasgd,{NARROW},{NARROW},{TRAIL}",  # without the others
    "accuracy-ddp": f"{AT_THE_RATE} --repeats 3 --strategies ddp",  # takes as long as all others
    "accuracy-rivals": f"{AT_THE_RATE} --strategies {OTHER_RIVALS}",
    "rate-0.01": f"{RACE} --learning-rate 0.01 --repeats 3 --strategies {FASTEST},{OUR_DILOCO}",
    "rate-0.007": f"{RACE} --learning-rate 0.007 --repeats 3 --strategies {FASTEST}",
    "rate-0.005": f"{RACE} --learning-rate 0.005 --repeats 3 --strategies {BOTH_DILOCOS}",
    "straggler": f"{RACE} --learning-rate 0.01 --straggler 0:2 --strategies {FASTEST},{POST_LOCAL}",
    "epochs": f"{EPOCHS} --link 100mbit --step-seconds 0.1 --strategies {AVERAGES}",
    "epochs-ddp": f"{EPOCHS} --loopback --strategies ddp",  # whose accuracy does not depend on the wire
    "ceilings-100mbit": f"{CEILINGS} --repeats 2 --link 100mbit --step-seconds 0.17 --steps 120 "
    f"--strategies {AVERAGES},{PAIRS}",
    "ceilings-1gbit": f"{CEILINGS} --link 1gbit --step-seconds 0.1 --steps 150 --strategies lasgd,gossip:rate=20,"
    "a2cid2:rate=20",
    "ceilings-1gbit-gpu": f"{CEILINGS} --link 1gbit --step-seconds 0.1 --steps 150 --device cuda "
    "--strategies lasgd,gossip:rate=20,a2cid2:rate=20",
    "ceilings-daso": f"{CEILINGS} --nodes 2 --link 100mbit --step-seconds 0.17 --steps 120 --strategies "
    "lasgd:gradients=node,every=100000,daso:b_max=16,wait=12,warmup_epochs=0,cooldown_epochs=0",
    "gpu": f"{GPU} --steps 280 --snapshots 28 --strategies lasgd,{NARROW},{WITH_MOMENTUM},fragments=12,"
    "lasgd:wire_dtype=int8,momentum=0.5,"
    f"gossip:topology=ring,gossip,a2cid2,a2cid2:topology=exponential,local_sgd:every=32,{DILOCO_ON_GPU}",
    "gpu-best": f"{GPU} --steps 240 --snapshots 30 --repeats 3 --strategies {WITH_MOMENTUM},{DILOCO_ON_GPU}",
    "gpu-best-again": f"{GPU} --steps 240 --snapshots 30 --strategies {WITH_MOMENTUM},{DILOCO_ON_GPU}",  # seed 0
    "gpu-rate": f"{AT_BEST_RATE} --steps 240 --snapshots 30 --repeats 4 --strategies {WITH_MORE},{DILOCO_ON_GPU}",
    "gpu-rate-4": f"{AT_BEST_RATE} --steps 240 --snapshots 30 --seed 4 --repeats 3 --strategies {WITH_MORE},"
    f"{DILOCO_ON_GPU}",
    "gpu-rate-7": f"{AT_BEST_RATE} --steps 240 --snapshots 30 --seed 7 --repeats 5 --strategies {WITH_MORE},"
    f"{DILOCO_ON_GPU}",
    "gpu-trail": f"{AT_BEST_RATE} --steps 240 --snapshots 30 --repeats 3 --strategies {WITH_MOMENTUM},{TRAIL},"
    f"{DILOCO_ON_GPU},{TRAIL}",
    "gpu-parts": f"{GPU} --steps 240 --snapshots 30 --repeats 3 --strategies {WITH_MOMENTUM},fragments=12,"
    f"{DILOCO_ON_GPU}",
    "gpu-ddp": f"{GPU} --steps 120 --snapshots 24 --strategies ddp",  # 82 s
    "gpu-daso": f"{GPU} --steps 200 --snapshots 20 --nodes 4 --strategies "
    "daso:b_max=32,wait=24,warmup_epochs=0,cooldown_epochs=0",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", metavar="NAME", choices=list(RACES), help=", ".join(RACES))
    parser.add_argument("--data", type=Path, help="where Fashion-MNIST is")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the numbers are kept")
    arguments = parser.parse_args()
    arguments.results.mkdir(parents=True, exist_ok=True)
    for name in arguments.names:
        data = ["--data", str(arguments.data.resolve())] if arguments.data else []
        out = ROOT / "runs" / f"race-{name}"  # with the report
        (out / "compare.json").unlink(missing_ok=True)
        print(f"{name}: offbeat compare {RACES[name]}", flush=True)
        sources = commit()
        words = [*RACES[name].split(), *data, "--out", str(out)]
        status = run_to_the_end([sys.executable, "-m", "offbeat", "compare", *words])
        complete, part = arguments.results / f"{name}.json", arguments.results / f"{name}.json.part"
        measured = (out / "compare.json").is_file()
        if measured:
            record = json.loads((out / "compare.json").read_text(encoding="utf-8"))
            record["commit"] = sources
            with replacing(part if status else complete) as temporary:
                temporary.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        if status:
            what = f"what was measured is in {part.name}" if measured else "nothing was measured"
            raise SystemExit(f"{name} ended with status {status}; {what}")
        part.unlink(missing_ok=True)  # of a race that was broken off before


def run_to_the_end(words: list[str]) -> int:
    """Ctrl-C and its like are passed on and waited for, so that what was measured by then is kept; they count as an end
    also where they come too late for that. Killed, this process takes the race along."""
    race: subprocess.Popen[bytes] | None = None
    told: list[int] = []

    def pass_on(number: int, _frame: object) -> None:
        told.append(number)
        if race is not None:
            race.send_signal(number)

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup has it
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, pass_on) for number in numbers}
    try:
        race = subprocess.Popen(
            dying_with_us(words),
            cwd=ROOT,
            start_new_session=True,  # so that it hears of Ctrl-C once, from here
        )
        for number in told:
            race.send_signal(number)
        status = race.wait()
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    return status or (128 + told[0] if told else 0)


if __name__ == "__main__":
    main()
