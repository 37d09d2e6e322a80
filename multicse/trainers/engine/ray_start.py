"""How a run starts Ray on this machine or joins a cluster, and its message if Ray does not come up; process priorities."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import re
import secrets
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any, NamedTuple

from multicse import clone
from multicse.trainers.engine.progress import announce

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
    # The control store keeps 4 kB about each of the latest 100,000 tasks, for Ray's page: 400 MB after days of reading.
    "RAY_task_events_max_num_task_in_gcs": "1000",
    # Prestarted processes would stay idle, because Train's workers have their own environment variables.
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
    # Ray ends an idle process after a second if the node has more processes than CPUs. A run's actors alone exceed this, so
    # every reading task would start a new process, whose imports take 2.5 s of CPU time.
    "RAY_num_workers_soft_limit": "64",
}
"""Additional settings if this process starts Ray."""


IMPORTED_BY_INIT = (
    "ray._common.usage.usage_lib",
    "ray._private.runtime_env.uv_runtime_env_hook",
    "ray._private.thirdparty.pynvml",
    "ray.autoscaler._private.cli_logger",
    "ray.autoscaler.v2.utils",
    "ray.dashboard.optional_deps",
)
"""Modules that Ray imports when it starts, with the packages that they need."""


class RayStartError(ValueError):
    """Ray did not start, or the cluster did not answer."""

    exit_code = 1


class Cause(NamedTuple):
    """Why Ray did not come up."""

    pattern: str
    """Regular expression for the text of Ray's error."""
    text: str
    """Message with the problem and the remedy, filled with `_facts`."""
    again: bool = False
    """A second try may succeed."""


CAUSES = (
    Cause(
        "AF_UNIX",
        "the name of the folder for temporary files, {folder}, is too long for Ray's sockets; set a shorter one for Ray: "
        "RAY_TMPDIR=/tmp",
    ),
    Cause(
        "Errno 28|No space left|not enough space",
        "a disk is full ({error}). Free space in {folder} and /dev/shm, or set another folder for Ray: RAY_TMPDIR=DIR",
    ),
    Cause(
        "Errno 2\\b|Errno 13|Errno 20|Errno 30",
        "the folder for temporary files cannot be written ({error}); set another one for Ray: RAY_TMPDIR=DIR",
    ),
    Cause(
        "specified port is|Address already in use",
        "port {port} is in use. Unset RAY_GCS_SERVER_PORT, so that Ray takes a free one, or end the process that has it",
    ),
    Cause(
        "Version mismatch",
        "the cluster at {address} has other versions of Ray or Python than this process ({error}). Install the cluster's",
    ),
    Cause(
        "[Aa]uthenticat|[Ii]nvalid token|RAY_AUTH",
        "the cluster at {address} requires its own token: set RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH to its file",
    ),
)
"""Known causes; the first one whose pattern is found counts."""
UNANSWERED = Cause(
    "Could not find any running Ray|connection timeout|TimedOut|[Ff]ailed to (get cluster|connect)|Invalid address|"
    "not a valid|Malformed|Port is not|Could not read|Unable to connect",
    "no Ray cluster answers at RAY_ADDRESS={address}. Start it (ray start --head), correct the address (HOST:PORT; 6379 is "
    "Ray's port), or unset RAY_ADDRESS to start Ray on this machine",
)
"""The cause of errors without a cluster."""
BUSY = Cause(
    "timed out during startup|overloaded|Failed to start GCS|not been updated|raylet",
    "Ray did not start in time: the load of this machine is {load} on {cpus} CPUs. Run the same command again when it is "
    "less busy, or train without Ray: --run.num_workers 0",
    again=True,
)
"""The cause of errors with which Ray gives up on this machine after 30 s."""
ANSWERS = 5.0
"""Seconds in which a cluster has to accept a connection. Ray itself repeats its attempts for minutes."""


def own_ray() -> None:
    """Set the environment for a Ray that this process starts."""
    # Without a separate token, Ray stores one in the home folder, which a later plain `ray start` requires.
    for name, value in {**ONE_MACHINE, "RAY_AUTH_TOKEN": secrets.token_hex(32)}.items():
        os.environ.setdefault(name, value)


@contextlib.contextmanager
def starting_ray(verbose: bool = False) -> Iterator[None]:
    """Call `start_ray` in a thread during the body: it mostly waits for Ray's processes. If the body fails, Ray ends.

    Raises:
        RayStartError: As `start_ray`; before the body if nothing answers at RAY_ADDRESS.
    """
    import ray

    if ray.is_initialized():
        start_ray(verbose)
        yield
        return
    if address := os.environ.get("RAY_ADDRESS"):
        try:
            _knock(address)
        except ConnectionError as error:
            raise RayStartError(cause_of(error, here=False).text.format(**_facts(error))) from None
    for module in IMPORTED_BY_INIT:  # not in the thread, since two threads must not import the same package at once
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    started: Future[None] = Future()

    def start() -> None:
        try:
            start_ray(verbose)
            started.set_result(None)
        except BaseException as error:
            started.set_exception(error)
        threading.Event().wait()  # Linux ends Ray's processes with the thread that has started them

    threading.Thread(target=start, daemon=True, name="ray-start").start()
    try:
        yield
    except BaseException:
        wait([started])
        ray.shutdown()
        raise
    started.result()


