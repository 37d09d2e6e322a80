"""Shared fixtures: where the benchmark data is, and one thread per process so that tests do not fight for cores."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from multicse.data.streams.audio import AudioStream
from multicse.data.streams.image import ImageStream
from multicse.data.streams.text import TextStream
from multicse.models.config import EncoderConfig
from multicse.process import collect_rarely
from multicse.trainers.engine.mlflow_server import connect
from multicse.trainers.nonling import AudioConfig, ImageConfig, NonLingCSEConfig
from multicse.trainers.recipe import EvaluationConfig, OptimConfig, Recipe, RunConfig
from multicse.trainers.simcse import SimCSEConfig
from tests.worlds import write_encoder, write_images, write_sounds, write_text

collect_rarely()
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

BEGAN = time.monotonic()
LAST = pytest.StashKey[pytest.Item | None]()
"""The last test that takes the one Ray of the test session."""
ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "multicse"
ROOMS = ("data", "models", "evaluation", "trainers", "tune_spaces", "commands", "pipelines", "reproduction")
LINKS = ("data", "models", "trainers", "tune_spaces", "pipelines", "reproduction")
"""The names at the top of a clone, which are links into the package."""


def copy_code(folder: Path) -> None:
    """The package of a clone, and the links into it."""
    shutil.copytree(PACKAGE, folder / "multicse", symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for room in LINKS:
        (folder / room).symlink_to(f"multicse/{room}")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-golden", action="store_true", help="write the files of tests/golden anew")
    parser.addoption("--seconds", type=float, help="skip the tests that have not begun after this time")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    limit = item.config.getoption("--seconds")
    if limit is not None and time.monotonic() - BEGAN > limit:
        pytest.skip(f"{item.nodeid}: not begun within --seconds {limit:.0f}")


def datasets_folder() -> Path:
    """The benchmark data: ``MULTICSE_DATASETS``, else ``../shared/datasets`` beside the repository."""
    return Path(os.environ.get("MULTICSE_DATASETS", ROOT.parent / "shared" / "datasets"))


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that take benchmark data or the real WordNet, neither of which the repository brings along.

    pytest-xdist gives a file to one process, all that takes the one Ray to another, and so all clusters of several nodes;
    these two first of all, as they take longest.
    """
    groups = dict[pytest.Item, str]()
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if {"datasets", "wordnet"} & fixtures:
            item.add_marker("data")
        given = item.get_closest_marker("xdist_group")
        groups[item] = given.args[0] if given else "ray" if "local_ray" in fixtures else item.location[0]
        if given is None:
            item.add_marker(pytest.mark.xdist_group(groups[item]))
    items.sort(key=lambda item: groups[item] not in ("ray", "nodes"))


def pytest_collection_finish(session: pytest.Session) -> None:
    with_ray = [item for item in session.items if "local_ray" in getattr(item, "fixturenames", ())]
    session.config.stash[LAST] = with_ray[-1] if with_ray else None


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """End the one Ray after its last test, since even an idle one takes a sixth of a core."""
    if item is item.config.stash[LAST]:
        import ray

        ray.shutdown()


@pytest.fixture(scope="session")
def datasets() -> Path:
    folder = datasets_folder()
    if not folder.is_dir():
        pytest.skip(f"benchmark data is absent: no folder {folder} (set MULTICSE_DATASETS)")
    return folder


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["MULTICSE_CACHE"] = str(tmp_path_factory.mktemp("cache"))  # before Ray starts, so that its workers have it


@pytest.fixture(scope="session")
def local_ray() -> Iterator[None]:
    """The one Ray of the test session."""
    import ray

    from multicse.trainers.engine.ray_start import own_ray

    own_ray()
    os.environ.setdefault("RAY_TRAIN_ENABLE_PRINT_PATCH", "0")
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an encoder and shards of text, images and sounds."""
    folder = tmp_path_factory.mktemp("inputs")
    write_encoder(folder / "encoder")
    write_text(folder / "text")
    write_images(folder / "image")
    write_sounds(folder / "audio")
    return folder


@pytest.fixture(scope="session")
def offline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to run offline recipes in. Its shards, ``runs/offline``, are made once for all processes of the tests."""
    folder, base = tmp_path_factory.mktemp("offline"), tmp_path_factory.getbasetemp()
    shards = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "offline-shards"
    shards.mkdir(exist_ok=True)
    (folder / "runs").mkdir()
    (folder / "runs" / "offline").symlink_to(shards)
    return folder


@pytest.fixture
def with_shards(offline: Path, tmp_path: Path) -> None:
    """Put the shards of `offline` into the test's own folder."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "offline").symlink_to(offline / "runs" / "offline")


@pytest.fixture(scope="session")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow's database without a run. Making its tables takes seconds, so that tests copy it."""
    file = tmp_path_factory.mktemp("tables") / "mlflow.db"
    connect(f"sqlite:///{file}")
    return file


@pytest.fixture
def tracking_uri(tables: Path, tmp_path: Path) -> str:
    """A database of the test's own."""
    return f"sqlite:///{shutil.copy(tables, tmp_path / 'mlflow.db')}"


@pytest.fixture
def recipe(place: Path, tracking_uri: str, tmp_path: Path) -> Recipe:
    """Text, images and sounds in three updates, in this process; 6 steps."""
    return Recipe(
        name="nonling/test",
        method=NonLingCSEConfig(
            text=SimCSEConfig(head="none"),
            image=ImageConfig(image_size=16, patch_size=8, weight=1.0),
            audio=AudioConfig(frames=32, bins=16, weight=1.0),
        ),
        encoder=EncoderConfig(path=str(place / "encoder"), pooling="mean"),
        streams={
            "text": TextStream(shards=str(place / "text"), batch_size=16, window=32),
            "image": ImageStream(shards=str(place / "image"), batch_size=8, size=16, window=32),
            "audio": AudioStream(shards=str(place / "audio"), batch_size=8, rate=8000, bins=16, frames=32, window=16),
        },
        optim={name: OptimConfig(lr=1e-3) for name in ("text", "image", "audio")},
        evaluation=EvaluationConfig(select="lee-dev", final=("lee",), eval_steps=3),
        run=RunConfig(
            output_dir=str(tmp_path / "run"),
            max_steps=6,
            epochs=100,
            num_workers=0,
            logging_steps=1,
            threads=1,
            tracking_uri=tracking_uri,
        ),
    )


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which pip has installed the wheel, and nothing else."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    copy_code(source)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", source, "--no-deps", "--no-build-isolation", "-w", folder], check=True)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([*pip, "install", wheel, "--no-deps", "--no-index", "--target", folder / "site"], check=True)
    return folder / "site"
