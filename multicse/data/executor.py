"""Ray Data executes the reading plans of a training process, in an actor next to it.

Ray Data's scheduling loop holds the interpreter lock for milliseconds in every iteration, which would delay the kernel
launches of a training step; in an actor it only competes for a core. The actor serves all streams of its process and ends
with the last of them.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple
from uuid import uuid4

import pyarrow as pa

from multicse.data.errors import DataError
from multicse.data.order import Window
from multicse.data.window import Chunk, ReaderLost, WindowReader

Task = Sequence[Window]
"""Windows that a reading task reads."""
NICE = 10
"""Added to the niceness of reading processes, so that training has priority if cores are scarce."""


class Limits(NamedTuple):
    """Resources that a plan may use."""

    cpus: float
    """Logical CPUs of one reading task."""
    read_ahead: int
    """Tasks that are finished, running or scheduled beyond the trainer's current task."""
    readers: int
    """Reading tasks at once while the trainer waits for data."""
    store_share: float
    """Share of the object store that finished blocks may fill."""


class Executor:
    """Actor that runs reading plans with Ray Data, each in a separate thread."""

    def __init__(self) -> None:
        from multicse.data import pacing  # noqa: F401  # imports Ray Data, which takes a second, before the first plan

        self._preparing = threading.Lock()  # a Dataset copies the process's DataContext when it is created
        self._stopped: set[str] = set()
        self._sent: dict[str, deque[Any]] = {}

    def stop(self, name: str) -> None:
        """End the plan of this name, which would otherwise be read to its end without its consumer."""
        self._stopped.add(name)
        self._sent.pop(name, None)

    def blocks(self, name: str, reader: WindowReader, plan: Sequence[Task], limits: Limits) -> Iterator[list[Any]]:
        """Read a plan, and yield a reference to every block in order, in a list so that Ray does not send the block itself.

        The arguments equal `ray_chunks`'s, after a name of the plan for `stop`.

        Ray may count no reference to a block between the end of one here and the begin of one in the consumer (ray#58080),
        and deletes the block. So two references are kept here, the last ones until `stop`: when the consumer takes a list,
        it has fetched the block of the list before.
        """
        from multicse.data.pacing import Progress, forget

        sent = self._sent.setdefault(name, deque(maxlen=2))
        progress = Progress(limits.read_ahead, limits.readers)
        with self._preparing:
            dataset = self._dataset(reader, plan, limits, progress)
        try:
            for bundle in dataset.iter_internal_ref_bundles():
                for block in bundle.blocks:
                    if name in self._stopped:
                        return
                    sent.append(block.ref)
                    yield [block.ref]
                    progress.task = block.metadata.exec_stats.task_idx
        finally:
            forget(progress)

    @staticmethod
    def _dataset(reader: WindowReader, plan: Sequence[Task], limits: Limits, progress: Any) -> Any:
        import ray
        from ray.data import ExecutionResources
        from ray.data.block import BlockMetadata
        from ray.data.datasource import Datasource, ReadTask
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        from multicse.data.pacing import follow

        about = BlockMetadata(num_rows=None, size_bytes=None, exec_stats=None, input_files=None)
        whole = ray.put(reader) if reader.config.mixes else None  # a sample may be mixed with any other
        tasks = [ReadTask(partial(read_blocks, *((whole, task) if whole else reader.alone(task))), about) for task in plan]

        class Windows(Datasource):
            def get_name(self) -> str:
                return f"Stream({reader.name})"

            def estimate_inmemory_data_size(self) -> int | None:
                return None

            def get_read_tasks(self, parallelism: int, *args: Any, **kwargs: Any) -> list[ReadTask]:
                return tasks

        context = ray.data.DataContext.get_current()
        context.execution_options.preserve_order = True
        store = ray.cluster_resources().get("object_store_memory", 0.0)
        context.execution_options.resource_limits = ExecutionResources.for_limits(
            object_store_memory=limits.store_share * store
        )
        context.enable_progress_bars = False
        context.print_on_execution_start = False
        context.target_max_block_size = 1  # byte: a block is passed on after its first row, a whole chunk
        follow(context, progress)
        here = ray.get_runtime_context().get_node_id()
        return ray.data.read_datasource(
            Windows(),
            override_num_blocks=len(tasks),
            num_cpus=limits.cpus,
            concurrency=limits.readers,  # otherwise Ray Data asks an autoscaling cluster for more nodes
            ray_remote_args={
                "scheduling_strategy": NodeAffinitySchedulingStrategy(here, soft=True, _spill_on_unavailable=True)
            },
        )


