"""Layout: which ranks sit on which node."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from .errors import BadInput

Ranks = tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """Nodes x local ranks. `node_of[rank]` is the node of each rank; nodes may be of unequal size."""

    node_of: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.node_of:
            raise BadInput("a layout of 0 workers trains nothing: give at least one worker")
        if set(self.node_of) != set(range(max(self.node_of) + 1)):
            raise BadInput(f"nodes {sorted(set(self.node_of))} are not numbered 0, 1, 2, ...: leave no gap")

    @classmethod
    def even(cls, workers: int, nodes: int = 1) -> "Layout":
        """`workers` ranks in blocks over `nodes`, as evenly as they go (the first nodes take the rest)."""
        if workers < 1 or nodes < 1:
            raise BadInput(f"{workers} workers on {nodes} nodes: both must be at least 1")
        if nodes > workers:
            raise BadInput(
                f"{nodes} nodes are more than {workers} workers, and every node needs one: "
                f"use --nodes {workers} or fewer"
            )
        small, rest = divmod(workers, nodes)
        return cls(tuple(node for node in range(nodes) for _ in range(small + (node < rest))))

    @classmethod
    def of_hosts(cls, hosts: Sequence[str]) -> "Layout":
        """One node per distinct host, numbered in order of appearance; `hosts[rank]` is where rank runs."""
        number = {host: node for node, host in enumerate(dict.fromkeys(hosts))}
        return cls(tuple(number[host] for host in hosts))

    @property
    def workers(self) -> int:
        return len(self.node_of)

    @cached_property
    def nodes(self) -> int:
        return max(self.node_of) + 1

    @cached_property
    def ranks(self) -> Ranks:
        return tuple(range(self.workers))

    @cached_property
    def _on(self) -> tuple[Ranks, ...]:
        members: list[list[int]] = [[] for _ in range(self.nodes)]
        for rank, node in enumerate(self.node_of):
            members[node].append(rank)
        return tuple(tuple(ranks) for ranks in members)

    def on(self, node: int) -> Ranks:
        """The ranks of a node, in order."""
        return self._on[node]

    def beside(self, rank: int) -> Ranks:
        """The ranks of this rank's node, itself included."""
        return self._on[self.node_of[rank]]

    def local_rank(self, rank: int) -> int:
        return self.beside(rank).index(rank)
