"""SG-BERT (ACL 2021): a frozen copy of the encoder guides the sentence embedding; no data augmentation."""

from __future__ import annotations

from collections.abc import Callable

if not __package__ and __name__ != "__mp_main__":  # run as a file
    import _clone  # noqa: F401

from multicse.commands.cli import main
from multicse.data.streams.text import TextStream
from multicse.pipelines import parts
from multicse.trainers.recipe import EncoderConfig, EvaluationConfig, OptimConfig, Recipe
from multicse.trainers.sgbert import SGBERTConfig

RELEASED = {
    "method.variant": "released",
    "optim.text.weight_decay": 0.01,
    "evaluation.patience_counts": "decreases",
    "evaluation.keep": "last",
}
ABOUT = "SG-OPT as released: mean pooling, teacher dropout, weight decay, early stopping of the code, last weights."


def bert_base() -> Recipe:
    """Train SG-OPT, the main row of Table 1: BERT-base, 17,256 unlabelled sentences of STS-B, batch 16, lr 5e-5, fp32."""
    return Recipe(
        name="sgbert/bert-base",
        method=SGBERTConfig(),
        encoder=parts.BERT_BASE,
        streams={"text": TextStream(shards="shards/stsb-sentences", batch_size=16, max_length=128)},
        optim={"text": OptimConfig(lr=5e-5, betas=(0.9, 0.9), eps=1e-6, warmup=0.1)},
        evaluation=EvaluationConfig(
            data="SentEval/data/downstream", select="stsb-dev", final=parts.STS.final, eval_steps=50, patience=10
        ),
        run=parts.paper_run("sgbert/bert-base").model_copy(update={"precision": "fp32"}),
    )


def demo() -> Recipe:
    """Train in minutes on a laptop, offline: Wikipedia sentences, this project's small encoder."""
    return parts.demo(
        "sgbert",
        SGBERTConfig(head_width=768),
        {"text": parts.offline_text(16)},
        {"text": OptimConfig(lr=3e-4, betas=(0.9, 0.9), eps=1e-6, warmup=0.1)},
        steps=300,
        every=75,
        encoder=EncoderConfig(path=parts.SMALL_ENCODER, pooling="cls"),
    )


smoke = parts.smoke_of(demo)

RECIPES: dict[str, Callable[[], Recipe]] = {
    "demo": demo,
    "smoke": smoke,
    "bert-base": bert_base,
    **parts.rows(bert_base, {"released": (ABOUT, RELEASED)}),
}

if __name__ == "__main__":
    main(RECIPES, __doc__)
