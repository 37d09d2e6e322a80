"""Run commands in forks of a process that has imported everything, to save the seconds of importing.

`Warm` starts that process. The programs in its folder `bin` send their arguments, environment and streams to it and end with
the exit code of the fork, so a shell can use them like the programs that they replace.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

LAZY = (
    "matplotlib.pyplot",
    "mlflow.store.tracking.sqlalchemy_store",
    "ray.data",
    "ray.train.torch",
    "ray.tune",
    "sentence_transformers",
)
"""Modules that commands import only when they use them."""
CLIENT = """\
#!{python} -IS
import json, os, socket, sys
words = {words}
if words is None:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
socket.send_fds(server, [b"-"], [0, 1, 2])
server.sendall(json.dumps([words, os.getcwd(), dict(os.environ)]).encode())
server.shutdown(socket.SHUT_WR)
code = server.recv(9)
sys.exit(int(code) if code else open({log!r}).read())
"""
PROGRAMS = {
    "multicse": "[{root!r} + '/bin/multicse', *sys.argv[1:]]",
    "python": "sys.argv[1:] if sys.argv[1:2] and sys.argv[1].startswith(('pipelines/', 'reproduction/')) else None",
}
"""Functions from the arguments of a program to the arguments of a script, or None to run the real program."""


class Warm:
    """Process that has imported everything, and the programs that use it.

    Args:
        root: Clone, or folder in which pip has installed the wheel.
        env: Environment of the process.
    """

    def __init__(self, root: Path, env: Mapping[str, str]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="warm-"))  # short, since socket names are limited to 107 characters
        self.bin, log, address = self.folder / "bin", str(self.folder / "log"), str(self.folder / "socket")
        self.bin.mkdir()
        for name, words in PROGRAMS.items():
            words = words.format(root=str(root))
            (self.bin / name).write_text(CLIENT.format(python=sys.executable, address=address, log=log, words=words))
            (self.bin / name).chmod(0o755)
        with socket.socket(socket.AF_UNIX) as listening, open(log, "wb") as output:
            listening.bind(address)
            listening.listen()
            number = listening.fileno()
            command = [sys.executable, __file__, str(number), str(root)]
            self.process = subprocess.Popen(
                command, env=env, stdout=output, stderr=output, start_new_session=True, pass_fds=[number]
            )

    def stop(self) -> None:
        """End the process and all running commands."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        shutil.rmtree(self.folder)


def load(root: Path) -> None:
    """Import all modules of the project and the modules that they import later."""
    sys.path[0] = str(root)
    for file in sorted((root / "multicse").glob("*/**/*.py")):
        name = str(file.relative_to(root).with_suffix("")).replace("/", ".").removesuffix(".__init__")
        importlib.import_module(name)
    importlib.import_module("multicse.trainers.engine.mlflow_server").import_mlflow()
    for name in LAZY:
        importlib.import_module(name)
    # A table of regular expressions that transformers makes before the first model.
    importlib.import_module("transformers.conversion_mapping").get_checkpoint_conversion_mapping("bert")
    assert threading.active_count() == 1, "an import has started threads, which a fork would lack"
    gc.collect()
    gc.freeze()  # forks share the memory of what is imported


def serve(listening: socket.socket) -> str:
    """Fork a process per command; in that process return the script to run."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # finished forks are reaped
    while True:
        asked, _ = listening.accept()
        if not os.fork():
            break
        asked.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    listening.close()
    _, streams, _, _ = socket.recv_fds(asked, 1, 3)
    words, folder, env = json.loads(b"".join(iter(lambda: asked.recv(1 << 16), b"")))
    if child := os.fork():
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        asked.sendall(str(code % 256).encode())
        os._exit(0)
    asked.close()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    sys.argv, sys.path[0] = words, str(Path(words[0]).resolve().parent)
    return str(words[0])


def run(script: str) -> NoReturn:
    """Run a script and end without taking all modules apart, which would be 3 s of processor time."""
    code: object = 1
    try:
        runpy.run_path(script, run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code or 0
        if not isinstance(code, int):
            print(code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    threading._shutdown()  # type: ignore[attr-defined]  # as an interpreter ends: threads, exit functions, streams
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    load(Path(sys.argv[2]))
    run(serve(socket.socket(fileno=int(sys.argv[1]))))
