"""Machine and cluster of a run: Ray and its settings, memory, process priorities, log levels."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import secrets
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from multicse import clone
from multicse.trainers.engine.mlflow_server import gpu_names, import_mlflow, open_experiment
from multicse.trainers.recipe import Recipe, RecipeError


def quiet() -> None:
    """Show only errors of the libraries; our own warnings remain."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "ERROR")  # MLflow reads it at its import, which comes later
    for name in ("ray", "ray.data", "ray.train", "transformers", "sentence_transformers", "mlflow", "alembic", "httpx"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with contextlib.suppress(ImportError):
        import transformers

        transformers.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()


TRAIN = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    # A new cloud node takes minutes; after Train's default of 60 s the wait would start over.
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "1800",
}
"""Settings of Ray Train, unless the environment has them already."""
ONE_MACHINE = {
    # No node can be preempted here, and frequent health checks are cheap.
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    # At Ray's niceness of 15 a worker gets almost no CPU time next to eight busy processes.
    "RAY_worker_niceness": "0",
    # Metrics and statistics that are not read here, and the actor that collects some of them.
    "RAY_enable_metrics_collection": "0",
    "RAY_event_stats": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_DATA_USAGE_DISABLED": "1",
    "REPORTER_UPDATE_INTERVAL_MS": "60000",
    # Prestarted processes would stay idle, because Train's workers have their own environment variables.
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
    # Ray ends an idle process after a second if the node has more processes than CPUs. A run's actors alone exceed this, so
    # every reading task would start a new process, whose imports take 2.5 s of CPU time.
    "RAY_num_workers_soft_limit": "64",
}
"""Additional settings if this process starts Ray."""


def own_ray() -> None:
    """Set the environment for a Ray that this process starts."""
    # Without a separate token, Ray stores one in the home folder, which a later plain `ray start` requires.
    for name, value in {**ONE_MACHINE, "RAY_AUTH_TOKEN": secrets.token_hex(32)}.items():
        os.environ.setdefault(name, value)


def start_ray(recipe: Recipe) -> None:
    """Join the cluster that this process belongs to (a Ray job, RAY_ADDRESS), otherwise start Ray on this machine.

    Raises:
        RecipeError: If the name of the folder for temporary files is too long for Ray's sockets.
    """
    import ray

    verbose, here = recipe.run.verbose, not (ray.is_initialized() or os.environ.get("RAY_ADDRESS"))
    if here:
        own_ray()
    for name, value in TRAIN.items():
        os.environ.setdefault(name, value)
    if ray.is_initialized():
        return
    folder, code = clone(), None
    if folder and Path.cwd() != folder:
        path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
        # Any function of the package will do: it is imported from the clone before workers search the current folder, which
        # may contain another clone.
        code = {"env_vars": {"PYTHONPATH": path}, "worker_process_setup_hook": "multicse.__dir__"}
    action = "Starting Ray on this machine" if here else f"Connecting to Ray at {os.environ['RAY_ADDRESS']}"
    print(f"{action} ...", file=sys.stderr, flush=True)
    with in_background():
        try:
            ray.init(
                address="local" if here else None,
                runtime_env=code,
                # It takes eight processes, and its address is shown with --run.verbose only.
                include_dashboard=False if here and not verbose else None,
                log_to_driver=verbose,
                logging_level=logging.INFO if verbose else logging.ERROR,
            )
        except OSError as error:
            if "AF_UNIX" not in str(error):
                raise
            place = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR")
            raise RecipeError(
                f"the name of the folder for temporary files, {place}, is too long for Ray's sockets ({error}); set a "
                "shorter one for Ray: RAY_TMPDIR=/tmp"
            ) from None


@contextlib.contextmanager
def opening(recipe: Recipe, experiment: str) -> Iterator[None]:
    """Open MLflow's database and an experiment in a thread while the body starts Ray; each takes seconds."""
    import ray  # noqa: F401  # before the thread, since two threads must not import the same package at once

    import_mlflow()
    with ThreadPoolExecutor(1) as pool:
        opened = pool.submit(open_experiment, recipe.run.tracking_uri, experiment)
        yield
        opened.result()


AUTOSCALING = {"CPU": "autoscaling_cpus", "GPU": "autoscaling_gpus"}
"""Custom resources of a head node (cluster.yaml, rayjob.yaml): number of CPUs and GPUs that the cluster may grow to, which
Ray's autoscaler does not report."""


def capacity() -> tuple[float, float, int]:
    """Return the CPUs, GPUs and nodes that the cluster has, or may have if it is autoscaled (then at least two nodes)."""
    import ray

    now = ray.cluster_resources()
    cpus, gpus = (max(now.get(kind, 0.0), now.get(most, 0.0)) for kind, most in AUTOSCALING.items())
    nodes = sum(node["Alive"] for node in ray.nodes())
    return cpus, gpus, max(2, nodes) if now.keys() & set(AUTOSCALING.values()) else nodes


