"""Two nodes with separate disks: a recipe with files that one of them lacks is refused before anything starts.

The second node is a raylet in its own mount namespace, where an empty file system is mounted over a folder.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.servers import RAY, RayHead, free_port
from tests.conftest import ROOT
from tests.data.packing import run as pack
from tests.data.packing import write_text
from tests.worlds import write_encoder

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900), pytest.mark.xdist_group("nodes")]

NODES = ("127.0.0.2", "127.0.0.3")
HIDE = 'mount -t tmpfs none "$0" && mkdir "$0/encoder" && touch "$0/encoder/config.json" && exec "$@"'
SCRIPT = """
import json, sys
import ray
from multicse.data import shard_writer
from multicse.pipelines import simcse
from multicse.trainers.engine.checks import check_places
from multicse.trainers.engine.cluster import capacity
from multicse.trainers.engine.launch import resolve
from multicse.trainers.engine.workers import with_uploaded_shards

shard_writer.SMALL = 10  # bytes
ray.init(logging_level="ERROR", log_to_driver=False)
for changes in json.loads(sys.argv[1]):
    try:
        check_places(with_uploaded_shards(resolve(simcse.smoke().changed(changes))), capacity()[2])
        print("found everywhere")
    except ValueError as error:
        print(str(error).replace(chr(10), " "))
"""


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """Return a folder that only the head and the first node can read."""
    folder = tmp_path / "disk"
    folder.mkdir()
    allowed = subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "none", folder], capture_output=True, text=True)
    if allowed.returncode:
        pytest.skip(f"mount namespaces are not allowed here: {allowed.stderr.strip()}")
    return folder


@pytest.fixture
def head(disk: Path) -> Iterator[RayHead]:
    """Start a head without CPUs and the two nodes; the second has an incomplete encoder."""
    with RayHead(["--num-cpus=0"]) as one:
        for address in NODES:
            start = [RAY, "start", f"--address={one.address}", f"--node-ip-address={address}", "--num-cpus=2"]
            start += ["--min-worker-port=0", "--max-worker-port=0", f"--dashboard-agent-listen-port={free_port()}"]
            hidden = ["unshare", "-m", "sh", "-c", HIDE, str(disk)] if address == NODES[1] else []
            subprocess.run([*hidden, *start, "--disable-usage-stats"], env=one.env, check=True)
        yield one


def test_files_that_a_node_lacks_are_named(head: RayHead, disk: Path, tmp_path: Path) -> None:
    """For every kind of setting the error has the node's address; files that both nodes have are accepted."""
    pack("text", write_text(tmp_path / "wiki.txt"), "--format", "tar", "--out", disk / "packed", "--shard-size", 9)
    (disk / "lines.jsonl").write_text("".join(json.dumps({"text": f"Line {i}"}) + "\n" for i in range(64)))
    (disk / "pairs.tsv").write_text("one\ttwo\t3.0\nthree\tfour\t1.0\n")
    (disk / "data").mkdir()
    (disk / "data" / "STSB.dev.raw.tsv").write_text("3.0\tone\ttwo\n")
    encoder, shared = write_encoder(disk / "encoder"), write_encoder(tmp_path / "encoder")
    storage, shards = f"file://{tmp_path / 'storage'}", "streams.text.shards"
    cases: list[tuple[str, str, object]] = [
        ("encoder.path", encoder, encoder),
        (shards, f"{disk / 'packed'} (7 files", str(disk / "packed")),
        (shards, f"{disk / 'packed'}/packed-train-000000.tar (2 files", str(disk / "packed/*-{000000..000001}.tar")),
        (shards, str(disk / "lines.jsonl"), f"{disk / 'lines.jsonl'}#txt=text"),
        ("evaluation.data", str(disk / "data"), str(disk / "data")),
        ("evaluation.watch", str(disk / "pairs.tsv"), [f"pairs:{disk / 'pairs.tsv'}"]),
    ]
    pack("text", tmp_path / "wiki.txt", "--format", "tar", "--out", tmp_path / "packed")
    base = {"encoder.path": shared, "run.storage": storage, shards: str(tmp_path / "packed")}
    changes = [base, *({**base, setting: value} for setting, _, value in cases)]
    env = {**head.env, "RAY_ADDRESS": head.address}
    command = [sys.executable, "-c", SCRIPT, json.dumps(changes)]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    found, *refused = done.stdout.splitlines()
    assert found == "found everywhere" and len(refused) == len(cases), done.stdout + done.stderr[-3000:]
    for (setting, what, _), error in zip(cases, refused, strict=True):
        there = "1 files, 0.0 MB there" if setting == "encoder.path" else "not found there"
        assert error.startswith(f"{setting}: {what}") and f"not on node {NODES[1]} ({there})" in error, error
