"""Every paper and verb by its name, and a method of your own: ``python pipelines/run.py my_method.py [recipe] [options]``.

The file contains the method, its settings and ``RECIPES``; see docs/how-to/custom-method.md. Instead of a file: a name that
an installed package gave its pipeline, or one of this project's. The installed command `multicse` is this script.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

if not __package__:  # run as a file: this clone comes first, not an installed copy
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from multicse import plugin_rooms
from multicse.data.errors import did_you_mean, handle_interrupt

VERBS = {
    file.stem: f"multicse.{room.name}.{file.stem}"
    for room in (Path(__file__).parent, *plugin_rooms())
    for file in sorted(room.glob("*.py"))
    if "\n    sys.exit(main())\n" in file.read_text()
}
"""The scripts of this folder, and of rooms with plugins, that are no papers, and their modules."""


@handle_interrupt()
def main() -> int:
    """The command line; the exit code is that of the verb, and for a pipeline 0. What is neither ends the program."""
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        from multicse.pipelines.registry import NAMES

        print(f"{__doc__}\nPapers: {' '.join(NAMES)}\nVerbs: {' '.join(VERBS)}\n--help after a name tells more.")
        return 0 if sys.argv[1:] else 2
    program, name = Path(sys.argv[0]), sys.argv[1]
    sys.argv[:2] = [f"{program if program.suffix else program.name} {name}"]  # what --help calls this
    if name in VERBS:
        status: int = importlib.import_module(VERBS[name]).main()
        return status
    from multicse.pipelines import cli, registry
    from multicse.trainers.recipe import RecipeError

    try:
        pipeline = registry.load(name)
    except RecipeError as error:
        sys.exit(f"error: {error}{did_you_mean(name, VERBS)}")
    cli.main(pipeline.RECIPES, pipeline.__doc__)
    return 0


if __name__ == "__main__":
    sys.exit(main())
