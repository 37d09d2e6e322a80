"""Sentences per second of SimCSE training: ours, sentence-transformers' trainer, a bare loop, and the machine's limit.

    python -m benchmarks.speed.text [--shape 12x768] [--steps 4] [--rounds 5] [--threads 2]

All start from one folder and train on the sentences of the offline demo with the same temperature, optimizer and
clipping. Ours is the engine in this process, its stream read, tokenised and batched as in a run; theirs is
`SentenceTransformerTrainer` with `MultipleNegativesRankingLoss` of a sentence and itself; the bare loop has padded tokens of
both views ready. The limit: the floating-point operations that the tokens, not the padding, need, at the rate of a large
matrix product in the same rounds.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import tyro
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch import Tensor
from transformers import TrainerCallback

from benchmarks.speed.sgbert import random_bert
from benchmarks.speed.sts import minilm
from benchmarks.timer import peak_mb, ratio, show, skip
from models.text_encoder import TextEncoder
from pipelines import parts, simcse
from pipelines.cli import prepare
from trainers.engine.hosts import LocalHost
from trainers.engine.loop import Engine
from trainers.engine.malloc import keep_freed_memory
from trainers.engine.prepare import sentences
from trainers.engine.store import Fill, Store
from trainers.recipe import OptimConfig, Recipe

BATCH, LENGTH, TEMPERATURE, LR = 64, 32, 0.05, 3e-5
FP32, BF16 = "fp32", "bf16"
Block = Callable[[int], float]
"""Trains so many steps and says how many seconds they took."""


def recipe_of(folder: str, precision: str, threads: int) -> Recipe:
    """SimCSE without a head on the demo's sentences."""
    changes = {
        "encoder.path": folder,
        "method.head": "none",
        "streams.text.batch_size": BATCH,
        "optim.text": OptimConfig(lr=LR).model_dump(),
        "evaluation.select": None,
        "evaluation.watch": (),
        "evaluation.final": (),
        "run.epochs": 10**4,
        "run.precision": precision,
        "run.threads": threads,
    }
    recipe = parts.changed(simcse.demo(), changes)
    prepare(recipe)
    return recipe


class Quiet(LocalHost):
    """This process, where nothing is kept."""

    def save(self, fill: Fill | None, metrics: dict[str, float], last: bool) -> None:
        pass


class Speeds:
    """A log that keeps the samples per second of each of its windows."""

    def __init__(self) -> None:
        self.windows: list[float] = []

    def log(self, step: int, metrics: dict[str, float]) -> None:
        self.windows.append(metrics["time/samples_per_second"])

    def progress(self, values: dict[str, Any]) -> None:
        pass

    def resume(self, checkpoint: Path) -> None:
        pass

    def store(self, checkpoint: Path) -> None:
        pass


def ours(recipe: Recipe) -> Block:
    """The engine's steps, with everything that belongs to one, behind as many others."""

    def block(steps: int) -> float:
        log = Speeds()
        run = {"run.max_steps": 2 * steps, "run.log_every": steps, "evaluation.every": 10**6}
        Engine(parts.changed(recipe, run), Quiet(Store("unused")), log).run()
        return steps * BATCH / log.windows[1]

    return block


def theirs(folder: str, texts: list[str], bf16: bool) -> Block:
    """The steps of `SentenceTransformerTrainer`, without what comes before the first and after the last."""
    model = SentenceTransformer(folder, device="cpu")
    model.max_seq_length = LENGTH
    stamps: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            stamps.append(time.perf_counter())

    def block(steps: int) -> float:
        stamps.clear()
        with tempfile.TemporaryDirectory() as place:
            arguments = SentenceTransformerTrainingArguments(
                place, max_steps=steps + 1, per_device_train_batch_size=BATCH, learning_rate=LR, bf16=bf16, use_cpu=True,
                save_strategy="no", report_to=[], disable_tqdm=True, logging_strategy="no",
            )  # fmt: skip
            loss = MultipleNegativesRankingLoss(model, scale=1 / TEMPERATURE)
            data = Dataset.from_dict({"anchor": texts, "positive": texts})
            SentenceTransformerTrainer(model, arguments, data, loss=loss, callbacks=[Clock()]).train()
        return stamps[-1] - stamps[0]

    return block


def bare(folder: str, batches: list[dict[str, Tensor]]) -> Block:
    """A loop over padded tokens, both views in one forward."""
    model = TextEncoder.from_pretrained(folder).model.train()
    model.config._attn_implementation = "sdpa"
    adam = torch.optim.AdamW(model.parameters(), LR, fused=True)
    ready = [{name: t.repeat_interleave(2, 0) for name, t in batch.items()} for batch in batches]

    def block(steps: int) -> float:
        began = time.perf_counter()
        for step in range(steps):
            tokens = ready[step % len(ready)]
            states, mask = model(**tokens).last_hidden_state, tokens["attention_mask"][..., None]
            z = F.normalize((states * mask).sum(1) / mask.sum(1), dim=-1).unflatten(0, (-1, 2))
            logits = z[:, 0] @ z[:, 1].T / TEMPERATURE
            F.cross_entropy(logits, torch.arange(len(logits))).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            adam.step()
            adam.zero_grad()
        return time.perf_counter() - began

    return block


