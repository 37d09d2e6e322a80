"""Indexes of shards: written by packing, wrong, of other sets, and their saving over a network."""

from __future__ import annotations

import gzip
import json
import logging
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import fsspec
import numpy as np
import pytest

from multicse.data import tar as tars
from multicse.data.shard_urls import expand
from multicse.data.shard_writer import Target, UnpackedSample, pack, upload
from multicse.data.shards import BadSample, RawSample, ShardSet, read
from multicse.data.tar import index_of, packed_index, read_headers
from multicse.data.tar_index import ENDING, Index
from tests.data.test_shards import numbered, write_tar


def packed(folder: Path, count: int = 30, size: int = 3000) -> Path:
    rng = np.random.default_rng(0)
    keys = ["caf\u00e9/1", "deep/" * 30 + "2"]  # names that do not fit into a plain header
    samples = (
        UnpackedSample({"jpg": rng.bytes(int(rng.integers(size))), "txt": b"x"}, key=keys[i] if i < 2 else "")
        for i in range(count)
    )
    pack(samples, Target(folder, "x", shard_size=count))
    return folder


@pytest.fixture
def no_memory() -> Iterator[Callable[[], None]]:
    """Clear the caches of this process, as in a new process."""

    def forget() -> None:
        tars.opened.cache_clear()
        index_of.cache_clear()

    forget()
    yield forget


def test_packing_writes_where_the_files_are(tmp_path: Path, no_memory: object) -> None:
    shard = ShardSet.open(str(packed(tmp_path / "x"))).shards[0]
    found = Index.from_bytes(Path(shard.url + ENDING).read_bytes())
    with tarfile.open(shard.url) as tar:
        expected = [(member.name, member.offset_data, member.size) for member in tar]
    names = [(key, *member) for key, sample in zip(found.keys, found.members, strict=True) for member in sample]
    assert [(f"{key}.{name}", offset, size) for key, name, offset, size in names] == expected
    assert packed_index(shard.url, 30) == found == read_headers(shard.url), "a new process has to read no header"


def test_an_index_keeps_all_that_is_known_of_a_damaged_tar(tmp_path: Path) -> None:
    path = Path(write_tar(tmp_path / "x.tar", [*numbered(9), ("a.b", b"1"), ("a.b", b"2"), *numbered(5)]))
    path.write_bytes(path.read_bytes()[:-9000])
    index = read_headers(str(path))
    assert index.faults and index.tail
    assert Index.from_bytes(index.to_bytes()) == index


def changed(**columns: Callable[[list[Any]], object]) -> Callable[[bytes], bytes]:
    """Change columns of an index in place."""

    def change(content: bytes) -> bytes:
        record = json.loads(gzip.decompress(content))
        for name, act in columns.items():
            act(record[name])
        return gzip.compress(json.dumps(record).encode())

    return change


LIES: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda content: b"",
    "cut": lambda content: content[:100],
    "no JSON": lambda content: gzip.compress(b"[" * 100_000),
    "another kind of JSON": lambda content: gzip.compress(b'{"keys": 3}'),
    "a bomb": lambda content: gzip.compress(bytes(2**29), 1),
    "outside the file": changed(gaps=lambda gaps: gaps.__setitem__(-1, 2**40)),
    "before the file": changed(gaps=lambda gaps: gaps.__setitem__(4, -(2**20))),
    "larger than allowed": changed(sizes=lambda sizes: sizes.__setitem__(4, 2**62)),
    "an infinity": lambda content: gzip.compress(gzip.decompress(content).replace(b'"lost":0', b'"lost":Infinity')),
    "a fraction": changed(sizes=lambda sizes: sizes.__setitem__(4, 0.5)),
    "a text": changed(gaps=lambda gaps: gaps.__setitem__(4, "512")),
    "a sample more": changed(keys=lambda keys: keys.append("more")),
    "a sample less": changed(keys=lambda keys: keys.pop(), kind=lambda kind: kind.pop()),
    "an unknown kind": changed(kind=lambda kind: kind.__setitem__(4, 7)),
    # Indexes that fit the file and differ from its headers.
    "other keys": changed(keys=lambda keys: keys.reverse()),
    "other fields": changed(kinds=lambda kinds: kinds.__setitem__(0, ["png", "txt"])),
    "another size": changed(sizes=lambda sizes: sizes.__setitem__(5, 2)),
    "another place": changed(gaps=lambda gaps: gaps.__setitem__(8, 1024)),
}


@pytest.mark.parametrize("lie", LIES)
def test_an_index_that_lies_is_not_used(
    tmp_path: Path, lie: str, no_memory: object, caplog: pytest.LogCaptureFixture
) -> None:
    """All samples are read correctly by their headers, and a warning is logged."""
    shard = ShardSet.open(str(packed(tmp_path / "x"))).shards[0]
    path = Path(shard.url + ENDING)
    content = path.read_bytes()
    path.unlink()
    expected = list(read(shard, range(30)))
    tars.opened.cache_clear()
    path.write_bytes(LIES[lie](content))
    with caplog.at_level(logging.WARNING):
        found = list(read(shard, range(30)))
    assert found == expected and all(isinstance(sample, RawSample) for sample in found)
    assert "headers" in caplog.text
    caplog.clear()
    assert list(read(shard, range(30))) == expected and not caplog.text, "it is not tried again"


