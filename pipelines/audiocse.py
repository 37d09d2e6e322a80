"""AudioCSE (NonLing-CSE, NeurIPS 2022): SimCSE on text and, in every step, a contrastive step on unpaired sounds.

The numbers of its rows are in the table of pipelines/nonlingcse.py.
"""

from __future__ import annotations

from pipelines import nonlingcse, parts
from pipelines.cli import main
from trainers.recipe import Recipe

ROWS = nonlingcse.rows("audiocse", "Table 2")
bert_base = ROWS["bert-base"]


def demo() -> Recipe:
    """Minutes on a laptop, offline: sentences of Wikipedia, synthesised sounds, the small encoder of this project."""
    return nonlingcse.offline("audiocse")


def smoke() -> Recipe:
    """Eight steps: what tests run."""
    return parts.smoke(demo())


RELEASED = {
    "method.variant": "released",
    "streams.audio.mixup_probability": 0.5,
    "streams.audio.mask_bins": 48,
    "streams.audio.mask_frames": 192,
}
RECIPES = {
    "demo": demo,
    "smoke": smoke,
    **ROWS,
    "simclr-bert-base": parts.row(
        bert_base, "simclr-bert-base", {"method.audio.loss": "simclr"}, "Table G.1: SimCLR in place of SupCon."
    ),
    "released-bert-base": parts.row(
        bert_base,
        "released-bert-base",
        RELEASED,
        "The released code's audio: mix-up, SpecAugment, patches of 24 without positions [DISAGREE 2.2, 2.9].",
    ),
}

if __name__ == "__main__":
    main(RECIPES, __doc__)
