"""How long does a plan of ResNet-50 on 1 to 1,024 GPUs take, with all strategies? Wanted: below 30 s on two cores."""

import time

from offbeat.cost.command import ALL
from offbeat.cost.device_profile import load_profile
from offbeat.cost.plan import Question, plan
from offbeat.cost.subject import find_subject
from offbeat.cost.verdict import verdict
from offbeat.cost.wires import Wires
from offbeat.sim.network import Link

WANTED_SECONDS = 30.0


def main() -> None:
    began, worked = time.perf_counter(), time.process_time()
    profile = load_profile("h100")
    question = Question(
        subject=find_subject("resnet50", platform="cuda", bf16=True),
        profile=profile,
        wires=Wires(link=Link(bytes_per_second=12.5e9, seconds=1e-5), local=profile.local),
        nodes=128,
        workers_per_node=8,
        batch=64,
        strategies=ALL,
    )
    answer = plan(question)
    seconds = time.perf_counter() - began
    print(verdict(answer))
    print(
        f"{len(answer.rows)} rows in {seconds:.1f} s, {time.process_time() - worked:.1f} s of one core "
        f"(wanted {WANTED_SECONDS:.0f})"
    )
    raise SystemExit(1 if seconds > WANTED_SECONDS else 0)


if __name__ == "__main__":
    main()
