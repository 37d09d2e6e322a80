"""AudioCSE (NonLing-CSE, NeurIPS 2022): SimCSE on text, alternating with a contrastive loss on unpaired audio.

The settings of its recipes are in the table in pipelines/nonlingcse.py.
"""

from __future__ import annotations

if not __package__ and __name__ != "__mp_main__":  # run as a file
    import _clone  # noqa: F401

from multicse.commands.cli import main
from multicse.pipelines import nonlingcse, parts
from multicse.trainers.recipe import Recipe

ROWS = nonlingcse.rows("audiocse", "Table 2")
bert_base = ROWS["bert-base"]


def demo() -> Recipe:
    """Train in minutes on a laptop, offline: Wikipedia sentences, synthesised audio, this project's small encoder."""
    return nonlingcse.offline("audiocse")


smoke = parts.smoke_of(demo)

RECIPES = {"demo": demo, "smoke": smoke, **ROWS}

if __name__ == "__main__":
    main(RECIPES, __doc__)