def hardware(recipe: Recipe) -> list[tuple[str, str]]:
    """Return the resources that a run would use and the GPUs that are available, as names and texts.

    GPUs are counted in the cluster of ``RAY_ADDRESS``, otherwise on this machine, without a CUDA context.
    """
    import torch

    run, counted = recipe.run, torch.cuda.device_count()
    gpu = f"{run.gpus_per_worker:g} GPU" if run.gpus_per_worker else "no GPU"
    where = f"{run.num_workers} workers, each with {run.cpus_per_worker:g} CPU and {gpu}"
    if not run.num_workers:
        where = f"this process, on {'the first GPU' if run.gpus_per_worker else 'the CPU'}"
    found = [("runs on", f"{where}; precision {run.precision}")]
    if address := os.environ.get("RAY_ADDRESS"):
        import ray

        start_ray(recipe)
        cpus, gpus, nodes = capacity()
        kinds = sorted(name.partition(":")[2] for name in ray.cluster_resources() if name.startswith("accelerator_type:"))
        return [*found, ("cluster", f"{address}: {nodes} nodes, {cpus:g} CPUs, {gpus:g} GPUs {', '.join(kinds)}".rstrip())]
    listed = ", ".join(f"{count} x {name}" for name, count in Counter(gpu_names()).items())
    return [*found, ("GPUs", f"{listed or 'none found by nvidia-smi'}; torch {torch.__version__} sees {counted}")]


PATIENCE = 300.0
"""Seconds that a node has to report the files it finds. Its first task may have to unpack the job's folder."""
Size = tuple[int, int]
"""Number of files, and their bytes."""


def size_of(paths: Sequence[str]) -> Size:
    """Return the number and total bytes of the files at local paths, including those in folders; (0, 0) if none exists."""
    files = [path for path in paths if os.path.isfile(path)]
    files += [os.path.join(at, name) for path in paths for at, _, names in os.walk(path, followlinks=True) for name in names]
    return len(files), sum(os.path.getsize(file) for file in files if os.path.exists(file))


def sizes_elsewhere(places: Mapping[str, Sequence[str]]) -> list[tuple[str, dict[str, Size] | None]]:
    """Look for local paths, by name, on the other nodes that run tasks, with one task per node.

    Returns:
        For every node its address and `size_of` by name, or None if it did not answer within `PATIENCE` seconds.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    @ray.remote(num_cpus=0)
    def look(wanted: dict[str, Sequence[str]]) -> dict[str, Size]:
        return {name: size_of(paths) for name, paths in wanted.items()}

    here, given, asked = ray.get_runtime_context().get_node_id(), ray.put(dict(places)), {}
    for node in ray.nodes():
        if node["Alive"] and node["NodeID"] != here and node["Resources"].keys() & AUTOSCALING.keys():
            pinned = look.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False))
            asked[pinned.remote(given)] = str(node["NodeManagerAddress"])
    answered, _ = ray.wait([*asked], num_returns=max(1, len(asked)), timeout=PATIENCE) if asked else ([], [])
    gone, found = ray.exceptions, list[tuple[str, dict[str, Size] | None]]()
    for task, address in asked.items():
        with contextlib.suppress(gone.NodeDiedError, gone.TaskUnschedulableError, gone.WorkerCrashedError):
            found.append((address, ray.get(task) if task in answered else None))
    return found


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
LARGEST = 2**31 - 1
MMAP = 2**25  # the maximum of glibc


def keep_freed_memory() -> None:
    """Let this process keep up to 2 GiB of freed memory, since every step allocates the same activations (glibc only)."""
    if not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(AttributeError, OSError):  # musl has no mallopt
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_TRIM_THRESHOLD, LARGEST)
        mallopt(M_MMAP_THRESHOLD, MMAP)


@contextlib.contextmanager
def in_background() -> Iterator[None]:
    """Start processes that wait for a free core instead of preempting training (Linux's SCHED_BATCH).

    Every Ray process wakes up 100 times per second (docs/results/performance.md). Child processes inherit the policy.
    """
    if not hasattr(os, "SCHED_BATCH"):
        yield
        return
    before = os.sched_getscheduler(0)
    _set_policy(os.SCHED_BATCH)
    try:
        yield
    finally:
        _set_policy(before)


def to_foreground() -> None:
    """Undo `in_background` for this thread, which trains, and for the threads that it starts."""
    if hasattr(os, "SCHED_BATCH") and os.sched_getscheduler(0) == os.SCHED_BATCH:
        _set_policy(os.SCHED_OTHER)


def _set_policy(policy: int) -> None:
    with contextlib.suppress(OSError):  # a sandbox may forbid it; the run is slower then
        os.sched_setscheduler(0, policy, os.sched_param(0))
