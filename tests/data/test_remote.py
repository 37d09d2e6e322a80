"""Stores with errors: streams continue after temporary errors; other errors name the store, not its samples."""

from __future__ import annotations

import json
import re
import traceback
import zlib
from collections import Counter
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from multicse.data import remote
from multicse.data.errors import DataError
from multicse.data.remote import StoreError
from multicse.data.shard_urls import checksum
from multicse.data.shards import ShardSet, read
from multicse.data.streams.audio import AudioStream
from multicse.data.streams.text import TextStream
from tests.data.packing import reader
from tests.worlds import WORDS, write_sounds, write_text


class Erring(SimpleHTTPRequestHandler):
    """Serve the files of a folder. Every request for a part of a file is refused some times before it succeeds."""

    status, times = 503, 1
    seen: Counter[tuple[str, str, str | None]]

    def log_message(self, *_: object) -> None:
        """Not on the terminal."""

    def send_head(self) -> Any:
        asked = (self.command, self.path.rstrip("/"), wanted := self.headers.get("Range"))
        self.seen[asked] += 1
        if self.seen[asked] <= self.times:
            return self.send_error(self.status)
        file = Path(self.translate_path(self.path))
        if wanted is None or not file.is_file():
            return super().send_head()
        content, (first, last) = file.read_bytes(), map(int, wanted.removeprefix("bytes=").split("-"))
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{min(last, len(content) - 1)}/{len(content)}")
        self.send_header("Content-Length", str(len(part := content[first : last + 1])))
        self.end_headers()
        self.wfile.write(part)
        return None


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return the URL of the files in `tmp_path`."""
    monkeypatch.setattr(remote, "PAUSE", 0.01)
    monkeypatch.setattr(Erring, "seen", Counter(), raising=False)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Erring, directory=str(tmp_path))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def hashes(texts: list[str]) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.tensor([[zlib.crc32(text.encode())] for text in texts])}


def stream(shards: str, count: int = 10) -> list[int]:
    config = TextStream(shards=shards, columns=("sentence",) if ".parquet" in shards else ("txt",), batch_size=8, window=16)
    found = reader(config, hashes, count)
    return [number for _ in range(count) for number in next(found)["input_ids"].flatten().tolist()]


def test_a_stream_goes_on_over_a_store_that_errs(served: str, tmp_path: Path) -> None:
    write_text(tmp_path / "text")
    names = ["text-train-000000.tar", "text-train-000001.tar"]
    shards = [{"url": name, "nsamples": count} for name, count in zip(names, (50, 30), strict=True)]
    (tmp_path / "text" / "dataset.json").write_text(json.dumps({"name": "wiki", "shardlist": shards}))
    pq.write_table(pa.table({"sentence": [f"{WORDS[i % 15]} {i}" for i in range(80)]}), tmp_path / "x.parquet")
    for place in ("text/text-train-{000000..000001}.tar", "x.parquet", "x.parquet?X-Amz-Signature=abc"):
        assert stream(f"{served}/{place}") == stream(f"{tmp_path}/{place.partition('?')[0]}")
    Erring.seen.clear()
    assert ShardSet.open(f"{served}/text").name == "wiki", "a manifest that comes late is not none"
    assert max(Erring.seen.values()) > Erring.times


def test_a_file_is_the_same_wherever_it_is_redirected_to(
    served: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redirect to an address with a new signature for every call, like hubs."""
    found, signatures = Erring.send_head, count()

    def redirected(self: Erring) -> Any:
        if "?sig=" in self.path:
            return found(self)
        self.send_response(302)
        self.send_header("Location", f"{self.path}?sig={next(signatures)}")
        self.end_headers()
        return None

    monkeypatch.setattr(Erring, "times", 0)
    monkeypatch.setattr(Erring, "send_head", redirected)
    (tmp_path / "x.csv").write_text("text\nOne\n")
    first = checksum(f"{served}/x.csv")
    assert checksum(f"{served}/x.csv") == first and next(signatures) == 2
    (tmp_path / "x.csv").write_text("text\nOne\nTwo\n")
    assert checksum(f"{served}/x.csv") != first


def test_what_stays_names_the_file_and_the_fix(served: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(url: str, fix: str) -> None:
        with pytest.raises(StoreError, match=rf"{re.escape(url.rpartition('/')[0])}.* cannot be read: .*{fix}"):
            ShardSet.open(url)

    write_text(tmp_path)
    url = f"{served}/text-train-000000.tar"
    shard = ShardSet.open(url).shards[0]
    Erring.seen.clear()
    monkeypatch.setattr(Erring, "times", 9)
    check(url, "check its address and the network")
    with pytest.raises(StoreError, match=url):
        list(read(shard, [0]))
    monkeypatch.setattr(Erring, "status", 403)
    Erring.seen.clear()
    check(url, "give this machine its credentials")
    assert max(Erring.seen.values()) == 1, "that does not pass"
    for gone in ("http://127.0.0.1:9/x.tar", "ftp://127.0.0.1:9/x.tar"):
        check(gone, "check its address and the network")


def test_secrets_of_a_url_are_in_no_traceback(served: str) -> None:
    """Ray and Tune write it down."""
    url = f"{served.replace('//', '//me:hidden@')}/x.tar?X-Amz-Signature=hidden"
    with pytest.raises(DataError, match="127") as absent:
        ShardSet.open(url)
    assert "hid" not in "".join(traceback.format_exception(absent.value))


@pytest.mark.parametrize("name", ["x.tar", "x-{00..09}.tar", "x-*.tar", ""])
def test_s3_without_credentials(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    s3fs = pytest.importorskip("s3fs", reason="s3fs is not installed (pip install -e '.[s3]')")
    for setting in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(setting, raising=False)
    for setting in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "BOTO_CONFIG"):
        monkeypatch.setenv(setting, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(DataError, match=r"s3://bucket.* cannot be read: .*credentials; .*AWS_ACCESS_KEY_ID"):
        ShardSet.open(f"s3://bucket/{name}")


def test_a_store_that_does_not_answer_is_no_bad_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partner that cannot be read now is not skipped, as a damaged one is."""

    def away(*_: object) -> None:
        raise StoreError("503")

    skip: dict[str, Any] = {"on_bad_sample": "skip", "max_skipped_share": 0.9}
    config = AudioStream(shards=write_sounds(tmp_path), batch_size=4, frames=32, mixup_probability=1, **skip)
    monkeypatch.setattr(ShardSet, "sample", away)
    with pytest.raises(StoreError, match="503"):
        next(reader(config, None))
