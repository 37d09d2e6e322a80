"""Servers on loopback that the tests of this folder start and kill."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """An HTTP server on loopback, in its own process group, with what it keeps and its log in a folder.

    command: with ``{port}`` where the port stands. health: the path that answers 200 once it is up. env: on top of the
    test's own environment.
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

    def start(self, timeout: float = 600) -> None:
        """Start it and wait until it answers; the test fails with the end of its log when it does not in `timeout` s."""
        self.folder.mkdir(parents=True, exist_ok=True)
        log = self.folder / "server.log"
        with open(log, "ab") as output:
            self.process = subprocess.Popen(
                self.command, cwd=self.folder, env=self.env, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline and self.process.poll() is None:
            if self.answers():
                return
            time.sleep(0.3)
        text = log.read_text()[-3000:]
        self.kill()
        pytest.fail(f"{self.command} did not start:\n{text}")

    def answers(self) -> bool:
        """Whether the health page answers now."""
        try:
            with urllib.request.urlopen(self.uri + self.health, timeout=10) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def kill(self) -> None:
        """SIGKILL to its whole group; afterwards nothing answers."""
        if self.process is None:
            return
        family: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            # Servers like MLflow's put their workers into groups of their own.
            family = psutil.Process(self.process.pid).children(recursive=True)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait(30)
        self.process = None
        with pytest.raises((urllib.error.URLError, OSError)):
            urllib.request.urlopen(self.uri + self.health, timeout=2)


class MLflowServer(Server):
    """``mlflow server`` on SQLite in the folder, with a proxied artifact store.

    artifacts: a folder or a URL (``s3://…``); none: in the folder.
    """

    def __init__(self, folder: Path, artifacts: str | None = None, env: Mapping[str, str] | None = None) -> None:
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", "{port}", "--workers", "1"]
        command += ["--backend-store-uri", f"sqlite:///{folder / 'server.db'}"]
        command += ["--artifacts-destination", artifacts or str(folder / "artifacts")]
        quiet = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}  # a dozen processes that nothing here needs
        super().__init__(folder, command, health="/health", env={**quiet, **(env or {})})


BUCKET = "multicse"


