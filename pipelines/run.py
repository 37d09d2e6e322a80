"""Run a method from outside this repository: ``python pipelines/run.py my_method.py [recipe] [options]``.

The file holds the method, its settings and ``RECIPES``; docs/new-method.md writes one. In place of a file: the name that
an installed package gave its pipeline, or one of this repository's.
"""

from __future__ import annotations

import sys
from functools import partial

from pipelines.cli import main
from pipelines.registry import load, started
from trainers.recipe import RecipeError

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__)
    try:
        pipeline = load(sys.argv[1])
    except RecipeError as error:
        sys.exit(f"error: {error}")
    sys.argv[:2] = [" ".join(sys.argv[:2])]  # what --help calls this script
    main(pipeline.RECIPES, pipeline.__doc__, before=partial(started, pipeline))
