"""Every command of README.md and docs/, read by the program that would run it.

A command is checked with the program's own parser: our pipelines, Ray's and MLflow's click commands. Of all other programs
the files that they are given have to be there. An unknown option, recipe, file or target fails.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import shlex
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tyro

from multicse import plugins
from multicse.commands import cli, mine, registry
from multicse.commands.run import VERBS
from multicse.evaluation import registry as tasks
from multicse.pipelines import visualcse
from tests.test_docs import ROOT_PAGES
from tests.worlds import call_of_tyro, example

ROOT = Path(__file__).resolve().parents[1]
HISTORY = ("decisions.md", "log.md")
"""Pages whose commands are those of their date."""
PAGES = [
    page
    for page in (*ROOT_PAGES, ROOT / "models/small-bert-en/README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if page.name not in HISTORY
]
SYSTEM = ("aws", "docker", "kubectl", "psql", "pg_dump", "pg_restore", "apt-get", "sed")
"""Programs whose parser cannot be asked here; the files that they are given have to be there."""
PLACEHOLDERS = {"my_method.py": "examples/new_method.py", "esimcse": "examples/new_method.py"}
"""What stands for a file or a package of the reader's, and what is taken for it."""
UNCHECKED = {
    " …": "leaves the rest of a command to the reader",
    " ...": "the same",
    "python reproduction/reproduce.py mocoutrl TABLE": "any table",
    "python reproduction/prepare.py NAME": "any data set",
}
"""Commands, or what such a command has in it, that no parser is asked about, and why. Of benchmarks (``python -m
benchmarks.X``) it is checked that they are there, since each parses its options where it runs."""


class Unknown(ValueError):
    """A command that nobody would understand."""


def commands(text: str) -> Iterator[str]:
    """The commands of the fenced bash blocks: continued lines joined, quoted lines too, comments dropped."""
    for block in re.findall(r"^ *```bash\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL):
        pending = ""
        for line in block.replace("\\\n", " ").splitlines():
            pending = f"{pending}\n{line}" if pending else line
            try:
                words = shlex.split(pending, comments=True)
            except ValueError:  # a quotation goes on in the next line
                continue
            if words:
                yield pending.strip()
            pending = ""
        assert not pending, f"a quotation is not closed: {pending}"


def mentioned(text: str) -> Iterator[str]:
    """The commands in running text and tables: those with arguments, of programs that are checked here with a parser."""
    prose = re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)
    yield from re.findall(r"`((?:\.venv/bin/)?(?:python|make|mlflow|pip|multicse) [^`]+)`", prose)


def exported(text: str) -> dict[str, str]:
    """The variables that a page sets, in the shell's own words: the last value of each, with earlier ones filled in."""
    lines = [command for command in commands(text) if command.startswith("export ")]
    names = [line.split("=", 1)[0].removeprefix("export ") for line in lines]
    script = "\n".join([*lines, *(f'printf "%s\\0" "${name}"' for name in names)])
    done = subprocess.run(["bash", "-eu", "-c", script], env=PLAIN, capture_output=True, text=True, check=True)
    return dict(zip(names, done.stdout.split("\0"), strict=False))


PLAIN = {"PATH": os.environ["PATH"], "HOME": "/nowhere", "AWS_ACCESS_KEY_ID": "KEY", "AWS_SECRET_ACCESS_KEY": "SECRET"}


def check(command: str, variables: dict[str, str], tmp_path: Path) -> None:
    """Raise Unknown, or what the program's parser raises, for a command that would not be understood."""
    words = shlex.split(command, comments=True)
    if any(part in " ".join(words) for part in UNCHECKED):
        return
    for separator in ("&&", "|", ";"):
        if separator in words:
            place = words.index(separator)
            check(shlex.join(words[:place]), variables, tmp_path)
            check(shlex.join(words[place + 1 :]), variables, tmp_path)
            return
    words = [re.sub(r"\$\{?(\w+)\}?", lambda found: variables.get(found[1], found[0]), word) for word in words]
    while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):  # VARIABLE=value program ...
        words.pop(0)
    if words and words[-1] == "&":
        words.pop()
    if not words:
        return
    program, *rest = words
    program = program.removeprefix(".venv/bin/")
    if program == "export":
        return  # `exported` has run it
    if program not in PROGRAMS:
        raise Unknown(f"{program!r} is no program that is checked here: {command}")
    PROGRAMS[program](rest, tmp_path)


# ------------------------------------------------------------------------------------------------------------- programs