class S3Server(Server):
    """An S3-compatible store (moto's server), with one bucket, `BUCKET`."""

    def __init__(self, folder: Path) -> None:
        pytest.importorskip("moto.server", reason="moto[server] is not installed (pip install -e '.[test]')")
        command = [sys.executable, "-m", "moto.server", "--host", "127.0.0.1", "--port", "{port}"]
        super().__init__(folder, command, health="/moto-api/data.json")

    @property
    def env_for_clients(self) -> dict[str, str]:
        """What a user of another store than AWS's sets; the credentials are any, since this store asks for none."""
        return {
            "AWS_ENDPOINT_URL": self.uri,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def client(self) -> Any:
        """A boto3 client of this store."""
        import boto3

        keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
        return boto3.client("s3", endpoint_url=self.uri, region_name="us-east-1", **keys)

    def start(self, timeout: float = 600) -> None:
        super().start(timeout)
        self.client().create_bucket(Bucket=BUCKET)

    def objects(self, prefix: str = "") -> dict[str, int]:
        """Key -> size in bytes of the bucket's objects below a prefix."""
        pages = self.client().get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return {item["Key"]: item["Size"] for page in pages for item in page.get("Contents", ())}


RAY = str(Path(sys.executable).with_name("ray"))


def plain_env() -> dict[str, str]:
    """The environment without a cluster and a store; ``python`` is the one of the tests."""
    own = {key: value for key, value in os.environ.items() if not key.startswith("AWS_") and key != "RAY_ADDRESS"}
    path = f"{Path(sys.executable).parent}{os.pathsep}{own['PATH']}"
    return {**own, "PATH": path, "RAY_AUTH_MODE": "disabled", "RAY_DISABLE_IMPORT_WARNING": "1"}


class RayHead:
    """``ray start --head`` on loopback, with a dashboard that takes jobs; stopped by its process ids.

    It is given no AWS settings: what a job needs travels with the job, as on a cluster of a user's own. arguments: further
    ones of ``ray start``. env: what is set for it and for `env`.
    """

    def __init__(self, arguments: Sequence[str] = ("--num-cpus=4",), env: Mapping[str, str] | None = None) -> None:
        self.arguments = list(arguments)
        self.folder = Path(tempfile.mkdtemp(prefix="ray-"))  # short: socket names end at 107 characters
        self.port, self.dashboard, agent, client = (free_port() for _ in range(4))
        self.ports = [f"--port={self.port}", f"--dashboard-port={self.dashboard}", f"--ray-client-server-port={client}"]
        self.ports.append(f"--dashboard-agent-listen-port={agent}")
        self.env = {**plain_env(), **(env or {})}

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def env_for_jobs(self) -> dict[str, str]:
        """For ``ray job submit``."""
        return {**self.env, "RAY_API_SERVER_ADDRESS": f"http://127.0.0.1:{self.dashboard}"}

    def start(self) -> None:
        command = [RAY, "start", "--head", "--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1", *self.ports]
        command += ["--disable-usage-stats", f"--temp-dir={self.folder}", *self.arguments]
        # A file, not a pipe: the head's processes inherit it, and a pipe is read until all of them have ended.
        with open(self.folder / "start.log", "wb") as out:
            done = subprocess.run(command, env=self.env, stdout=out, stderr=subprocess.STDOUT)
        if done.returncode:
            text = (self.folder / "start.log").read_text()[-3000:]
            self.kill()
            pytest.fail(f"ray start failed:\n{text}")

    def processes(self) -> list[psutil.Process]:
        """What belongs to this cluster: whatever names its folder or address, and all that those started."""
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
        """SIGKILL to all of it, until nothing is left."""
        for _ in range(10):
            if not (left := self.processes()):
                break
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(left, timeout=5)
        shutil.rmtree(self.folder, ignore_errors=True)


class Nodes:
    """A head that only drivers use, and raylets with CPUs, each with a loopback address of its own.

    They and their workers have the environment that the test has when this is made, as nodes of a cluster have theirs.
    """

    def __init__(self, workers: int, cpus: float) -> None:
        from ray.cluster_utils import Cluster

        self.folder = Path(tempfile.mkdtemp(prefix="ray-"))
        arguments = {"num_cpus": 0, "include_dashboard": False, "temp_dir": str(self.folder)}
        arguments |= {"gcs_server_port": free_port(), "dashboard_port": free_port()}
        self.cluster = Cluster(initialize_head=True, head_node_args=arguments)
        self.workers: list[Any] = []
        try:
            for i in range(workers):
                self.workers.append(self.cluster.add_node(num_cpus=cpus, node_ip_address=f"127.0.0.{2 + i}"))
        except BaseException:  # a busy machine may take longer to start one than Ray waits
            self.stop()
            raise

    @property
    def address(self) -> str:
        """What RAY_ADDRESS is for a driver on this cluster."""
        return str(self.cluster.address)

    def family(self, node: Any) -> list[psutil.Process]:
        """The processes of a raylet: itself and the workers that it started."""
        (raylet,) = node.all_processes["raylet"]
        one = psutil.Process(raylet.process.pid)
        return [one, *one.children(recursive=True)]

    def kill(self, node: Any) -> None:
        """SIGKILL to a raylet and to all its processes at once, as when a machine disappears."""
        (raylet,) = node.all_processes["raylet"]
        kill_families([raylet.process.pid])
        raylet.process.wait(30)

    def kill_all(self) -> None:
        """SIGKILL to every process of every node, the head's included."""
        parents = [
            process.process.pid
            for node in (self.cluster.head_node, *self.workers)
            for processes in node.all_processes.values()
            for process in processes
        ]
        kill_families(parents)

    def stop(self) -> None:
        with contextlib.suppress(Exception):
            self.cluster.shutdown()
        shutil.rmtree(self.folder, ignore_errors=True)


def kill_families(pids: Sequence[int]) -> None:
    """SIGKILL to processes and all that they started; returns when none of them runs any more."""
    found: dict[int, psutil.Process] = {}
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            one = psutil.Process(pid)
            found |= {process.pid: process for process in (one, *one.children(recursive=True))}
    for process in found.values():
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    deadline = time.monotonic() + 120
    while any(_runs(process) for process in found.values()):  # not psutil's wait, which would take a child's exit code
        assert time.monotonic() < deadline, "a killed process goes on"
        time.sleep(0.05)


def _runs(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
