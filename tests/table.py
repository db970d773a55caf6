"""The table of strategies: a row enrols a strategy in every test, in virtual and in real time."""

from collections.abc import Callable
from dataclasses import dataclass

import references
from torch import Tensor

from offbeat.strategies import make_strategy
from offbeat.strategy import Strategy

Reference = Callable[[Tensor, Callable[[int, int, Tensor], Tensor], int, int], Tensor]


@dataclass(frozen=True)
class Row:
    spec: str
    reference: Reference | None  # x at the end, written out; None: depends on the order of events
    same_in_both_worlds: bool  # whether virtual and real time end with the same parameters
    one_step_of_sgd: bool = False  # whether it equals synchronous SGD with plain SGD
    keeps_mean: bool = True  # whether the mean of the workers is the start plus the mean of all that steps changed
    tolerance: float = 1e-12  # of that mean and of the reference: more where less travels
    plain_alone: bool = True  # whether one worker alone trains as if without it

    def make(self) -> Strategy:
        return make_strategy(self.spec)


CYCLING = "daso:warmup_epochs=0,cooldown_epochs=0"  # and, where no plan is given, constant B and W

ROWS = [
    Row("none", references.none, same_in_both_worlds=True),
    Row("ddp", references.ddp, same_in_both_worlds=True, one_step_of_sgd=True),
    Row("local_sgd:every=1", references.local_sgd(1), same_in_both_worlds=True, one_step_of_sgd=True),
    Row("local_sgd:every=4", references.local_sgd(4), same_in_both_worlds=True),
    Row("local_sgd:every=4,warmup_steps=6", references.local_sgd(4, warmup=6), same_in_both_worlds=True),
    Row("lasgd", None, same_in_both_worlds=False),
    Row("lasgd:delay=0", references.lasgd(1, 0), same_in_both_worlds=True, one_step_of_sgd=True),
    Row("lasgd:delay=2", references.lasgd(1, 2), same_in_both_worlds=True),
    Row("lasgd:every=4,delay=3", references.lasgd(4, 3), same_in_both_worlds=True),
    Row("lasgd:max_delay=0", references.lasgd(1, 0), same_in_both_worlds=True, one_step_of_sgd=True),
    Row("lasgd:max_delay=0,fragments=3", references.lasgd(1, 0), same_in_both_worlds=True, one_step_of_sgd=True),
    Row("lasgd:fragments=4", None, same_in_both_worlds=False),
    Row("lasgd:fragments=3,delay=2", references.lasgd(1, 2, fragments=3), same_in_both_worlds=True),
    Row("lasgd:fragments=2,max_delay=3,every=2", None, same_in_both_worlds=False),
    Row("lasgd:delay=2,wire_dtype=float32", references.lasgd(1, 2), same_in_both_worlds=True, tolerance=1e-6),
    Row("lasgd:fragments=2,wire_dtype=bfloat16", None, same_in_both_worlds=False, tolerance=2e-2),
    Row("lasgd:fragments=2,wire_dtype=int8", None, same_in_both_worlds=False),
    Row(
        "lasgd:every=4,delay=3,momentum=0.4",
        references.lasgd_with_momentum(4, 3, 0.4),
        same_in_both_worlds=True,
        keeps_mean=False,
    ),
    Row("lasgd:fragments=2,gradients=node", None, same_in_both_worlds=False),
    Row("lasgd:delay=0,gradients=node", references.lasgd(1, 0), same_in_both_worlds=True, one_step_of_sgd=True),
    Row(f"{CYCLING}", references.daso(4, 1), same_in_both_worlds=True, keeps_mean=False),
    Row(f"{CYCLING},b_max=1", references.daso(1, 1), same_in_both_worlds=True, keeps_mean=False),
    Row(f"{CYCLING},b_max=6,wait=5", references.daso(6, 5), same_in_both_worlds=True, keeps_mean=False),
    Row(f"{CYCLING},b_max=5,wait=0", references.daso(5, 0), same_in_both_worlds=True),
    Row(f"{CYCLING},b_max=1,wait=0", references.daso(1, 0), same_in_both_worlds=True, one_step_of_sgd=True),
    Row(
        f"{CYCLING},b_max=3,wait=3,wire_dtype=float32",
        references.daso(3, 3),
        same_in_both_worlds=True,
        keeps_mean=False,
        tolerance=1e-6,
    ),
    Row(
        f"{CYCLING},wire_dtype=bfloat16",
        references.daso(4, 1),
        same_in_both_worlds=True,
        keeps_mean=False,
        tolerance=1e-2,
    ),
    *(
        Row(spec, reference, same_in_both_worlds=True, keeps_mean=False, tolerance=tolerance, plain_alone=False)
        for spec, reference, tolerance in [
            ("diloco", references.diloco(16), 1e-12),
            ("diloco:every=3", references.diloco(3), 1e-12),
            ("diloco:every=5,outer_lr=0.4,outer_momentum=0.0", references.diloco(5, lr=0.4, momentum=0.0), 1e-12),
            ("diloco:every=6,fragments=3", references.diloco(6, fragments=3), 1e-12),
            ("diloco:every=5,delay=2", references.diloco(5, delay=2), 1e-12),
            ("diloco:every=7,fragments=4,delay=6", references.diloco(7, fragments=4, delay=6), 1e-12),
            ("diloco:every=2,fragments=5,delay=1,merge_weight=0.0", references.diloco(2, 0.7, 0.9, 5, 1, 0.0), 1e-12),
            ("diloco:every=4,wire_dtype=float32", references.diloco(4), 1e-6),
            ("diloco:every=4,fragments=2,delay=3,wire_dtype=bfloat16", references.diloco(4, 0.7, 0.9, 2, 3), 5e-2),
        ]
    ),
    Row(
        "diloco:every=4,outer_lr=1,outer_momentum=0",
        references.local_sgd(4),
        same_in_both_worlds=True,
        plain_alone=False,
    ),
    Row(
        "diloco:every=1,outer_lr=1,outer_momentum=0",
        references.ddp,
        same_in_both_worlds=True,
        one_step_of_sgd=True,
        plain_alone=False,
    ),
    Row("sgp", references.sgp(1), same_in_both_worlds=True),
    Row("sgp:overlap=0", references.sgp(0), same_in_both_worlds=True),
    Row("gossip", None, same_in_both_worlds=False),
    Row("gossip:topology=ring,rate=2.0", None, same_in_both_worlds=False),
    Row("gossip:fragments=3", None, same_in_both_worlds=False),
    Row("a2cid2", None, same_in_both_worlds=False),
    Row("a2cid2:topology=complete,rate=2.0,fragments=3", None, same_in_both_worlds=False),
]
