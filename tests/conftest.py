"""Shared fixtures: where the benchmark data is, and one thread per process so that tests do not fight for cores."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

ROOT = Path(__file__).resolve().parents[1]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-golden", action="store_true", help="write the files of tests/golden anew")


def datasets_folder() -> Path:
    """The benchmark data: ``MULTICSE_DATASETS``, else ``../shared/datasets`` beside the repository."""
    return Path(os.environ.get("MULTICSE_DATASETS", ROOT.parent / "shared" / "datasets"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that take benchmark data or the real WordNet, neither of which the repository brings along."""
    for item in items:
        if {"datasets", "wordnet"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("data")


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

    os.environ.setdefault("RAY_TRAIN_ENABLE_PRINT_PATCH", "0")
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()
