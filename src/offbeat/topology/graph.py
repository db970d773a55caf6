"""Graph: the neighbours of every rank."""

from collections.abc import Iterable
from functools import cached_property, reduce
from operator import or_

from ..layout import Ranks


class Graph(tuple[Ranks, ...]):
    """`graph[rank]`: the ranks that this one may meet, sorted. None at all: it is lost, or was always alone."""

    @classmethod
    def of_edges(cls, workers: int, edges: Iterable[tuple[int, int]]) -> "Graph":
        """Each edge once or more, either way round; an edge from a rank to itself counts for nothing."""
        sets: list[set[int]] = [set() for _ in range(workers)]
        for one, other in edges:
            if one != other:
                sets[one].add(other)
                sets[other].add(one)
        return cls(tuple(sorted(each)) for each in sets)

    @classmethod
    def of_draws(cls, draws: Iterable[Ranks]) -> "Graph":
        """From the neighbours of every rank, sorted, where one may be named twice to be drawn twice as often."""
        repeating = cls(draws)
        graph = cls(tuple(dict.fromkeys(others)) for others in repeating)
        if graph != repeating:
            graph.__dict__["draws"] = repeating
        return graph

    @cached_property
    def draws(self) -> "Graph":
        """`draws[rank]`: what a rank draws its partner from, each entry as likely; the neighbours once or more."""
        return self

    def __hash__(self) -> int:  # once: thousands of simulated workers ask the caches about the same graph
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return super().__hash__()

    @property
    def edges(self) -> list[tuple[int, int]]:
        """Each edge once, the lower rank first, sorted."""
        return [(rank, other) for rank, others in enumerate(self) for other in others if rank < other]

    @cached_property
    def degrees(self) -> Ranks:
        return tuple(map(len, self))

    @cached_property
    def joined(self) -> "Graph":
        """The ranks that have neighbours, numbered anew without gaps, in the same order."""
        kept = [rank for rank, others in enumerate(self) if others]
        if len(kept) == len(self):
            return self
        number = {rank: place for place, rank in enumerate(kept)}
        return Graph(tuple(number[other] for other in self[rank]) for rank in kept)

    @cached_property
    def offsets(self) -> Ranks | None:
        """Where every rank has neighbours at the same distances onward (a ring, say): these. None elsewhere."""
        workers, first = len(self), self[0] if self else ()
        for rank, others in enumerate(self):
            if len(others) != len(first) or sorted((rank + offset) % workers for offset in first) != list(others):
                return None
        return first

    def reach(self, start: int) -> list[set[int]]:
        """The ranks by their distance from `start`: itself, its neighbours, theirs, ..."""
        levels, found = [{start}], {start}
        while level := set().union(*(self[rank] for rank in levels[-1])) - found:
            levels.append(level)
            found |= level
        return levels

    @cached_property
    def connected(self) -> bool:
        """Whether all ranks that have neighbours can reach each other."""
        graph = self.joined
        return not graph or sum(map(len, graph.reach(0))) == len(graph)

    @cached_property
    def diameter(self) -> int:
        """The exchanges that it takes at least until each rank has heard of every other; of a connected graph."""
        graph = self.joined
        if graph.offsets is not None:  # looks the same from everywhere
            return len(graph.reach(0)) - 1 if graph else 0
        heard, everyone, rounds = [1 << rank for rank in range(len(graph))], (1 << len(graph)) - 1, 0
        while any(known != everyone for known in heard):
            heard = [reduce(or_, map(heard.__getitem__, others), own) for others, own in zip(graph, heard, strict=True)]
            rounds += 1
        return rounds