def read_blocks(reader: Any, task: Task) -> Iterator[pa.Table]:
    """Yield one block for every chunk of a reading task; `reader` is a WindowReader, or Ray's reference to one."""
    _yield_cores()
    reader = reader if isinstance(reader, WindowReader) else _fetched(reader)
    return (chunk.to_block() for chunk in reader.chunks(task))


@cache
def _yield_cores() -> None:
    """Give this process a lower priority, once."""
    if hasattr(os, "nice"):
        os.nice(NICE)


@lru_cache(4)
def _fetched(reference: Any) -> WindowReader:
    """Fetch a reader once per process: with a hundred thousand shards that takes a second."""
    import ray

    found: WindowReader = ray.get(reference)
    return found


class _Shared:
    """Actor of this process, and the number of streams that use it."""

    def __init__(self) -> None:
        self._lock, self._users = threading.Lock(), 0
        self._actor: Any = None

    def join(self) -> Any:
        """Return the actor, which is started if it does not exist."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        with self._lock:
            if self._actor is None:
                here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
                made = ray.remote(num_cpus=0, max_concurrency=64, scheduling_strategy=here)(Executor)
                self._actor = made.remote()
            self._users += 1
            return self._actor

    def leave(self, actor: Any, lost: bool = False) -> None:
        """Release the actor, which is `lost` if it died. The last user ends its process and the tasks that it owns."""
        import ray

        with self._lock:
            if actor is not self._actor:  # another user has noticed its loss
                return
            self._users -= 1
            if lost or not self._users:
                ray.kill(actor)
                self._actor, self._users = None, 0


_shared = _Shared()


@contextlib.contextmanager
def started() -> Iterator[None]:
    """Keep the actor of this process during the body, so that it starts while the process prepares the model."""
    actor = _shared.join()
    try:
        yield
    finally:
        _shared.leave(actor)


def ray_chunks(reader: WindowReader, plan: Sequence[Task], limits: Limits) -> Iterator[Chunk]:
    """Read a plan through Ray Data, and yield its chunks in order.

    Args:
        reader: Reader of the stream.
        plan: Reading tasks.
        limits: Resources that the plan may use.

    Raises:
        ReaderLost: If the actor or blocks that it owned are lost. The rest of the plan can be read again.
        DataError: If a sample cannot be read.
    """
    import ray

    actor, lost, name = _shared.join(), False, uuid4().hex
    try:
        stream = actor.blocks.options(num_returns="streaming", _generator_backpressure_num_objects=1)
        for item in stream.remote(name, reader, plan, limits):
            yield Chunk.from_block(ray.get(*ray.get(item)))
    except (ray.exceptions.ActorDiedError, ray.exceptions.ActorUnavailableError, ray.exceptions.ObjectLostError) as error:
        lost = True
        raise ReaderLost(str(error)) from error
    except ray.exceptions.RayError as error:
        raise _cause(error) from None
    finally:
        if not lost:
            actor.stop.remote(name)
        _shared.leave(actor, lost)


def _cause(error: BaseException) -> BaseException:
    """Return the DataError that a Ray task raised, instead of Ray's error that contains it."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, DataError):
            return DataError(str(seen)) if type(seen).__module__.startswith("ray") else seen
        cause = getattr(seen, "cause", None)
        seen = cause if isinstance(cause, BaseException) else seen.__cause__
    return error
