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

    def make(self) -> Strategy:
        return make_strategy(self.spec)


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
    Row("lasgd:fragments=2,gradients=node", None, same_in_both_worlds=False),
    Row("lasgd:delay=0,gradients=node", references.lasgd(1, 0), same_in_both_worlds=True, one_step_of_sgd=True),
    Row("gossip", None, same_in_both_worlds=False),
    Row("gossip:topology=ring,rate=2.0", None, same_in_both_worlds=False),
    Row("gossip:fragments=3", None, same_in_both_worlds=False),
    Row("a2cid2", None, same_in_both_worlds=False),
    Row("a2cid2:topology=complete,rate=2.0,fragments=3", None, same_in_both_worlds=False),
]
