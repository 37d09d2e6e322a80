"""GCLSR (Applied Sciences 2023): grouped contrastive learning on word vectors, for languages without an encoder."""

from __future__ import annotations

if not __package__ and __name__ != "__mp_main__":  # run as a file
    import _clone  # noqa: F401

from multicse.commands.cli import main
from multicse.data.streams.text import TextStream
from multicse.pipelines import parts
from multicse.trainers.gclsr import GCLSRConfig
from multicse.trainers.recipe import EvaluationConfig, GroupOverride, Recipe, RunConfig, SGDConfig, WordEncoderConfig

VECTORS = "vectors/GoogleNews-vectors-negative300.bin.gz"
BASE_RATE = 0.03
"""Learning rate for a batch of 128 (section 4.1 and the released code; section 5.1 prints 0.3 [errata 5.6])."""

PRINTED = {"method.variant": "paper", "encoder.unknown": "redrawn"}
"""Words without a vector get random vectors, as described in section 5.4 [errata 5.7]."""
RELEASED = {
    "method.variant": "released",
    "encoder.regions": (1, 1, 1, 6, 10, 15),
    "encoder.filters": 640,
    "encoder.unknown": "redrawn",
}


def full() -> Recipe:
    """Train the last row of Table 2 (PWVA, attention, groups): 10,000 Wikipedia sentences, batch 512, lr 0.12, 20 epochs."""
    return Recipe(
        name="gclsr/pwva-att-gp",
        method=GCLSRConfig(),
        encoder=WordEncoderConfig(vectors=VECTORS),
        streams={"text": TextStream(shards="shards/wiki10k", batch_size=512, max_length=64)},
        optim={"text": sgd(512)},
        evaluation=EvaluationConfig(
            data="SentEval/data/downstream", select="stsb-dev", final=parts.STS.final, eval_steps=20
        ),
        run=RunConfig(output_dir="runs/gclsr/pwva-att-gp", epochs=20, seed=2, gpus_per_worker=1),
    )


def sgd(batch_size: int) -> SGDConfig:
    """Return the optimizer of section 5.4 for a batch size; the learning rate is proportional to it."""
    return SGDConfig(
        lr=BASE_RATE * batch_size / 128,
        momentum=0.9,
        momentum_after_warmup=0.8,
        nesterov=True,
        weight_decay=1e-3,
        schedule="cosine",
        warmup=0.25,
        max_grad_norm=None,
        groups={"predictor": GroupOverride(lr=1.0, schedule="constant", warmup=0)},
    )


def demo() -> Recipe:
    """Train in minutes on a laptop, offline: word vectors and encoder are trained on the same Wikipedia sentences."""
    return parts.demo(
        "gclsr",
        GCLSRConfig(width=512, bottleneck=128),
        {"text": parts.offline_text(128).model_copy(update={"max_length": 64})},
        {"text": sgd(128)},
        steps=300,
        every=30,
        encoder=WordEncoderConfig(vectors=None, dim=100, filters=100),
    )


def smoke() -> Recipe:
    """Train eight steps, for tests."""
    return parts.smoke(demo()).changed({"encoder.dim": 20, "encoder.epochs": 1, "optim.text.lr": BASE_RATE / 8})


ROWS: parts.Rows = {
    "headline": (
        "How the last row of Table 2 was actually produced: six sets of filters that each see one word [errata 5.8].",
        {"encoder.regions": (1, 1, 1, 1, 1, 1)},
    ),
    "paper": ("As printed: the paper's augmentations, attention also in evaluation, a plain last layer.", PRINTED),
    "released": (
        "As released, except for checkpoint selection: 640 filters each, unknown words redrawn each time.",
        RELEASED,
    ),
}
RECIPES = {"demo": demo, "smoke": smoke, "pwva-att-gp": full, **parts.rows(full, ROWS)}

if __name__ == "__main__":
    main(RECIPES, __doc__)
