"""Items that are ready before the trainer needs them: read by a thread, and copied to a GPU during the training step."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator, Iterator
from typing import Generic, TypeVar

import torch

from multicse.data.streams.base import Batch

JOIN_TIMEOUT = 5.0
"""Seconds that the thread has to finish its item when it is closed."""
T = TypeVar("T")


class Prefetch(Generic[T]):
    """Iterator over the items of a generator, which a thread reads ahead. An error of the generator is raised in its place.

    Args:
        source: The items. Reading more than it has is an error.
        name: Name of the thread.
        depth: Number of items that may be ready.
    """

    def __init__(self, source: Generator[T], name: str, depth: int = 2) -> None:
        self._source, self._closed = source, False
        self._items: deque[T | BaseException] = deque()
        self._room, self._filled = threading.Semaphore(depth), threading.Semaphore(0)
        self.thread = threading.Thread(target=self._read, name=name, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        end: BaseException = EOFError(f"{self.thread.name}: all of it has been read")
        try:
            for item in self._source:
                self._room.acquire()
                if self._closed:
                    return
                self._items.append(item)
                self._filled.release()
        except BaseException as error:
            end = error
        finally:
            self._source.close()  # ends Ray's execution
            self._items.append(end)
            self._filled.release()

    @property
    def ready(self) -> bool:
        """True if the next item need not be waited for and is no error."""
        return bool(self._items) and not isinstance(self._items[0], BaseException)

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        self._filled.acquire()
        item = self._items[0]
        if isinstance(item, BaseException):
            self._filled.release()  # later calls raise it, too
            raise item
        self._items.popleft()
        self._room.release()
        return item

    def close(self) -> None:
        """Stop reading and wait for the thread: if it worked in torch when Python ends, it would abort the process."""
        self._closed = True
        self._room.release()
        self.thread.join(JOIN_TIMEOUT)


def pinned(batch: Batch, device: torch.device) -> Batch:
    """Return the batch in page-locked memory; the host would wait for a copy from other memory to a GPU."""
    with torch.cuda.device(device):  # the default of a new thread is the first GPU of the machine
        return batch.pin_memory()


def uploaded(items: Prefetch[tuple[Batch, T]], device: torch.device) -> Iterator[tuple[Batch, T]]:
    """Yield the pinned batches on a GPU. The next one is copied on a separate CUDA stream while a batch is used."""
    side = torch.cuda.Stream(device)

    def sent() -> tuple[Batch, T, torch.cuda.Event]:
        batch, position = next(items)
        with torch.cuda.stream(side):
            return batch.to(device), position, side.record_event()

    following = None
    while True:
        batch, position, arrival = following or sent()
        following = sent() if items.ready else None
        current = torch.cuda.current_stream(device)
        current.wait_event(arrival)  # later work on the device waits for the copies, but the host does not
        for tensor in batch.tensors.values():
            tensor.record_stream(current)  # a later copy must not reuse its memory before the work with it is finished
        yield batch, position
