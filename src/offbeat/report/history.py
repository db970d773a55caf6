"""History: the statuses of a run that its picture is drawn from, thinned so that no run is too long to keep."""

from collections import Counter

from .status import Status

STATUSES_PER_WORKER = 1000  # kept, at most


class History:
    """Of every worker each n-th status; n doubles whenever there are too many."""

    def __init__(self, workers: int) -> None:
        self._most = STATUSES_PER_WORKER * workers
        self._every = 1
        self._seen = Counter[int]()  # by rank
        self._kept: list[tuple[int, Status]] = []  # with the number that it has among those of its rank

    @property
    def statuses(self) -> list[Status]:
        return [status for _, status in self._kept]

    def add(self, status: Status) -> None:
        number = self._seen[status.rank]
        self._seen[status.rank] += 1
        if number % self._every == 0:
            self._kept.append((number, status))
        while len(self._kept) > self._most:
            self._every *= 2
            self._kept = [(number, status) for number, status in self._kept if number % self._every == 0]