def test_the_headers_of_a_tar_without_index_are_read_once_on_a_machine(
    tmp_path: Path, no_memory: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MULTICSE_CACHE", str(tmp_path / "cache"))
    scans: list[str] = []

    def counted(url: str) -> Index:
        scans.append(url)
        return read_headers(url)

    monkeypatch.setattr(tars, "read_headers", counted)
    url = write_tar(tmp_path / "x.tar", numbered(5))
    for _ in range(2):  # two processes
        shard = ShardSet.open(url).shards[0]
        assert all(isinstance(sample, RawSample) for sample in read(shard, range(5)))
        no_memory()
    assert len(scans) == 1
    for place in (tmp_path / "cache" / "indexes").iterdir():  # cut by a full disk
        place.write_bytes(place.read_bytes()[:50])
    assert len(list(read(shard, range(5)))) == 5 and len(scans) == 2
    no_memory()
    with monkeypatch.context() as small:  # an index larger than may be loaded
        small.setattr(tars.limits, "MANIFEST", 100)
        assert all(isinstance(sample, RawSample) for sample in read(shard, range(5)))
    no_memory()
    monkeypatch.setattr(tars.limits, "MEMBER", 100)  # some members are too large now
    assert all(isinstance(sample, BadSample) for sample in read(shard, range(5)))
    monkeypatch.setenv("MULTICSE_CACHE", "/proc/none")
    no_memory()
    assert len(list(read(shard, range(5)))) == 5, "a cache that cannot be written"


def test_a_range_is_found_by_one_listing_or_none(memory: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    """None in a bucket with readable files that may not be listed."""
    names = [f"x-{number:03d}.tar" for number in range(300)]
    for name in names:
        memory.pipe_file(f"/bucket/set/{name}", b"")
    entries = [{"url": name, "nsamples": 7, "filesize": 0} for name in names]
    memory.pipe_file("/bucket/set/dataset.json", json.dumps({"shardlist": entries}).encode())
    asked: Counter[str] = Counter()

    def counted(act: Any, name: str, *given: Any, **more: Any) -> Any:
        asked[name] += 1
        return act(*given, **more)

    for method in ("ls", "info", "isdir", "exists", "size", "_open"):
        monkeypatch.setattr(memory, method, partial(counted, getattr(memory, method), method))
    for url in ("memory://bucket/set", "memory://bucket/set/x-{000..299}.tar"):
        asked.clear()
        assert ShardSet.open(url).samples == 2100
        assert asked.total() < 12, asked
    denied = Mock(side_effect=PermissionError("not to be listed"))
    monkeypatch.setattr(memory, "ls", denied)
    assert expand("memory://bucket/set/x-{000..004}.tar")[0] == [f"memory://bucket/set/{name}" for name in names[:5]]
    assert denied.call_count == 1


# ---------------------------------------------------------------------------------------------------------------- S3


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """An S3 store with the bucket `shards`; the bytes of every answer that it has given."""
    server = pytest.importorskip("moto.server", reason="moto[server] is not installed (pip install -e '.[test]')")
    core = pytest.importorskip("s3fs.core", reason="s3fs is not installed (pip install -e '.[s3]')")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    store = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    store.start()
    host, port = store.get_host_and_port()
    for name, value in {"ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b", "ENDPOINT_URL": f"http://{host}:{port}"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    core.S3FileSystem.clear_instance_cache()
    fsspec.filesystem("s3").mkdir("shards")
    fetched: list[int] = []
    call = core.S3FileSystem._call_s3

    async def counted(self: Any, method: str, *given: Any, **more: Any) -> Any:
        answer = await call(self, method, *given, **more)
        if method == "get_object":
            fetched.append(int(answer["ContentLength"]))
        return answer

    monkeypatch.setattr(core.S3FileSystem, "_call_s3", counted)
    yield fetched
    store.stop()
    core.S3FileSystem.clear_instance_cache()


def test_a_window_of_a_bucket_fetches_little_more_than_its_samples(
    tmp_path: Path, bucket: list[int], no_memory: Callable[[], None]
) -> None:
    """At most 1.2 times the bytes of the samples, with the index; of a set of others the headers are read once."""
    rng = np.random.default_rng(0)
    images = (UnpackedSample({"jpg": rng.bytes(20_000)}) for _ in range(400))
    pack(images, Target(tmp_path / "x", "x", shard_size=400))
    upload(tmp_path / "x", "s3://shards/x")
    local, remote = (ShardSet.open(place).shards[0] for place in (str(tmp_path / "x"), "s3://shards/x"))
    for places, requests in ((range(100, 120), 2), (range(7, 400, 20), 20), ([3], 1)):
        bucket.clear()
        found = list(read(remote, places))
        assert found == list(read(local, places))
        assert sum(bucket) <= 1.2 * 20_000 * len(found)
        assert len(bucket) == requests
    fsspec.filesystem("s3").rm(f"shards/x/x-train-000000.tar{ENDING}")
    no_memory()
    assert list(read(remote, range(20))) == list(read(local, range(20)))
    no_memory()
    bucket.clear()
    assert list(read(remote, range(100, 120))) == list(read(local, range(100, 120)))
    assert sum(bucket) <= 1.2 * 20 * 20_000 and len(bucket) == 1, "another process of this machine"
