"""CLIP and CyCLIP (Zhao et al. 2023): image-caption pairs, and SimCSE on captions or NLI."""

from __future__ import annotations

import math
from functools import partial

if not __package__ and __name__ != "__mp_main__":  # run as a file
    import _clone  # noqa: F401

from multicse import plugins
from multicse.commands.cli import main
from multicse.data.offline import OFFLINE
from multicse.data.streams.base import StreamConfig
from multicse.data.streams.inputs import ImageInput
from multicse.data.streams.pairs import ImageTextStream
from multicse.data.streams.text import TextStream
from multicse.models.towers import ViTTower
from multicse.pipelines import parts
from multicse.trainers.clip import CLIPConfig
from multicse.trainers.recipe import EncoderConfig, EvaluationConfig, OptimConfig, Recipe, RunConfig

SENTENCES: dict[str, dict[str, float]] = {"": {}, "-s": {"captions": 0.1}, "-n": {"nli": 0.1}, "-e": {"nli_sentences": 0.1}}
"""Losses by the paper's letters: SimCSE on captions (s), supervised on NLI triples (n), SimCSE on NLI sentences (e)."""
MODELS: dict[str, dict[str, float]] = {
    f"{name}{letter}": base | own
    for name, base in (("clip", {}), ("cyclip", parts.CYCLIC))
    for letter, own in SENTENCES.items()
}
"""Loss weights of the models of the paper; losses with a weight above 0 need their streams."""

TEXT = EncoderConfig(path="openai/clip-vit-base-patch32", scratch=True, hidden_dropout=0.1, attention_dropout=0.1)
"""CLIP's text transformer (512 wide, 12 layers, 8 heads, vocabulary 49,408) with random weights. CyCLIP uses no dropout, but
without dropout the two views of a caption would be equal."""
TRAINED = "laion/CLIP-ViT-B-32-laion2B-s34B-b79K"
"""A ViT-B/32 with weights in safetensors; the weights of OpenAI's model are pickled."""
CC3M, BATCH = 2_806_641, 80
"""Number of training pairs, and pairs per batch."""

COCO, FLICKR = "retrieval:shards/coco", "retrieval:shards/flickr30k"


def model(weights: str) -> Recipe:
    """Return the recipe of one of `MODELS` with the settings of the paper (section 4, Tables 9 and 10).

    The batch size of NLI is not published; here it equals the batch size of the pairs.
    """
    method = CLIPConfig(tower=plugins.get("tower", "resnet")(), embed_dim=1024, **MODELS[weights])
    streams: dict[str, StreamConfig] = {"pairs": ImageTextStream(shards="shards/cc3m", batch_size=BATCH)}
    if method.nli:
        streams["nli"] = parts.nli(BATCH)
    if method.nli_sentences:
        streams["nli_sentences"] = TextStream(shards="shards/nli-sentences", batch_size=BATCH)
    (update,) = method.updates()
    seen = {FLICKR} if method.nli or method.nli_sentences else set()  # SNLI's premises are Flickr30K's captions
    return Recipe(
        name=f"cyclip/{weights}",
        method=method,
        encoder=TEXT,
        streams=streams,
        optim={update: OptimConfig(lr=5e-4, weight_decay=0.1, schedule="cosine", warmup=10_000, max_grad_norm=None)},
        lead="pairs",
        evaluation=EvaluationConfig(
            data=parts.STS.data,
            select="contrastive:shards/cc3m-val?batch=80",
            final=tuple(task for task in (COCO, FLICKR, *parts.STS.final) if task not in seen),
            eval_steps=math.ceil(CC3M / BATCH),
        ),
        run=RunConfig(output_dir=f"runs/cyclip/{weights}", epochs=64, gpus_per_worker=1, save_steps=5000),
    )


def demo() -> Recipe:
    """Train in minutes on a laptop, offline: CyCLIPs on named icons, a small ViT, this project's small encoder."""
    size = ImageInput(size=64)
    tower = ViTTower(input=size, patch_size=8, width=128, layers=4, heads=4, dropout=0.1)
    method = CLIPConfig(tower=tower, embed_dim=128, **MODELS["cyclip-s"])
    pairs = ImageTextStream(shards=f"{OFFLINE}/emoji-train", batch_size=64, input=size, augment="crop")
    return parts.demo_of_pairs("cyclip", method, pairs, "emoji")


smoke = parts.smoke_of(demo)


PRINTED = {"method.variant": "paper", "optim.*.weight_decay": 0.0}
"""Changes of a recipe; a star is replaced by the name of its update."""
RELEASED = {
    "method.variant": "released",
    "encoder.hidden_dropout": 0.0,
    "encoder.attention_dropout": 0.0,
    # The released code counts epochs, of complete batches only, from 1, so step 0 belongs to the second epoch.
    "optim.pairs.ahead": CC3M // BATCH,
}
FINE_TUNED = {
    "method.tower": ViTTower(path=TRAINED),
    "method.embed_dim": 512,
    "encoder.path": TRAINED,
    "encoder.scratch": False,
    "streams.pairs.shards": "shards/my-pairs",
    "evaluation.data": None,
    "evaluation.select": "contrastive:shards/my-pairs-val?batch=80",
    "evaluation.final": ("retrieval:shards/my-pairs-val",),
    "evaluation.eval_steps": 200,
    "run.save_steps": None,
    "optim.pairs.lr": 5e-6,
    "optim.pairs.warmup": 0.05,
    "run.epochs": 3,
}
ABOUT = "Tables 3, 6, 8, 14, 16, 17: RN50 and CLIP's text transformer on CC3M; losses"

ROWS: parts.Rows = {
    "paper": (
        "CyCLIPs as printed: losses are summed over batch and directions, Adam without decay [errata 4.1 to 4.3].",
        {"method.variant": "paper", "optim.pairs.weight_decay": 0.0},
    ),
    "cyclip-s-vit": (
        "CyCLIPs from a pretrained CLIP (ViT-B/32) on your own pairs; not in the paper, learning rate and epochs not tuned.",
        FINE_TUNED,
    ),
}
NO_WARMUP = "CyCLIP as released: no text dropout, no warm-up, long captions lose the end token [errata 4.4]."
RECIPES = {
    "demo": demo,
    "smoke": smoke,
    **parts.models(model, MODELS, ABOUT),
    **parts.rows(partial(model, "cyclip-s"), ROWS),
    **parts.rows(partial(model, "cyclip"), {"released": (NO_WARMUP, RELEASED)}),
}

if __name__ == "__main__":
    main(RECIPES, __doc__)
