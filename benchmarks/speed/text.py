"""Training on text: ours, sentence-transformers' trainer, a bare loop, and the machine's limit.

    python -m benchmarks.speed.text [--steps 2] [--rounds 3] [--threads 2]

All sides start from one folder and train on the same sentences of the offline demo with the same temperature, optimizer and
clipping. Ours is the engine in this process, its stream read, tokenised and batched as in a run; theirs is
`SentenceTransformerTrainer` with `MultipleNegativesRankingLoss` of a sentence and itself; the bare loop has padded tokens of
both views ready. The limit is what the matrix products of a step of ours, which has none on padding, take at the rate of a
large one in the same rounds.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

import torch
import tyro
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch.utils.flop_counter import FlopCounterMode
from transformers import TrainerCallback

from benchmarks.speed.engine import LR, NOT_TRAINED, TEMPERATURE, bare, batches, engine
from benchmarks.timer import Call, Target, minilm, race, random_bert, ratios, show, skip
from multicse.models.text_encoder import TextEncoder
from multicse.pipelines import mocoutrl, nonlingcse, sgbert, simcse
from multicse.pipelines.cli import prepare
from multicse.trainers.engine.cluster import keep_freed_memory
from multicse.trainers.engine.step import Window
from multicse.trainers.recipe import OptimConfig, Recipe

LENGTH = 32
OURS, BF16, THEIRS, BARE, PRODUCT = "ours", "ours, bf16", "sentence-transformers", "bare padded loop", "matrix product"
METHODS: dict[str, Callable[[], Recipe]] = {
    "SG-BERT": sgbert.demo,
    "MoCoUTRL": mocoutrl.demo,
    "NonLing-CSE": nonlingcse.demo,
}


def changed(demo: Recipe, folder: str, batch: int, steps: int, precision: str = "fp32") -> Recipe:
    """A demo with another encoder, and nothing around its few steps."""
    changes = {
        "encoder.path": folder,
        "streams.text.batch_size": batch,
        "streams.text.max_length": LENGTH,
        **NOT_TRAINED,
        "run.max_steps": steps,
        "run.precision": precision,
        "run.workers": 0,
        **{f"optim.{turn}": OptimConfig(lr=LR).model_dump() for turn in demo.optim},
    }
    recipe = demo.changed(changes)
    prepare(recipe)
    return recipe


def plain_simcse(folder: str, batch: int, steps: int, precision: str = "fp32") -> Recipe:
    """SimCSE as the other sides have it: without a head."""
    return changed(simcse.demo().replace("method.head", "none"), folder, batch, steps, precision)


def ours(recipe: Recipe) -> Call:
    """The first steps of a run, the same sentences in every call."""
    made = engine(recipe)

    def block() -> None:
        readers = made._readers()
        for step in range(made.steps):
            made.stepper(step, readers, Window(readers))
            made.method.after_step(step + 1)

    return block


class Turns(TrainerCallback):
    """Holds a trainer between its steps until it is told to go on."""

    def __init__(self) -> None:
        self.go, self.done = threading.Semaphore(0), threading.Semaphore(0)

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self.go.acquire()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.done.release()


def theirs(folder: str, texts: list[str], batch: int) -> Call:
    """Steps of a `SentenceTransformerTrainer` in a thread of its own."""
    model, turns = SentenceTransformer(folder, device="cpu"), Turns()
    model.max_seq_length = LENGTH
    arguments = SentenceTransformerTrainingArguments(
        tempfile.mkdtemp(), max_steps=10**6, per_device_train_batch_size=batch, learning_rate=LR, use_cpu=True,
        save_strategy="no", report_to=[], disable_tqdm=True, logging_strategy="no",
    )  # fmt: skip
    loss = MultipleNegativesRankingLoss(model, scale=1 / TEMPERATURE)
    data = Dataset.from_dict({"anchor": texts, "positive": texts})
    trainer = SentenceTransformerTrainer(model, arguments, data, loss=loss, callbacks=[turns])
    threading.Thread(target=trainer.train, daemon=True).start()

    def block() -> None:
        for _ in range(len(texts) // batch):
            turns.go.release()
            turns.done.acquire()

    return block


def operations(block: Call) -> float:
    """Floating-point operations of its matrix products."""
    with FlopCounterMode(display=False) as counter:
        block()
    return counter.get_total_flops()


def product(size: int = 1536, repeats: int = 4) -> tuple[Call, float]:
    """A large matrix product in fp32, and its operations."""
    a, b = torch.randn(2, size, size)

    def block() -> None:
        for _ in range(repeats):
            a @ b

    return block, 2 * size**3 * repeats


def measure(name: str, folder: str, batch: int, steps: int, rounds: int, demos: Mapping[str, Callable[[], Recipe]]) -> None:
    """Race the sides on one model, and `demos` for the share of their own limit; report the targets."""
    recipe = plain_simcse(folder, batch, steps)
    tokens = [{n: t[:, 0] for n, t in found.tensors.items()} for found in batches(engine(recipe), "text", steps)]
    decode = TextEncoder.from_pretrained(folder).tokenizer.batch_decode
    texts = [text for part in tokens for text in decode(part["input_ids"], skip_special_tokens=True)]
    twice = [{n: t.repeat_interleave(2, 0) for n, t in part.items()} for part in tokens]
    own = {OURS: ours(recipe), **{n: ours(changed(demo(), folder, batch, steps)) for n, demo in demos.items()}}
    needed = {side: operations(block) for side, block in own.items()}
    large, large_operations = product()
    sides = {**own, THEIRS: theirs(folder, texts, batch), BARE: bare(folder, twice), PRODUCT: large}
    fast = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    if fast:
        sides[BF16] = ours(plain_simcse(folder, batch, steps, "bf16"))
    took = race(sides, rounds, wall=torch.get_num_threads() > 1)
    real = torch.cat([part["attention_mask"].flatten() for part in tokens]).float().mean()
    title = f"SimCSE, {name}, {steps} steps of {batch} sentences of at most {LENGTH} tokens ({100 * real:.0f} % real)"
    show(f"{title}, {torch.get_num_threads()} threads", took, steps * batch)

    both = f"{name}, {batch} sentences: ours / sentence-transformers' trainer, sentences per second"
    faster = ratios(took[THEIRS], took[OURS])
    Target(area="text", what=f"{both}, fp32", at_least=1.3, measured=faster).report(own[OURS])
    slow = "this processor has no products of bf16, which torch then computes a hundred times slower"
    half = Target(area="text", what=f"{both}, bf16 / fp32", at_least=2.0, why=slow)
    if fast:
        half.measured = ratios(took[THEIRS], took[BF16])
    half.report(sides.get(BF16))
    shares = {side: [needed[side] / large_operations * share for share in ratios(took[PRODUCT], took[side])] for side in own}
    what = f"{name}: arithmetic of real tokens / matrix-product rate, fp32"
    Target(area="limit", what=what, at_least=0.7, measured=shares[OURS]).report(own[OURS])
    for side in demos:
        what = f"{name}: {side}'s share of its own limit / SimCSE's"
        Target(area="text", what=what, at_least=1.0, measured=ratios(shares[side], shares[OURS])).report(own[side])


def main(steps: int = 2, rounds: int = 3, threads: int = 2) -> None:
    """Print tables and targets of all-MiniLM-L6-v2 and of a BERT-base of random weights."""
    if find_spec("accelerate") is None:
        skip("sentence-transformers' trainer wants the package accelerate")
    torch.set_num_threads(threads)
    keep_freed_memory()  # as the engine does, for all sides
    measure("MiniLM-L6", str(minilm()), 64, steps, rounds, METHODS)
    with tempfile.TemporaryDirectory() as place:
        measure("BERT-base", random_bert("12x768", place), 16, 1, rounds, {})


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