def operations(model: Any, masks: list[Tensor]) -> float:
    """Floating-point operations of a mean step's matrix products, forward and backward of both views, for tokens alone."""
    config = model.config
    per_token = 2 * sum(p.numel() for name, p in model.named_parameters() if p.ndim == 2 and "embedding" not in name)
    lengths = torch.cat([mask.sum(1) for mask in masks]).double()
    pairs = 4 * config.num_hidden_layers * config.hidden_size * lengths.square().sum()
    return 3 * 2 * float(per_token * lengths.sum() + pairs) / len(masks)


def product_rate(size: int = 1536, repeats: int = 4) -> float:
    """Floating-point operations a second of a square product in fp32."""
    a, b = torch.randn(2, size, size)
    began = time.perf_counter()
    for _ in range(repeats):
        a @ b
    return 2 * size**3 * repeats / (time.perf_counter() - began)


def blocks(folder: str, threads: int) -> tuple[dict[str, Callable[[], Block]], list[dict[str, Tensor]]]:
    """What makes each side, and the batches of tokens that the bare loop takes."""
    recipe = recipe_of(folder, FP32, threads)
    texts = list(sentences(recipe))
    tokenize = partial(TextEncoder.from_pretrained(folder).tokenize, max_length=LENGTH)
    shuffled = [texts[i] for i in torch.randperm(len(texts), generator=torch.Generator().manual_seed(0))]
    batches = [tokenize(shuffled[start : start + BATCH]) for start in range(0, 16 * BATCH, BATCH)]
    sides: dict[str, Callable[[], Block]] = {
        f"ours, {FP32}": partial(ours, recipe),
        f"sentence-transformers, {FP32}": partial(theirs, folder, shuffled, False),
        f"bare padded loop, {FP32}": partial(bare, folder, batches),
    }
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():  # without, torch computes such products a hundred times slower
        sides[f"ours, {BF16}"] = partial(ours, recipe_of(folder, BF16, threads))
        sides[f"sentence-transformers, {BF16}"] = partial(theirs, folder, shuffled, True)
    return sides, batches


def peak(folder: str, threads: int, name: str) -> float:
    """Megabytes that three steps of a side take in a process of their own, the model included."""

    return peak_mb(_ready, _three_steps, folder, threads, name)[0]


def _ready(folder: str, threads: int, name: str) -> tuple[Callable[[], Block]]:
    torch.set_num_threads(threads)
    return (blocks(folder, threads)[0][name],)


def _three_steps(make: Callable[[], Block]) -> None:
    make()(3)


def main(shape: str | None = None, steps: int = 4, rounds: int = 5, threads: int = 2, memory: bool = True) -> None:
    """Print a table of the sides and one of the targets. `shape`: LAYERSxWIDTH of a BERT of random weights, in place of
    all-MiniLM-L6-v2."""
    if find_spec("accelerate") is None:
        skip("sentence-transformers' trainer wants the package accelerate")
    torch.set_num_threads(threads)
    keep_freed_memory()  # as the engine does, for all sides
    with tempfile.TemporaryDirectory() as place:
        folder = str(minilm()) if shape is None else random_bert(shape, place)
        makers, batches = blocks(folder, threads)
        sides = {name: make() for name, make in makers.items()}
        took: dict[str, list[float]] = {name: [] for name in sides}
        rates = []
        for block in sides.values():
            block(1)
        for turn in range(rounds):
            for name in list(sides)[:: -1 if turn % 2 else 1]:
                rates.append(product_rate())
                took[name].append(sides[name](steps) / steps)
                print(f"{name}: {BATCH / took[name][-1]:.1f} sentences/s", file=sys.stderr)
        masks = [batch["attention_mask"] for batch in batches]
        model = TextEncoder.from_pretrained(folder).model
        limit = operations(model, masks) / statistics.median(rates)
        real = float(sum(mask.sum() for mask in masks) / sum(mask.numel() for mask in masks))
        title = f"SimCSE, {shape or 'MiniLM-L6'}, {BATCH} sentences of at most {LENGTH} tokens ({100 * real:.0f} % real)"
        show(f"{title}, {threads} threads, a step", took, BATCH, f"ours, {FP32}")
        print(f"\nlimit: {1e3 * limit:.0f} ms a step at {statistics.median(rates) / 1e9:.0f} GFLOP/s")
        reference = took[f"sentence-transformers, {FP32}"]
        found = {
            ("share of the matrix-product limit, fp32", 0.7): limit / statistics.median(took[f"ours, {FP32}"]),
            ("fp32 against sentence-transformers fp32", 1.3): ratio(reference, took[f"ours, {FP32}"]),
        }
        if f"ours, {BF16}" in took:
            found["bf16 against sentence-transformers fp32", 2.0] = ratio(reference, took[f"ours, {BF16}"])
        print("\n| target | wanted | found | reached |\n|---|---:|---:|---|")
        for (what, wanted), value in found.items():
            print(f"| {what} | {wanted} | {value:.2f} | {'yes' if value >= wanted else 'no'} |")
        if len(found) < 3:
            print("| bf16 | 2.0 | | not measured: this processor has no bf16 products |")
        for name in makers if memory else ():
            print(f"{name}: peak {peak(folder, threads, name):,.0f} MB")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
