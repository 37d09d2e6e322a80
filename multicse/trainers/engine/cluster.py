"""Machine and cluster of a run: its resources, memory and log levels."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from multicse.trainers.engine.mlflow_server import gpu_names, open_experiment
from multicse.trainers.engine.ray_start import start_ray, starting_ray
from multicse.trainers.recipe import Recipe


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


@contextlib.contextmanager
def opening(recipe: Recipe, experiment: str) -> Iterator[None]:
    """Start or join Ray during the body, which checks the recipe, and open MLflow's database and an experiment."""
    with starting_ray(recipe.run.verbose):
        yield
        if recipe.run.report_to == "mlflow":
            open_experiment(recipe.run.tracking_uri, experiment)


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

        start_ray(recipe.run.verbose)
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
    _call_glibc("mallopt", M_TRIM_THRESHOLD, LARGEST)
    _call_glibc("mallopt", M_MMAP_THRESHOLD, MMAP)


def return_freed_memory() -> None:
    """Return freed memory to the system once: what is kept over days has holes and grows (glibc only)."""
    _call_glibc("malloc_trim", 0)


def _call_glibc(name: str, *arguments: int) -> None:
    """Call a function that musl, macOS and Windows lack, and do nothing there."""
    with contextlib.suppress(AttributeError, OSError, TypeError):  # TypeError: Windows has no library of the process
        getattr(ctypes.CDLL(None), name)(*arguments)