def start_ray(verbose: bool = False) -> None:
    """Join the cluster that this process belongs to (a Ray job, RAY_ADDRESS), otherwise start Ray on this machine.

    Args:
        verbose: Show Ray's log and the address of its page.

    Raises:
        RayStartError: If Ray does not come up, with the cause and what to do. On a busy machine it is tried twice.
    """
    import ray

    here = not (ray.is_initialized() or os.environ.get("RAY_ADDRESS"))
    if here:
        own_ray()
    for name, value in TRAIN.items():
        os.environ.setdefault(name, value)
    if ray.is_initialized():
        return
    folder, code = clone(), None
    if folder and Path.cwd() != folder:
        path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
        # This function of the package is imported from the clone before workers search the current folder, which may
        # contain another clone.
        code = {"env_vars": {"PYTHONPATH": path}, "worker_process_setup_hook": "multicse.process.collect_rarely"}
    announce("Starting Ray on this machine" if here else f"Connecting to Ray at {os.environ['RAY_ADDRESS']}")
    settings: dict[str, Any] = {
        "address": "local" if here else None,
        "runtime_env": code,
        # It takes eight processes, and its address is shown if verbose.
        "include_dashboard": False if here and not verbose else None,
        "log_to_driver": verbose,
        "logging_level": logging.INFO if verbose else logging.ERROR,
    }
    with in_background():
        for last in (False, True):
            error = _try(settings, here)
            if error is None:
                return
            cause, facts = cause_of(error, here), _facts(error)
            if last or not cause.again:
                raise RayStartError(cause.text.format(**facts)) from (error if verbose else None)
            announce(f"Ray did not start in time (load {facts['load']}). Starting it again")
            for folder in Path(facts["folder"]).glob(f"ray/session_*_{os.getpid()}"):
                shutil.rmtree(folder, ignore_errors=True)


def _try(settings: dict[str, Any], here: bool) -> Exception | None:
    """Start or join Ray. If that fails, return the error; no process of that Ray is left then."""
    import psutil
    import ray

    process = psutil.Process()
    before = process.children(recursive=True)
    try:
        if not here:
            _knock(os.environ["RAY_ADDRESS"])
        ray.init(**settings)
        return None
    except Exception as error:
        ray.shutdown()
        left = [child for child in process.children(recursive=True) if child not in before]  # Ray forgets them
        for child in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        psutil.wait_procs(left, timeout=30)
        return error


def cause_of(error: Exception, here: bool) -> Cause:
    """Return the cause of an error of `ray.init`.

    Args:
        error: What it raised.
        here: Ray was started on this machine, not joined.
    """
    text = f"{error!r} {error}"
    for cause in (*CAUSES, *([BUSY] if here else [UNANSWERED])):
        if re.search(cause.pattern, text):
            return cause
    return Cause("", "Ray did not start ({error}). Train without Ray: --run.num_workers 0")


def _facts(error: Exception) -> dict[str, str]:
    port = re.search(r"specified port is (\d+)", str(error))
    return {
        "error": " ".join(str(error).split())[:300],
        "address": os.environ.get("RAY_ADDRESS", ""),
        "folder": os.environ.get("RAY_TMPDIR") or tempfile.gettempdir(),
        "port": port[1] if port else os.environ.get("RAY_GCS_SERVER_PORT", "of Ray"),
        "load": f"{os.getloadavg()[0]:.0f}" if hasattr(os, "getloadavg") else "unknown",
        "cpus": str(os.cpu_count()),
    }


def _knock(address: str) -> None:
    """Raise ConnectionError, whose text is one of `CAUSES`, if nothing accepts a connection at HOST:PORT."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if address in ("auto", "local") or "://" in address.replace("ray://", ""):
        return
    if not colon or not port.isdigit():
        raise ConnectionError(f"Invalid address: {address}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWERS).close()
    except OSError as error:
        raise ConnectionError(f"Unable to connect: {error}") from None


@contextlib.contextmanager
def in_background() -> Iterator[None]:
    """Start processes that wait for a free core instead of preempting training (Linux's SCHED_BATCH).

    Every Ray process wakes up 100 times per second (docs/dev/performance.md). Child processes inherit the policy.
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
