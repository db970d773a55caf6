"""Offbeat: data-parallel training of PyTorch models whose workers do not wait for each other."""

from .attach import Attachment, attach
from .errors import BadInput, LostPeer, OffbeatError
from .layout import Layout
from .shard import shard
from .strategies import STRATEGIES, make_strategy
from .strategies.a2cid2 import A2CiD2
from .strategies.daso import DASO
from .strategies.ddp import DDP
from .strategies.diloco import DiLoCo
from .strategies.gossip import Gossip
from .strategies.lasgd import LASGD
from .strategies.local_sgd import LocalSGD
from .strategies.sgp import SGP
from .strategy import Strategy
from .train.task import Samples, Task, cross_entropy

__all__ = [
    "DASO",
    "DDP",
    "LASGD",
    "SGP",
    "STRATEGIES",
    "A2CiD2",
    "Attachment",
    "BadInput",
    "DiLoCo",
    "Gossip",
    "Layout",
    "LocalSGD",
    "LostPeer",
    "OffbeatError",
    "Samples",
    "Strategy",
    "Task",
    "attach",
    "cross_entropy",
    "make_strategy",
    "shard",
]
