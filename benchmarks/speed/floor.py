"""Compare the time to the first step with a minimal run of the small encoder, in one process and with Ray Train.

    python -m benchmarks.speed.floor [--rounds 3]

The minimal run imports torch, transformers and MLflow, loads the encoder and executes one step on synthetic sentences. It
has no settings, data, evaluation or log, and uses Ray's defaults. Ours is the first step of SimCSE's demo with an empty
MLflow database. The sides alternate, each in a new process.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENCODER = ROOT / "models" / "small-bert-en"
OURS = ("pipelines/simcse.py", "demo", "--run.max_steps", "3", "--run.logging_steps", "1")
WANTED = {"through_ray": ("through Ray", 1.3), "step": ("in process", 1.5)}
"""Function of the minimal run, its name in the table, and the maximum ratio of ours to the minimal run."""


def step(mark: str) -> None:
    """Load the encoder, execute one step of SimCSE on 64 sentences, and write the time to the file `mark`."""
    import mlflow  # noqa: F401  # its import is part of the floor
    import torch
    from torch.nn.functional import cosine_similarity, cross_entropy
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(ENCODER), AutoModel.from_pretrained(ENCODER).train()
    optimizer = torch.optim.AdamW(model.parameters())
    texts = [f"Sentence {number} of a batch, about as long as those of an encyclopedia are." for number in range(64)]
    tokens = tokenizer(texts, padding=True, return_tensors="pt")
    first, second = (model(**tokens).last_hidden_state.mean(1) for _ in range(2))
    cross_entropy(cosine_similarity(first[:, None], second, dim=-1) / 0.05, torch.arange(64)).backward()
    optimizer.step()
    Path(mark).write_text(str(time.time()))


def through_ray(mark: str) -> None:
    """Execute `step` in a worker of Ray Train."""
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    ray.init(address="local", log_to_driver=False)
    run = RunConfig(storage_path=str(Path(mark).parent))
    TorchTrainer(lambda: step(mark), scaling_config=ScalingConfig(num_workers=1), run_config=run).fit()


def smallest(name: str) -> float:
    """Return the seconds from the command to the first step of `step` or `through_ray`."""
    with tempfile.TemporaryDirectory() as place:
        mark = Path(place) / "mark"
        code = f"from benchmarks.speed.floor import {name}; {name}({str(mark)!r})"
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        start = time.time()
        subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, env=env, capture_output=True)
        return float(mark.read_text()) - start


def first_step(*command: str) -> float:
    """Return the seconds from a command to the first step in its log, with an empty MLflow database."""
    with tempfile.TemporaryDirectory() as place:
        settings = ("--run.output_dir", f"{place}/run", "--run.tracking_uri", f"sqlite:///{place}/mlflow.db")
        start = time.time()
        subprocess.run([sys.executable, *command, *settings], check=True, cwd=ROOT, capture_output=True)
        lines = map(json.loads, Path(place, "run", "journal.jsonl").read_text().splitlines())
        return next(x["time"] for x in lines if "time/samples_per_second" in x.get("metrics", {})) / 1000 - start


def main(rounds: int = 3) -> None:
    """Print a row per way to run."""
    from benchmarks.timer import ratios, report

    os.environ["HF_HUB_OFFLINE"] = "1"
    here = ("--run.num_workers", "0")
    first_step(*OURS, *here)  # creates the offline shards, and loads the libraries into the page cache
    took: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in WANTED}
    for _ in range(rounds):
        for name, (ours, least) in took.items():
            ours.append(first_step(*OURS, *(here if name == "step" else ())))
            least.append(smallest(name))
    for name, (where, most) in WANTED.items():
        ours, least = took[name]
        report("start", f"first step {where}: ours / minimal run", ratios(ours, least), at_most=most)
        seconds = [statistics.median(side) for side in (ours, least)]
        print(f"First step {where}: ours {seconds[0]:.1f} s, minimal run {seconds[1]:.1f} s.")


if __name__ == "__main__":
    import tyro

    tyro.cli(main, description=__doc__)