def python(words: list[str], tmp_path: Path) -> None:
    script, *rest = words
    if script == "-c":
        compile(rest[0], script, "exec")
    elif script == "-m" and rest[0].startswith("benchmarks."):
        if not (ROOT / rest[0].replace(".", "/")).with_suffix(".py").is_file():
            raise Unknown(f"python -m {rest[0]}: no module of this project")
    elif script == "-m" and rest[0] == "pytest":
        places = [word for flag, word in pairwise(rest) if flag != "-m" and not word.startswith("-")]
        if wrong := [word for word in places if not (ROOT / word).exists()]:
            raise Unknown(f"there is no {wrong[0]}")
    else:
        found = re.fullmatch(r"(pipelines|reproduction|examples)/(\w+)\.py", script)
        if not found or not (ROOT / script).is_file():
            raise Unknown(f"python {script}: no script of this project")
        if found[1] == "examples":
            with ends_if_unknown(shlex.join(words)):
                example(found[2]).parser().parse_args(rest)
        elif rest:
            multicse([found[2], *rest], tmp_path)


def multicse(words: list[str], tmp_path: Path) -> None:
    """A paper or verb of ours, as far as its command line goes, with the names of recipes, tasks, tables and data sets."""
    if words == ["--help"]:
        return
    name, *rest = [word for word in words if word != "--help"]
    if name == "run":
        return multicse(rest, tmp_path)
    if name not in VERBS:
        return recipe(name, _with_recipe_files(rest, tmp_path))
    with ends_if_unknown(shlex.join(words)):
        verb = importlib.import_module(VERBS[name])
        given = parsed(verb, rest)
    given, more = given if isinstance(given, tuple) else (given, [])
    if name == "sweep":
        recipe(given.pipeline, [given.recipe, *more])
    elif name == "describe" and (named := re.fullmatch(r"(\w+):([\w-]+)", given.what)):
        recipe(named[1], [named[2], *more])
    elif name == "reproduce" and given.table and given.table not in ("all", *verb.tables_of(given.paper)):
        raise Unknown(f"{given.paper} has no table {given.table}")
    elif name == "prepare" and given.name is not None and given.name not in (*verb.SOURCES, "small"):
        raise Unknown(f"there is no data set {given.name}")
    elif name == "evaluate":
        known = {*tasks.known(), *plugins.every("group"), *(f"{kind}:" for kind in tasks.kinds())}
        if unknown := [task for task in given.tasks if re.sub(r":.*", ":", task) not in known]:
            raise Unknown(f"there is no task {unknown[0]}")


def recipe(pipeline: str, words: list[str]) -> None:
    """Parse a recipe's command line."""
    file = ROOT / PLACEHOLDERS.get(pipeline, pipeline)
    module = registry.load(str(file) if file.suffix else pipeline)
    with ends_if_unknown(shlex.join([pipeline, *words])):
        if words[:1] == ["mine"]:  # the files are the reader's
            words = ["demo", *parsed(mine, words[1:], module.RECIPES)[1]]
        cli.parse(module.RECIPES, "", words)


def parsed(verb: Any, words: list[str], recipes: Any = None) -> Any:
    """Return the parsed arguments of a script's `main`, or of `mine` with these recipes."""
    arguments, settings = call_of_tyro(lambda: verb.main(words) if recipes is None else verb.choose(recipes, words))
    return tyro.cli(*arguments, **settings)


def _with_recipe_files(words: list[str], tmp_path: Path) -> list[str]:
    """A recipe that an earlier command of the page would have written is there."""
    if "--recipe" in words and (place := words.index("--recipe") + 1) and words[place].endswith(".json"):
        (tmp_path / "recipe.json").write_text(visualcse.demo().to_json())
        return [*words[:place], str(tmp_path / "recipe.json"), *words[place + 1 :]]
    return words


def ray(words: list[str], tmp_path: Path) -> None:
    from ray.scripts.scripts import cli

    context = _click(cli, "ray", words)
    given = context.params
    if context.info_name in ("up", "down", "exec", "attach", "dashboard"):
        config = given.get("cluster_config_file")
        if not config or not (ROOT / config).is_file():
            raise Unknown(f"ray {context.info_name}: there is no {config}")
        if given.get("cmd"):
            check(given["cmd"], {}, tmp_path)
    if given.get("entrypoint"):
        from ray.runtime_env import RuntimeEnv

        RuntimeEnv(**json.loads(given["runtime_env_json"] or "{}"))
        if given.get("working_dir") != ".":
            raise Unknown("a job without --working-dir . has no code")
        check(shlex.join(given["entrypoint"]), {}, tmp_path)


def mlflow(words: list[str], tmp_path: Path) -> None:
    from mlflow.cli import cli

    _click(cli, "mlflow", words)


