"""Model the cost of a step on 8, 64 and 512 GPUs from counted bytes and operations.

    python -m benchmarks.speed.workers

The bytes that a step passes to torch.distributed are counted in one process with a simulated second worker, and torch counts
floating-point operations. The model adds them up, without the time for reading data.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import Mock, patch

import torch
import tyro
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.speed.engine import NOT_TRAINED, batches, engine
from benchmarks.timer import random_bert
from multicse.commands import registry
from multicse.data.offline.demo import write_demo_shards
from multicse.pipelines import parts
from multicse.trainers import gather
from multicse.trainers.engine.text_fit import prepare_encoder
from multicse.trainers.recipe import Recipe

NODE, INSIDE, ACROSS, DELAY = 8, 300e9, 50e9, 20e-6
ASSUMED = f"""Predicted, with the paper's batch on every GPU and BERT-base for every transformer of texts. Assumed: the
published throughput of the most similar model, nodes of {NODE}, {INSIDE / 1e9:.0f} GB/s per GPU within a node and
{ACROSS / 1e9:.0f} GB/s across nodes, {1e6 * DELAY:.0f} µs for each of log2(GPUs) rounds of a collective. Only the
communication of gradients overlaps, with the backward pass (two thirds of the work)."""


class Published(NamedTuple):
    """Published training run with the throughput of a GPU; a step counts as three forward passes.

    Attributes:
        forward: Floating-point operations of a forward pass of one sample.
        samples: Number of training samples in `seconds`.
        seconds: GPU seconds, summed over all GPUs.
    """

    model: str
    forward: float
    samples: float
    seconds: float
    source: str

    @property
    def rate(self) -> float:
        """Return the floating-point operations per second and GPU."""
        return 3 * self.forward * self.samples / self.seconds


OPEN_CLIP = "open_clip, page on pretrained models: 12 billion samples of LAION-400M in"
MOSAIC = "MosaicBERT (arXiv 2312.17482), its baseline: 70,000 steps of 4,096 x 128 tokens in 11.5 hours on 8 GPUs"
NEMO = "NVIDIA NeMo user guide 24.07, CLIP: 935 samples/s on 8 GPUs; open_clip: model_profile.csv"
LAION = "LAION-AI/open-clap-scaling: 623.7 samples/s and GPU on 4 GPUs, 544.6 on 512"
BERT = Published("BERT-base, A100", 2 * 110e6 * 128, 70_000 * 4096, 11.5 * 3600 * 8, MOSAIC)
B32 = Published("CLIP ViT-B/32, A100", 14.78e9, 12e9, 4600 * 3600, f"{OPEN_CLIP} 4,600 GPU hours; model_profile.csv")
L14 = Published("CLIP ViT-L/14, A100", 175.33e9, 12e9, 50800 * 3600, f"{OPEN_CLIP} 50,800 GPU hours, checkpointed; the same")
G14 = Published("CLIP ViT-g/14, H100", 581.15e9, 935, 8, NEMO)
HTSAT = Published("CLAP HTSAT-tiny and RoBERTa, GH200", 111.2e9, 623.7, 1, LAION)
RUNS = (BERT, B32, L14, G14, HTSAT)
ROWS = {
    **{name: ("bert-base", BERT) for name in ("simcse", "visualcse", "audiocse", "sgbert", "mocoutrl")},
    **{"gclsr": ("pwva-att-gp", B32), "cyclip": ("cyclip-s", B32), "clap": ("cyclap-s", HTSAT)},
}
"""Recipe and published run (for the throughput) per paper; GCLSR's small convolutions use the lowest throughput."""
SAMPLES, WORLDS = 4, (8, 64, 512)


def two_workers(found: Counter[str]) -> SimpleNamespace:
    """Return torch.distributed for the first of two equal workers, which counts the bytes that losses exchange.

    The counts are ``gathered`` rows, gradients ``returned`` to the rows of all workers, and ``calls``. The sums of BatchNorm
    (two numbers per channel) are not counted.
    """

    def all_gather(rows: torch.Tensor, x: torch.Tensor) -> None:
        found.update({"gathered": x.nbytes, "calls": 1})
        rows.copy_(torch.cat([x, x]))

    def reduce_scatter(own: torch.Tensor, x: torch.Tensor) -> None:
        found.update({"returned": x.nbytes, "calls": 1})
        own.copy_(2 * x[: len(own)])

    constants = {"is_available": True, "is_initialized": True, "get_world_size": 2, "get_rank": 0}
    functions = {name: Mock(return_value=value) for name, value in constants.items()}
    return SimpleNamespace(**functions, **{gather.ALL_GATHER: all_gather, gather.REDUCE_SCATTER: reduce_scatter})


