"""Pretrain a small BERT and its tokenizer on your own text, for languages without a pretrained encoder."""

from __future__ import annotations

if not __package__ and __name__ != "__mp_main__":  # run as a file
    import _clone  # noqa: F401

from multicse.commands.cli import main
from multicse.models.fresh_bert import FreshEncoder
from multicse.pipelines import parts
from multicse.trainers.pretrain import MaskedLMConfig
from multicse.trainers.recipe import EncoderConfig, EvaluationConfig, OptimConfig, Recipe, RunConfig


def small() -> Recipe:
    """Pretrain a new BERT with 2 layers, 192 dimensions and 8,000 word pieces; set --streams.text.shards.

    This project's encoder was trained with the same learning rate and sequence length; higher learning rates lose lexical
    information (docs/dev/log.md).
    """
    return Recipe(
        name="pretrain/small",
        method=MaskedLMConfig(fresh=FreshEncoder(layers=2)),
        encoder=EncoderConfig(path="runs/pretrain/starts", pooling="mean"),
        streams={"text": parts.offline_text(64).model_copy(update={"max_length": 64})},
        optim={"text": OptimConfig(lr=1e-4, weight_decay=0.01, warmup=0.1)},
        evaluation=EvaluationConfig(select=None, watch=("lee-dev",), final=("lee",), eval_steps=500),
        run=RunConfig(output_dir="runs/pretrain/small", epochs=1, seed=1),
    )


def further() -> Recipe:
    """Continue the pretraining of an existing encoder on your text; set --encoder.path and --streams.text.shards."""
    changes = {"name": "pretrain/further", "method.fresh": None, "run.output_dir": "runs/pretrain/further"}
    return small().changed({**changes, "encoder.path": parts.SMALL_ENCODER})


def smoke() -> Recipe:
    """Train eight steps of a tiny BERT, for tests."""
    tiny = FreshEncoder(vocab_size=500, width=32, layers=1, heads=2, intermediate=64, positions=64, lowercase=True)
    return parts.smoke(small().changed({"method.fresh": tiny, "optim.text.lr": 3e-4}))


RECIPES = {"small": small, "further": further, "smoke": smoke}


if __name__ == "__main__":
    main(RECIPES, __doc__)
