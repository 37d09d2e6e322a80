"""Train sentence embeddings with a published method, or with your own: ``multicse COMMAND [ARGUMENTS]``.

In a clone, ``python pipelines/run.py COMMAND`` or ``python pipelines/COMMAND.py`` does the same. COMMAND can also be your
own Python file with RECIPES (docs/how-to/custom-method.md) or a pipeline of an installed package.
"""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path

from multicse.data.errors import EXIT_CODES, did_you_mean, handle_interrupt, report_error

FOLDERS = {folder.name: folder for folder in sorted(Path(__file__).parents[1].glob("*/"))}
VERBS = {
    file.stem: f"multicse.{package}.{file.stem}"
    for package, folder in FOLDERS.items()
    for file in sorted(folder.glob("*.py"))
    if "\n@cli_errors\ndef main(" in file.read_text(encoding="utf-8")
}
"""Commands that are not pipelines, with their modules, in this folder and in packages with plugins."""


def summary(module: str) -> str:
    """Return the first line of a module's docstring up to its example, without importing the module."""
    package, name = module.split(".")[-2:]
    text = ast.get_docstring(ast.parse((FOLDERS[package] / f"{name}.py").read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0].partition(": ``")[0].rstrip(".") + "."


def overview() -> str:
    """Return the help of `multicse`: one line per command."""
    from multicse.commands.registry import NAMES

    pipelines = {name: f"multicse.pipelines.{name}" for name in NAMES}
    lines = [__doc__ or ""]
    for title, commands in {"Training": pipelines, "Other commands": VERBS}.items():
        lines += [title, *(f"  {name:<16}{summary(module)}" for name, module in commands.items()), ""]
    return "\n".join([*lines, "multicse COMMAND --help lists recipes and options.", "", EXIT_CODES])


@handle_interrupt()
def main() -> int:
    """Run the command after which the script is named, else the one that the first argument names; return its exit code."""
    script = Path(sys.argv[0])
    name = script.stem
    if name not in VERBS:
        if sys.argv[1:2] == ["run"]:  # multicse run FILE, as python pipelines/run.py FILE
            del sys.argv[1]
        if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
            print(overview())
            return 0 if sys.argv[1:] else 2
        name = sys.argv[1]
        sys.argv[:2] = [f"{script if script.suffix else script.name} {name}"]  # shown in --help
    if name in VERBS:
        status: int = importlib.import_module(VERBS[name]).main()
        return status
    from multicse.commands import cli, registry
    from multicse.trainers.recipe import RecipeError

    try:
        pipeline = registry.load(name)
    except RecipeError as error:
        return report_error(RecipeError(f"{error}{did_you_mean(name, VERBS)}"))
    cli.main(pipeline.RECIPES, pipeline.__doc__)
    return 0
