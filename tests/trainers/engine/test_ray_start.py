"""Ray that does not come up: the cause and the remedy in a line, and a second try where it may help."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from multicse.trainers.engine import ray_start
from multicse.trainers.engine.ray_start import RayStartError, cause_of, start_ray, starting_ray

BUSY = Exception(
    "The current node timed out during startup. This could happen because some of the raylet failed to startup or the GCS "
    "has become overloaded."
)
ERRORS = [
    (True, OSError("AF_UNIX path length cannot exceed 107 bytes: /tmp/a/ray/session"), "RAY_TMPDIR=/tmp"),
    (True, OSError(28, "No space left on device", "/tmp/ray"), "disk is full"),
    (True, PermissionError(13, "Permission denied", "/tmp/ray"), "cannot be written"),
    (True, RuntimeError("Failed to start GCS. Check failed: server_ The specified port is 6379."), "port 6379 is in use"),
    (True, RuntimeError("Failed to start GCS.  Last 1 lines of error files: Timed out"), "--run.num_workers 0"),
    (True, BUSY, "less busy"),
    (True, ValueError("something new"), "Ray did not start (something new)"),
    (
        False,
        RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 2.9.0\n    Python: 3.9.1"),
        "Ray: 2.9.0",
    ),
    (False, RuntimeError("InvalidAuthToken: Unauthenticated: invalid token"), "RAY_AUTH_TOKEN"),
    (False, ConnectionError("Could not find any running Ray instance."), "ray start --head"),
    (False, ConnectionError("ray client connection timeout"), "ray start --head"),
    (False, ValueError("Invalid address format: head"), "HOST:PORT"),
]
"""Started here or joined, an error of Ray, part of our line."""


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Errors that `ray.init` raises, one per call, each after it has started a process; then it succeeds."""
    errors = list[Any]()
    started = list[Any]()

    def init(**_: object) -> None:
        assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in started), "of a former try"
        if errors:
            started.append(psutil.Popen([sys.executable, "-c", "import time; time.sleep(600)"]))
            raise errors.pop(0)

    for name in [name for name in os.environ if name.startswith("RAY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(os, "environ", os.environ.copy())
    return errors


@pytest.mark.parametrize(("here", "error", "says"), ERRORS, ids=lambda value: value if isinstance(value, str) else "")
def test_every_cause_is_named_with_its_remedy(
    here: bool, error: Exception, says: str, refusing: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing.extend([error, error])
    if not here:
        monkeypatch.setitem(os.environ, "RAY_ADDRESS", "auto")
    with pytest.raises(RayStartError, match=re.escape(says)) as raised:
        start_ray()
    assert "\n" not in str(raised.value)
    assert len(refusing) == 1 - cause_of(error, here).again, "a second try for want of time only"


def test_every_cause_is_tested() -> None:
    assert {cause_of(error, here).pattern for here, error, _ in ERRORS} == {
        cause.pattern for cause in (*ray_start.CAUSES, ray_start.UNANSWERED, ray_start.BUSY)
    } | {""}


def test_a_busy_machine_is_tried_twice_without_remains_of_the_first_try(
    refusing: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refusing.append(BUSY)
    monkeypatch.setitem(os.environ, "RAY_TMPDIR", str(tmp_path))
    (left := tmp_path / f"ray/session_2026_{os.getpid()}").mkdir(parents=True)
    (other := tmp_path / "ray/session_2026_1").mkdir()
    start_ray()
    assert other.is_dir() and not left.exists()
    first, second = capsys.readouterr().err.splitlines()
    assert first == "Starting Ray on this machine ..." and "Starting it again" in second


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"RAY_ADDRESS": "127.0.0.1:9"}, "RAY_ADDRESS=127.0.0.1:9"),
        ({"RAY_ADDRESS": "ray://127.0.0.1:9"}, "RAY_ADDRESS=ray://127.0.0.1:9"),
        ({"TMPDIR": "/dev/null/ray"}, "/dev/null/ray"),
        ({"TMPDIR": f"{'a' * 100}"}, "RAY_TMPDIR=/tmp"),
    ],
    ids=str,
)
def test_a_real_ray_that_cannot_start(setting: dict[str, str], says: str, tmp_path: Path) -> None:
    """Also that an address is not tried for minutes."""
    (tmp_path / ("a" * 100)).mkdir()
    code = "from multicse.trainers.engine.ray_start import start_ray; start_ray()"
    cleared = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    if setting.get("TMPDIR", "").startswith("a"):
        setting = {"TMPDIR": str(tmp_path / setting["TMPDIR"])}
    found = subprocess.run(
        [sys.executable, "-c", code], env=cleared | setting, capture_output=True, text=True, check=False, timeout=120
    )
    assert found.returncode and f"{RayStartError.__name__}: " in found.stderr and says in found.stderr, found.stderr


def test_an_address_that_nobody_answers_is_reported_before_the_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    with pytest.raises(RayStartError, match=r"no Ray cluster answers at RAY_ADDRESS=127\.0\.0\.1:9"), starting_ray():
        pytest.fail("the recipe is checked first")


MEANWHILE = """
import sys, threading
import psutil, ray
from multicse.trainers.engine.ray_start import starting_ray

class Watch:
    def find_spec(name, path=None, target=None):
        if threading.current_thread().name == "ray-start":
            imported.append(name)

imported = []
sys.meta_path.insert(0, Watch)
try:
    with starting_ray():
        import sentence_transformers
        assert not {part}, "the recipe is wrong"
except AssertionError:
    print(ray.is_initialized(), len(psutil.Process().children()))
else:
    found = [name for name in imported if name in sys.modules and not name.startswith("ray.")]
    print(ray.get(ray.remote(lambda: "alive").remote()), found)
"""


@pytest.mark.cluster
@pytest.mark.parametrize(("wrong", "says"), [(False, "alive []"), (True, "False 0")])
def test_ray_starts_meanwhile(wrong: bool, says: str) -> None:
    """No package is imported in its thread; it outlives the thread's work, and ends if the recipe is wrong."""
    cleared = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    code = MEANWHILE.replace("{part}", str(wrong))
    found = subprocess.run(
        [sys.executable, "-c", code], env=cleared, capture_output=True, text=True, check=True, timeout=300
    )
    assert found.stdout.split("\n")[-2] == says
