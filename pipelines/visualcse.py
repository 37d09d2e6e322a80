"""VisualCSE (NonLing-CSE, NeurIPS 2022): SimCSE on text and, in every step, a contrastive step on unpaired images.

The numbers of its rows are in the table of pipelines/nonlingcse.py.
"""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:  # run as a file: this clone comes first, not an installed copy
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from multicse.pipelines import nonlingcse, parts
from multicse.pipelines.cli import main
from multicse.trainers.recipe import Recipe

ROWS = nonlingcse.rows("visualcse", "Table 1")
bert_base = ROWS["bert-base"]


def demo() -> Recipe:
    """Minutes on a laptop, offline: sentences of Wikipedia, scanned digits, the small encoder of this project."""
    return nonlingcse.offline("visualcse").replace("run.output_dir", "runs/demo")


smoke = parts.smoke_of(demo)

RECIPES = {"demo": demo, "smoke": smoke, **ROWS}

if __name__ == "__main__":
    main(RECIPES, __doc__)
