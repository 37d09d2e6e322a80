"""CLAP and CyCLAP (Zhao et al. 2023): audio-caption pairs, and SimCSE on the captions."""

from __future__ import annotations

import math
from functools import partial

if not __package__ and __name__ != "__mp_main__":  # run as a file
    import _clone  # noqa: F401

from multicse.commands.cli import main
from multicse.data.offline import OFFLINE
from multicse.data.streams.pairs import AudioTextStream
from multicse.models.audio_towers import ASTTower, HTSATTower
from multicse.pipelines import parts
from multicse.trainers.clip import CLIPConfig
from multicse.trainers.recipe import EncoderConfig, EvaluationConfig, OptimConfig, Recipe, RunConfig

MODELS: dict[str, dict[str, float]] = {
    "clap": {},
    "clap-s": {"captions": 0.1},
    "cyclap": parts.CYCLIC,
    "cyclap-s": parts.CYCLIC | {"captions": 0.1},
}
"""Loss weights of the models of the paper. The weights chosen from the grid {0.1, 0.25, 0.5} for audio are not published, so
these are the weights for images. The grid is in `tune_spaces/clip.py`."""

TEXT = EncoderConfig(path="FacebookAI/roberta-base", pooling="pooler")
"""The checkpoint has no pooler, so the pooler is initialised randomly. Its dropout is 0.1, as in the paper."""
AUDIO = HTSATTower(path="models/htsat-audioset")
"""HTSAT-tiny with the weights of its converted AudioSet checkpoint; docs/papers/clip.md has the command."""

WARMUP = 9_600
"""Steps (Table 10). Runs take 4,320 steps on Clotho and 3,240 on MusicCaps, so their warm-up never ends [errata 4.5]."""
REPAIRED_WARMUP = 0.17
"""9,600 steps as a share of a run on AudioCaps (56,070 steps), on which the warm-up ends before the run does."""

CHOSEN = "retrieval:shards/clotho-val?primary=mean_map10"
"""Validation split, for checkpoint selection and for Table 5 of the paper."""


def model(weights: str) -> Recipe:
    """Return the recipe of one of `MODELS` on the 3,839 audio clips of Clotho, with the settings of the paper."""
    return Recipe(
        name=f"clap/{weights}",
        method=CLIPConfig(tower=AUDIO, embed_dim=512, projection="mlp", **MODELS[weights]),
        encoder=TEXT,
        streams={"pairs": AudioTextStream(shards="shards/clotho-train", batch_size=80)},
        optim={"pairs": OptimConfig(lr=9e-5, schedule="cosine", warmup=WARMUP, max_grad_norm=None)},
        lead="pairs",
        evaluation=EvaluationConfig(
            select=CHOSEN,
            final=(
                *(CHOSEN, "retrieval:shards/clotho-test?primary=mean_map10"),
                *("zero-shot:shards/esc50-fold1", "zero-shot:shards/us8k"),
            ),
            eval_steps=math.ceil(3_839 / 80),
        ),
        run=RunConfig(output_dir=f"runs/clap/{weights}", epochs=90, gpus_per_worker=1),
    )


def demo() -> Recipe:
    """Train in minutes on a laptop, offline: CyCLAPs on synthesised audio, a small AST, this project's small encoder."""
    masks = {"mask_bins": 4, "mask_frames": 8}
    tower = ASTTower(input=parts.OFFLINE_SOUND, patch_size=8, stride=8, width=128, layers=3, heads=4, **masks)
    method = CLIPConfig(tower=tower, embed_dim=128, projection="mlp", **MODELS["cyclap-s"])
    pairs = AudioTextStream(shards=f"{OFFLINE}/sounds-train", batch_size=64, input=parts.OFFLINE_SOUND)
    return parts.demo_of_pairs("clap", method, pairs, "sounds")


smoke = parts.smoke_of(demo)

PRINTED = {"method.variant": "paper"}
RELEASED = {  # not the variant `released`, which truncates long captions as only CyCLIP's code does
    "streams.pairs.batch_size": 96,
    "optim.pairs.lr": 1e-4,
    "optim.pairs.warmup": 3200,
    "run.epochs": 45,
    "run.seed": 3407,
    "evaluation.eval_steps": 40,
    # The released mAP@10 does not sort the ranks of a clip's captions.
    "evaluation.select": f"{CHOSEN}&released=true",
}
ABOUT = "Tables 4, 5, 7, 11: HTSAT-tiny and RoBERTa-base on Clotho; the run ends before its warm-up does; losses"


ROWS: parts.Rows = {
    "paper": ("CyCLAPs as printed: losses are summed over the batch [errata 4.1].", PRINTED),
    "warm": ("CyCLAPs with a warm-up that ends in time [errata 4.5].", {"optim.pairs.warmup": REPAIRED_WARMUP}),
}
LAION = "LAION's script for Clotho: batch 96 at 1e-4, 45 epochs, a warm-up of 3,200 steps that never ends [errata 4.5]."
RECIPES = {
    "demo": demo,
    "smoke": smoke,
    **parts.models(model, MODELS, ABOUT),
    **parts.rows(partial(model, "cyclap-s"), ROWS),
    **parts.rows(partial(model, "clap"), {"released": (LAION, RELEASED)}),
}

if __name__ == "__main__":
    main(RECIPES, __doc__)
