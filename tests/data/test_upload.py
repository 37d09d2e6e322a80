"""Uploads equal the packed folder, and small folders are copied automatically, once."""

from __future__ import annotations

import json
from pathlib import Path

import fsspec
import pytest
from botocore.exceptions import NoCredentialsError

from multicse.data import remote
from multicse.data.errors import DataError
from multicse.data.pack import text_lines
from multicse.data.shard_writer import SMALL, Output, pack, upload, upload_small_shards
from multicse.data.shards import ShardSet, read


def packed(folder: Path, sentences: int = 25) -> Path:
    source = folder.parent / f"{folder.name}.txt"
    source.write_text("".join(f"Sentence number {i} of {folder.name}.\n" for i in range(sentences)))
    pack(text_lines([source]), Output(folder, folder.name, shard_size=10, licence="CC0"))
    return folder


def texts(url: str) -> list[bytes]:
    shards = ShardSet.open(url).shards
    return [sample.fields["txt"] for shard in shards for sample in read(shard, range(shard.samples))]  # type: ignore[union-attr]


@pytest.mark.parametrize("error", [OSError("no space left"), NoCredentialsError()])
def test_the_description_comes_last(
    error: Exception, tmp_path: Path, memory: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy that was cut short is not taken for a whole one."""
    folder = packed(tmp_path / "wiki")
    put = type(memory).put_file

    def full(self: fsspec.AbstractFileSystem, source: str, target: str, **more: object) -> None:
        if "000001" in source:
            raise error
        put(self, source, target, **more)

    monkeypatch.setattr(type(memory), "put_file", full)
    monkeypatch.setattr(remote, "PAUSE", 0.0)
    with pytest.raises(DataError, match="memory://b/wiki"):
        upload(folder, "memory://b/wiki")
    assert memory.find("/b/wiki") and not memory.exists("/b/wiki/dataset.json")


def test_small_folders_travel_once(tmp_path: Path, memory: fsspec.AbstractFileSystem) -> None:
    one, other = packed(tmp_path / "one"), packed(tmp_path / "other")
    shards = f"{one}::{other}::s3://elsewhere/{{000..002}}.tar::{one}/one-train-000000.tar"
    first, second, *rest = upload_small_shards(shards, "memory://b/runs/").split("::")
    assert rest == shards.split("::")[2:], "URLs and single files stay"
    assert first.startswith("memory://b/runs/shards/") and first.endswith("/one") and second.endswith("/other")
    assert texts(first) == texts(str(one)) and texts(second) == texts(str(other))

    made = {name: memory.modified(name) for name in memory.find("/b")}
    assert upload_small_shards(str(one), "memory://b/runs") == first
    assert {name: memory.modified(name) for name in memory.find("/b")} == made, "it was copied again"

    (one / "dataset.json").write_text(json.dumps({**json.loads((one / "dataset.json").read_text()), "licence": "CC BY"}))
    assert upload_small_shards(str(one), "memory://b/runs") != first, "other content is another copy"


def test_large_folders_and_strange_ones_stay(tmp_path: Path, memory: fsspec.AbstractFileSystem) -> None:
    large = packed(tmp_path / "large")
    with open(large / "large-train-000000.tar", "ab") as file:
        file.truncate(int(SMALL) + 1)  # sparse
    (tmp_path / "bare").mkdir()
    for place in (str(large), str(tmp_path / "bare"), str(tmp_path / "absent"), "memory://b/x"):
        assert upload_small_shards(place, "memory://b/runs") == place
    assert not memory.find("/b")