def _click(command: Any, name: str, words: list[str]) -> Any:
    """The innermost command's context: click's own parsing, without running anything."""
    import click

    context = None
    try:
        while True:
            context = command.make_context(name, list(words), parent=context)
            if not isinstance(command, click.Group):
                return context
            left = [*getattr(context, "_protected_args", ()), *context.args]
            found, command, words = command.resolve_command(context, left)
            name = str(found)
    except (click.exceptions.Exit, click.ClickException) as error:
        raise Unknown(f"{name}: {error}") from error


def pip(words: list[str], tmp_path: Path) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for flag, value in pairwise(words):
        named = re.fullmatch(r"(?:\.|multicse)\[([\w,]+)\]", value)
        if named and not set(named[1].split(",")) <= set(extras):
            raise Unknown(f"pip install {value}: there are the extras {sorted(extras)}")
        if flag in ("-c", "-r") and not (ROOT / value).is_file():
            raise Unknown(f"pip: there is no {value}")


def make(words: list[str], tmp_path: Path) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    if wrong := [word for word in words if "=" not in word and word not in targets]:
        raise Unknown(f"make {wrong[0]}: the Makefile has {targets}")


def system(words: list[str], tmp_path: Path) -> None:
    named = [value.removeprefix("file://") for flag, value in pairwise(words) if flag == "-f" or "file://" in value]
    if wrong := [name for name in named if not (ROOT / name).is_file()]:
        raise Unknown(f"there is no {wrong[0]}")


PROGRAMS: dict[str, Callable[[list[str], Path], None]] = {
    "python": python,
    "multicse": multicse,
    "ray": ray,
    "mlflow": mlflow,
    "pip": pip,
    "make": make,
    **dict.fromkeys(SYSTEM, system),
}


@contextlib.contextmanager
def ends_if_unknown(command: str) -> Iterator[None]:
    """A parser that ends the program has not understood it."""
    try:
        yield
    except SystemExit as error:
        if error.code:
            raise Unknown(f"not understood: {command}") from error


# ---------------------------------------------------------------------------------------------------------------- tests


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_are_understood(page: Path, tmp_path: Path) -> None:
    text, wrong = page.read_text(), []
    for command in dict.fromkeys([*commands(text), *mentioned(text)]):
        try:
            check(command, exported(text), tmp_path)
        except ValueError as error:  # RecipeError and the like are ValueErrors
            wrong.append(f"{command}\n    {error}")
    assert not wrong, "\n".join(wrong)


def test_the_settings_that_are_named_exist() -> None:
    """``--run.storage`` in a table, ``method.loss=opt3`` in a sentence: of some recipe."""
    own = [file for file in (ROOT / "examples").glob("*.py") if "\nRECIPES = " in file.read_text()]
    pipelines = [registry.load(name) for name in (*registry.NAMES, *map(str, own))]
    known = {path for pipeline in pipelines for make in pipeline.RECIPES.values() for path in make().flat()}
    known |= {"method.safetensors", "run.json"}  # files
    wrong = []
    for page in PAGES:
        for name in re.findall(
            r"`(?:--)?((?:run|streams|method|encoder|evaluation|optim)\.[a-z0-9_.]+[a-z0-9_])", page.read_text()
        ):
            if name not in known and not any(path.startswith(f"{name}.") for path in known):
                wrong.append(f"{page.name}: {name}")
    assert not wrong


@pytest.mark.parametrize(
    "command",
    [
        "python pipelines/visualcse.py demo --run.storag s3://b",
        "python pipelines/sweep.py visualcse --recipe demo --trails 16",
        "multicse describe visualcse:deemo",
        "python pipelines/evaluate.py --model DIR --tasks sts17",
        "python reproduction/reproduce.py sgbert T99",
        "python examples/mine_negatives.py MODEL nli.csv",
        "python -m benchmarks.speeds",
        "ray up cluster.yml --yes",
        "ray job submit --working-dir . -- python pipelines/visualcse.py demoo",
        "mlflow server --backend-uri sqlite:///x.db",
        "aws cloudformation create-stack --template-body file://cluster-aws.yml",
        'pip install -e ".[clusters]" -c constraints.txt',
        "make everything",
        "terraform apply",
    ],
)
def test_a_wrong_command_is_found(command: str, tmp_path: Path) -> None:
    """The check above can fail."""
    with pytest.raises(ValueError):  # RecipeError and the like are ValueErrors
        check(command, {}, tmp_path)


def test_blocks_are_read_as_a_shell_reads_them() -> None:
    text = 'text\n```bash\na b \\\n  c  # why\n# nothing\nexport X="1\n2"\nexport Y="$X-3"\n```\n```python\nd\n```\n'
    assert list(commands(text)) == ["a b    c  # why", 'export X="1\n2"', 'export Y="$X-3"']
    assert exported(text) == {"X": "1\n2", "Y": "1\n2-3"}