def counted(recipe: Recipe) -> Counter[str]:
    """Count the bytes that one of two workers exchanges in a step, and its floating-point operations.

    A few samples are counted and scaled to the batch size. Cosines with the rows of other workers, which grow with its
    square, are not counted: less than 1 % of the work on 512 GPUs.
    """
    sizes = {f"streams.{name}.batch_size": stream.batch_size for name, stream in recipe.streams.items()}
    times = max(sizes.values()) / SAMPLES
    made = engine(recipe.changed({name: max(2, round(size / times)) for name, size in sizes.items()}))
    method, found = made.method.train(), Counter[str]()
    with patch.object(gather, "dist", two_workers(found)), FlopCounterMode(display=False) as operations:
        for streams in made.recipe.method.updates().values():
            losses = method({name: batches(made, name, 1)[0] for name in streams}).losses
            torch.stack([*losses.values()]).sum().backward()
            found["gradients"] += sum(p.nbytes for p in method.parameters() if p.grad is not None)
            method.zero_grad()
    found["operations"] = operations.get_total_flops()
    grown = {"operations": times, "gathered": times, "returned": times / 2}  # `returned` has the rows of two workers
    return Counter({name: int(count * grown.get(name, 1)) for name, count in found.items()})


def waits(step: Counter[str], world: int, rate: float) -> dict[str, float]:
    """Return the seconds of a step on `world` GPUs by cause."""
    ring, work = (world - 1) / world / (INSIDE if world <= NODE else ACROSS), step["operations"] / rate
    return {
        "work": work,
        "gradients": max(0.0, 2 * ring * step["gradients"] - 2 / 3 * work),
        "gathered rows": ring * world * (step["gathered"] + step["returned"]),
        "delays of small collectives": (world - 1).bit_length() * DELAY * step["calls"],
    }


def papers(place: Path) -> dict[str, Recipe]:
    """Return recipes with the papers' sizes, offline data and random weights."""
    write_demo_shards(place, ("text", "image", "audio", "emoji-train", "sounds-train"))
    bert = parts.SMALL.model_copy(update={"path": random_bert("12x768", str(place / "bert"))})
    changes = {
        "streams.text.lexicon": "small",
        "method.image.path": None,
        "method.tower.path": None,
        "encoder.vectors": None,
        "encoder.epochs": 1,
    }
    run = {"evaluation.data": None, "run.precision": "fp32", "run.gpus_per_worker": 0, "run.max_steps": 2, **NOT_TRAINED}
    found = {}
    for name, (row, _) in ROWS.items():
        recipe = registry.load(name).RECIPES[row]()
        pairs = "sounds-train" if name == "clap" else "emoji-train"
        folders = {stream: pairs if stream == "pairs" else stream for stream in recipe.streams}
        shards = {f"streams.{stream}.shards": str(place / folder) for stream, folder in folders.items()}
        own: dict[str, Any] = {path: value for path, value in changes.items() if path in recipe.flat()}
        own |= {} if name == "gclsr" else {"encoder": bert}
        found[name] = recipe.changed({**shards, **own, **run, "run.output_dir": str(place / name)})
        prepare_encoder(found[name])
    return found


def main() -> None:
    """Print a row for each paper."""
    torch.set_num_threads(1)
    columns = ["method", "batch", "TFLOP", "TFLOP/s", "gradients, MB", "gathered, KB", "calls"]
    columns += [f"{world} GPUs: samples/s, efficiency" for world in WORLDS] + ["what breaks first"]
    print(f"{ASSUMED}\n\n| model, GPU | TFLOP/s | source |\n|---|---:|---|")
    for run in RUNS:
        print(f"| {run.model} | {run.rate / 1e12:.0f} | {run.source} |")
    print(f"\n| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    with tempfile.TemporaryDirectory() as place:
        for name, recipe in papers(Path(place)).items():
            step, batch, rate = counted(recipe), recipe.streams[recipe.lead].batch_size, ROWS[name][1].rate
            took = {world: sum(waits(step, world, rate).values()) for world in (1, *WORLDS)}
            broken = [world for world in WORLDS if took[1] / took[world] < 0.9]
            cells = [name, f"{batch}", f"{step['operations'] / 1e12:.2f}", f"{rate / 1e12:.0f}"]
            cells += [f"{step['gradients'] / 1e6:,.0f}", f"{step['gathered'] / 1e3:,.0f}", f"{step['calls']}"]
            cells += [f"{batch * world / took[world]:,.0f}, {took[1] / took[world]:.0%}" for world in WORLDS]
            slow = waits(step, broken[0], rate) if broken else {}
            cells += [max(slow.keys() - {"work"}, key=lambda what: slow[what]) if broken else "nothing"]
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
