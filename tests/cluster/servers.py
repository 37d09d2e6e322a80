"""Servers on loopback for tests that start and kill them."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import psutil
import pytest

from multicse.trainers.engine.ray_start import ONE_MACHINE


def free_port() -> int:
    """Return a free port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Running:
    """Something that runs in the body of a ``with`` statement."""

    def start(self) -> None: ...

    def kill(self) -> None: ...

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class Server(Running):
    """HTTP server on loopback, with its data and log in a folder.

    Args:
        folder: Folder for data and log.
        command: Command with ``{port}`` for the port.
        health: Path that returns status 200 once the server is up.
        env: Additional environment variables.
    """

    def __init__(
        self, folder: Path, command: Sequence[str], *, health: str = "/", env: Mapping[str, str] | None = None
    ) -> None:
        self.folder, self.health = folder, health
        self.port = free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self.command = [part.replace("{port}", str(self.port)) for part in command]
        self.env = {**os.environ, **(env or {})}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server and wait until it responds; otherwise fail with the end of its log."""
        self.folder.mkdir(parents=True, exist_ok=True)
        log = self.folder / "server.log"
        with open(log, "ab") as output:
            self.process = subprocess.Popen(
                self.command, cwd=self.folder, env=self.env, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
        deadline = time.monotonic() + 600
        while time.monotonic() < deadline and self.process.poll() is None:
            if self.answers():
                return
            time.sleep(0.3)
        text = log.read_text()[-3000:]
        self.kill()
        pytest.fail(f"{self.command} did not start:\n{text}")

    def answers(self) -> bool:
        """Return True if the health page responds."""
        try:
            with urllib.request.urlopen(self.uri + self.health, timeout=10) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def kill(self) -> None:
        """Kill all processes of the server; afterwards it does not respond."""
        if self.process is not None:
            kill_families([self.process.pid])
            self.process.wait(30)
            self.process = None
            assert not self.answers()


class MLflowServer(Server):
    """``mlflow server`` on SQLite with a proxied artifact store.

    Args:
        folder: Folder for the database and the log.
        artifacts: Folder or URL (``s3://…``) of the artifacts. If None, they are stored in `folder`.
        env: Additional environment variables.
    """

    def __init__(self, folder: Path, artifacts: str | None = None, env: Mapping[str, str] | None = None) -> None:
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", "{port}", "--workers", "1"]
        command += ["--backend-store-uri", f"sqlite:///{folder / 'server.db'}"]
        command += ["--artifacts-destination", artifacts or str(folder / "artifacts")]
        quiet = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}  # would start a dozen unused processes
        super().__init__(folder, command, health="/health", env={**quiet, **(env or {})})


BUCKET = "multicse"


class S3Server(Server):
    """S3-compatible store (moto's server) with the bucket `BUCKET`."""

    def __init__(self, folder: Path) -> None:
        pytest.importorskip("moto.server", reason="moto[server] is not installed (pip install -e '.[test]')")
        command = [sys.executable, "-m", "moto.server", "--host", "127.0.0.1", "--port", "{port}"]
        super().__init__(folder, command, health="/moto-api/data.json")

    @property
    def env_for_clients(self) -> dict[str, str]:
        """Return the environment for a store other than AWS; this store accepts any credentials."""
        return {
            "AWS_ENDPOINT_URL": self.uri,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def client(self) -> Any:
        """Return a boto3 client of this store."""
        import boto3

        keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
        return boto3.client("s3", endpoint_url=self.uri, region_name="us-east-1", **keys)

    def start(self) -> None:
        super().start()
        self.client().create_bucket(Bucket=BUCKET)

    def objects(self, prefix: str = "") -> dict[str, int]:
        """Return the size in bytes of the bucket's objects below a prefix, by key."""
        pages = self.client().get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return {item["Key"]: item["Size"] for page in pages for item in page.get("Contents", ())}


RAY = str(Path(sys.executable).with_name("ray"))
CLUSTER = {name: value for name, value in ONE_MACHINE.items() if not name.startswith("RAY_TRAIN_")} | {
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
}
"""Environment of the clusters here, whose nodes share a machine: without processes that are not needed, as in the Ray that a
run starts by itself. Ray Train polls and is warned of lost nodes as on a user's cluster."""


def plain_env() -> dict[str, str]:
    """Return the environment without cluster and store variables; ``python`` is the interpreter of the tests."""
    own = {key: value for key, value in os.environ.items() if not key.startswith("AWS_") and key != "RAY_ADDRESS"}
    path = f"{Path(sys.executable).parent}{os.pathsep}{own['PATH']}"
    return {**own, **CLUSTER, "PATH": path, "RAY_DISABLE_IMPORT_WARNING": "1"}


class RayHead(Running):
    """``ray start --head`` on loopback; it is stopped by its process IDs.

    It has no AWS settings: as on a user's cluster, each job brings its environment.

    Args:
        arguments: Additional arguments of ``ray start``.
        env: Additional environment variables for the cluster and its drivers.
        jobs: Start the dashboard, which accepts jobs and takes ten processes, and the monitor that shows what workers print.
    """

    def __init__(
        self, arguments: Sequence[str] = ("--num-cpus=4",), env: Mapping[str, str] | None = None, jobs: bool = False
    ) -> None:
        self.arguments = [*arguments, f"--include-dashboard={jobs}", f"--include-log-monitor={jobs}"]
        self.folder = Path(tempfile.mkdtemp(prefix="ray-"))  # short, since socket names are limited to 107 characters
        self.port, self.dashboard, agent, client = (free_port() for _ in range(4))
        self.ports = [f"--port={self.port}", f"--dashboard-port={self.dashboard}", f"--ray-client-server-port={client}"]
        self.ports.append(f"--dashboard-agent-listen-port={agent}")
        self.env = {**plain_env(), **(env or {})}

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def env_for_jobs(self) -> dict[str, str]:
        """Return the environment for ``ray job submit``."""
        return {**self.env, "RAY_API_SERVER_ADDRESS": f"http://127.0.0.1:{self.dashboard}"}

    def start(self) -> None:
        command = [RAY, "start", "--head", "--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1", *self.ports]
        command += ["--disable-usage-stats", f"--temp-dir={self.folder}", *self.arguments]
        # A file and not a pipe: the head's processes inherit it, and reading a pipe would wait until all of them end.
        with open(self.folder / "start.log", "wb") as out:
            done = subprocess.run(command, env=self.env, stdout=out, stderr=subprocess.STDOUT)
        if done.returncode:
            text = (self.folder / "start.log").read_text()[-3000:]
            self.kill()
            pytest.fail(f"ray start failed:\n{text}")

    def processes(self) -> list[psutil.Process]:
        """Return the processes of this cluster: all that name its folder or address, and their children."""
        found: dict[int, psutil.Process] = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                line = " ".join(process.cmdline())
                if str(self.folder) in line or f"={self.address}" in line:
                    for one in (process, *process.children(recursive=True)):
                        found[one.pid] = one
        found.pop(os.getpid(), None)
        return list(found.values())

    def kill(self) -> None:
        """Kill all processes until none is left."""
        while left := self.processes():
            kill_families([process.pid for process in left])
        shutil.rmtree(self.folder, ignore_errors=True)


class Nodes:
    """Head node for drivers, and raylets with CPUs, each with its own loopback address.

    They and their workers have the environment of the test at the time of construction.
    """

    def __init__(self, workers: int, cpus: float) -> None:
        from ray.cluster_utils import Cluster

        self.folder = Path(tempfile.mkdtemp(prefix="ray-"))
        arguments = {"num_cpus": 0, "include_dashboard": False, "temp_dir": str(self.folder), "include_log_monitor": False}
        arguments |= {"gcs_server_port": free_port(), "dashboard_port": free_port()}
        self.cluster = Cluster(initialize_head=True, head_node_args=arguments)
        self.workers: list[Any] = []
        try:
            for i in range(workers):
                self.workers.append(self.cluster.add_node(num_cpus=cpus, node_ip_address=f"127.0.0.{2 + i}"))
        except BaseException:  # on a busy machine a start can take longer than Ray waits
            self.stop()
            raise

    @property
    def address(self) -> str:
        """Return RAY_ADDRESS for a driver on this cluster."""
        return str(self.cluster.address)

    def family(self, node: Any) -> list[psutil.Process]:
        """Return the processes of a raylet: itself and its workers."""
        (raylet,) = node.all_processes["raylet"]
        one = psutil.Process(raylet.process.pid)
        return [one, *one.children(recursive=True)]

    def kill(self, node: Any) -> None:
        """Kill a raylet and all its processes at once, like the failure of a machine."""
        (raylet,) = node.all_processes["raylet"]
        kill_families([raylet.process.pid])
        raylet.process.wait(30)

    def kill_all(self) -> None:
        """Kill every process of every node including the head."""
        parents = [
            process.process.pid
            for node in (self.cluster.head_node, *self.workers)
            for processes in node.all_processes.values()
            for process in processes
        ]
        kill_families(parents)

    def stop(self) -> None:
        """Kill everything; Ray's own end of a node takes seconds."""
        self.kill_all()
        with contextlib.suppress(Exception):
            self.cluster.shutdown()  # forgets its address
        shutil.rmtree(self.folder, ignore_errors=True)


def kill_families(pids: Sequence[int]) -> None:
    """Kill processes and their children, and return when none of them is running."""
    found: dict[int, psutil.Process] = {}
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            one = psutil.Process(pid)
            found |= {process.pid: process for process in (one, *one.children(recursive=True))}
    for process in found.values():
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    deadline = time.monotonic() + 120
    while any(_runs(process) for process in found.values()):  # psutil's wait would consume a child's exit code
        assert time.monotonic() < deadline, "a killed process is still running"
        time.sleep(0.05)


def _runs(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
