"""Board: where all workers post how they are doing while they train, and the first rank reads it.

every rank --(a thread, three times a second)--> a TCPStore on rank 0 --> progress display, metrics.jsonl
"""

import json
import os
import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

import torch.distributed as dist

from ..gather import gather_json
from ..report.status import Status

POST_SECONDS = 0.3


class Board:
    """`post` only takes note; a thread sends. On rank 0, `show` gets the statuses of all ranks as they come."""

    def __init__(self, rank: int, workers: int, show: Callable[[Iterable[Status]], None]) -> None:
        self._rank, self._workers, self._show = rank, workers, show
        self._store: Any = dist.HashStore()  # type: ignore[attr-defined]  # torch does not list its stores
        if workers > 1:
            store = dist.TCPStore  # type: ignore[attr-defined]
            server = store("0.0.0.0", 0, is_master=True, wait_for_workers=False) if rank == 0 else None
            port = gather_json(server.port if server is not None else 0)[0]
            self._store = server or store(os.environ["MASTER_ADDR"], port, is_master=False, wait_for_workers=False)
        self._lock = threading.Lock()
        self._waiting: list[Status] = []
        self._posted = 0
        self._read = [0] * workers
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="offbeat board", daemon=True)

    def post(self, status: Status) -> None:
        with self._lock:
            self._waiting.append(status)

    def __enter__(self) -> "Board":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """After the block of all ranks, everything posted has been shown."""
        self._ending.set()
        self._thread.join()
        if kind is None:
            self._send()
            if self._workers > 1:
                dist.barrier()
            self._collect()

    def _run(self) -> None:
        try:
            while not self._ending.wait(POST_SECONDS):
                self._send()
                self._collect()
        except RuntimeError:  # the store is gone, and rank 0 with it: the training notices that by itself
            return

    def _send(self) -> None:
        with self._lock:
            statuses, self._waiting = self._waiting, []
        if statuses:
            self._store.set(f"{self._rank}/{self._posted}", json.dumps([s.as_dict() for s in statuses]))
            self._posted += 1

    def _collect(self) -> None:
        if self._rank != 0:
            return
        for rank in range(self._workers):
            while self._store.check([key := f"{rank}/{self._read[rank]}"]):
                self._show(Status.from_dict(record) for record in json.loads(self._store.get(key)))
                self._store.delete_key(key)
                self._read[rank] += 1
