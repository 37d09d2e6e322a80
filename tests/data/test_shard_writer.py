"""Writing and uploading of shards: equal bytes, correct counts, complete or absent, constant memory."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import fsspec
import pytest
import webdataset
from botocore.exceptions import NoCredentialsError

from multicse.data import limits, remote
from multicse.data.errors import DataError
from multicse.data.shard_writer import SMALL, Target, UnpackedSample, pack, upload, upload_small_shards
from tests.conftest import ROOT
from tests.data.packing import samples


def drafts(count: int = 20) -> list[UnpackedSample]:
    return [UnpackedSample({"txt": f"text {i}".encode()}) for i in range(count)]


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_equal_input_and_seed_give_equal_bytes(tmp_path: Path) -> None:
    for out, seed in (("a", 0), ("b", 0), ("c", 1)):
        pack(drafts(), Target(tmp_path / out, "x", seed=seed, shard_size=7))
        time.sleep(0.01)
    assert files(tmp_path / "a") == files(tmp_path / "b")
    tars = [[content for name, content in files(tmp_path / out).items() if name.endswith("tar")] for out in "ac"]
    assert tars[0] != tars[1]
    assert {s.fields["txt"] for s in samples(tmp_path / "a")} == {s.fields["txt"] for s in samples(tmp_path / "c")}
    digest = hashlib.sha256(b"".join(content for name, content in files(tmp_path / "a").items() if name.endswith("tar")))
    assert digest.hexdigest() == "bed5e598c530834774156ca49dc56e88da9cfd6eb743b09bbf4135abe115ce21"


def test_the_index_says_what_is_there(tmp_path: Path) -> None:
    """webdataset reads the same samples from the same bytes."""
    pack(drafts(), Target(tmp_path / "out", "x", "dev", shard_size=9))
    index = json.loads((tmp_path / "out" / "dataset.json").read_text())
    assert (index["__kind__"], index["wids_version"], index["nsamples"]) == ("wids-shard-index-v1", 1, 20)
    keys = []
    for entry in index["shardlist"]:
        path = tmp_path / "out" / entry["url"]
        assert (entry["filesize"], entry["sha256"]) == (path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())
        theirs = [sample["__key__"] for sample in webdataset.WebDataset(str(path), shardshuffle=False)]
        assert entry["nsamples"] == len(theirs)
        keys += theirs
    assert keys == [s.key for s in samples(tmp_path / "out")]


def test_memory_stays_flat(tmp_path: Path) -> None:
    """The peak memory for 6,000 texts of 20 kB (120 MB) is less than 40 MB above the peak for 60."""
    code = (
        "import resource, sys; from pathlib import Path; from multicse.data.shard_writer import *; n = int(sys.argv[1]);"
        "pack((UnpackedSample({'txt': b'x' * 20000}) for _ in range(n)), Target(Path(sys.argv[2]), 'x', shard_size=500));"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)"
    )
    peaks = []
    for count in (60, 6_000):
        call = [sys.executable, "-c", code, str(count), str(tmp_path / str(count))]
        peaks.append(int(subprocess.run(call, capture_output=True, text=True, cwd=ROOT, check=True).stdout))
    assert peaks[1] - peaks[0] < 40


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("aab", "'a'.*occurs twice"),
        ("ab", "'b'.*MULTICSE_MAX_MEMBER"),
        ("ccd", "'c'.*another key"),
        ("exfe", "'e'.*next to"),
    ],
)
def test_what_cannot_be_read_is_not_packed(keys: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fields(key: str, number: int) -> dict[str, bytes]:
        """Each sample of c and e has a different field."""
        return {f"x{number}" if key in "ce" else "txt": b"x" * (500 if keys == "ab" and key == "b" else 5)}

    monkeypatch.setattr(limits, "MEMBER", 100)
    samples = [UnpackedSample(fields(key, n), key=key) for n, key in enumerate(keys)]
    with pytest.raises(DataError, match=f"sample {said}"):
        pack(samples, Target(tmp_path / "x", "x", shuffle=False))


def test_nothing_is_overwritten_silently(tmp_path: Path) -> None:
    out = tmp_path / "out"
    pack(drafts(), Target(out, "x", shard_size=5))
    before = files(out)
    with pytest.raises(DataError, match="--overwrite"):
        pack(drafts(), Target(out, "x"))
    assert files(out) == before
    pack(drafts(), Target(out, "x", "dev", overwrite=True))
    assert sorted(files(out)) == [
        "dataset.json",
        "x-dev-000000.tar",
        "x-dev-000000.tar.index.gz",
    ]  # the old shards are removed
    (out / "precious.tar").write_bytes(b"")
    with pytest.raises(DataError, match="precious"):
        pack(drafts(), Target(out, "x", overwrite=True))


def test_a_killed_run_leaves_nothing_and_is_cleaned_up(tmp_path: Path) -> None:
    """Killed in the middle of writing shards: no file under a final name. A second run at the same time is refused."""
    out = tmp_path / "out"
    code = (
        "import sys, time; from pathlib import Path; from multicse.data import shard_writer as w\n"
        "def slow(path, samples):\n"
        "    path.write_bytes(b'half a shard'); print('writing', flush=True); time.sleep(600)\n"
        "w._write_shard = slow\n"
        "w.pack((w.UnpackedSample({'txt': b'x'}) for _ in range(100)), w.Target(Path(sys.argv[1]), 'x'))"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(out)], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert process.stdout is not None and process.stdout.readline() == "writing\n"
        with pytest.raises(DataError, match="another process"):
            pack(drafts(), Target(out, "x"))
        process.send_signal(signal.SIGKILL)
        process.wait()
    finally:
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert [name for name in os.listdir(out) if not name.startswith(".")] == []
    pack(drafts(), Target(out, "x"))
    assert sorted(os.listdir(out)) == ["dataset.json", "x-train-000000.tar", "x-train-000000.tar.index.gz"]


def packed(folder: Path) -> Path:
    pack(drafts(25), Target(folder, folder.name, shard_size=10))
    return folder


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
    assert samples(first) == samples(one) and samples(second) == samples(other)

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
