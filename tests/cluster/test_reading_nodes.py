"""A node that only reads data is killed: other nodes read its windows again, and training gets the same batches."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.worlds import write_text

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import sys
import ray
import torch
from ray.cluster_utils import Cluster
from multicse.data.stream import Reader
from multicse.data.streams.text import TextStream

def tokenize(texts):
    return {"input_ids": torch.tensor([[len(text)] for text in texts])}

def reader(inline):
    config = TextStream(shards=sys.argv[1], batch_size=8, window=16, read_ahead=4)
    where = {"seed": 5, "rank": 0, "world_size": 1}
    return Reader(config, "x", config.open(), tokenize=tokenize, batches=90, inline=inline, **where).__enter__()

quick = {"health_check_period_ms": 500, "health_check_timeout_ms": 1000, "health_check_failure_threshold": 3}
head = {"num_cpus": 0, "_system_config": quick}  # without CPUs, so reading needs another node
cluster = Cluster(initialize_head=True, head_node_args=head)
node = cluster.add_node(num_cpus=2)
ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
one, other = reader(inline=False), reader(inline=True)
for step in range(90):
    if step == 30:
        cluster.remove_node(node, allow_graceful=False)
        node = cluster.add_node(num_cpus=2)
    assert next(one).keys == next(other).keys, step
one.close()
print("90 equal batches")
cluster.shutdown()
"""


@pytest.mark.cluster
@pytest.mark.xdist_group("nodes")
def test_a_node_with_reading_tasks_dies(tmp_path: Path) -> None:
    shards = write_text(tmp_path, (60, 50))
    run = subprocess.run([sys.executable, "-c", SCRIPT, shards], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert "90 equal batches" in run.stdout, run.stdout[-2000:] + run.stderr[-2000:]
