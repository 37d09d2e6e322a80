"""Every command of docs/cluster.md and docs/sweeps.md, read by the program that would run it.

A command is checked with the program's own parser (our pipelines, Ray's and MLflow's click commands, pip) or with the schema
it is made from (AWS's service model). An unknown option, file or target fails.
"""

from __future__ import annotations

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

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "docs" / name for name in ("cluster.md", "sweeps.md")]

SYSTEM = ("docker", "kubectl", "psql", "pg_dump", "pg_restore")
"""Programs whose parser cannot be asked here; the files that they are given have to be there."""


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
    found = re.fullmatch(r"(?:pipelines|benchmarks)/(\w+)\.py", script)
    if not found or not (ROOT / script).is_file():
        raise Unknown(f"python {script}: no script of this project")
    module = importlib.import_module(script.removesuffix(".py").replace("/", "."))
    pairs = zip(["", *rest], rest, strict=False)
    rest = [_recipe_file(word, tmp_path) if before == "--recipe" else word for before, word in pairs]
    with SystemExitIsUnknown(shlex.join(words)):
        if hasattr(module, "RECIPES"):
            from pipelines.cli import parse

            parse(module.RECIPES, "", rest)
        else:
            _arguments(module, rest)


def _recipe_file(word: str, tmp_path: Path) -> str:
    """A recipe that an earlier command of the page would have written."""
    if not word.endswith(".json"):
        return word
    from pipelines.visualcse import demo

    (tmp_path / "recipe.json").write_text(demo().to_json())
    return str(tmp_path / "recipe.json")


def _arguments(module: Any, rest: list[str]) -> None:
    """A script with a command line of one class, or of a verb that it names itself."""
    import tyro

    if "--help" in rest:
        return
    if hasattr(module, "make_sweep"):
        arguments, more = tyro.cli(module.Arguments, args=rest, return_unknown_args=True)
        module.make_sweep(arguments, more)
    elif hasattr(module, "Arguments"):
        tyro.cli(module.Arguments, args=rest)
    else:
        module.parse(rest)


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

    context, program = None, name
    try:
        while True:
            context = command.make_context(name, list(words), parent=context)
            if not isinstance(command, click.Group):
                return context
            left = [*getattr(context, "_protected_args", ()), *context.args]
            found, command, words = command.resolve_command(context, left)
            name = str(found)
    except click.exceptions.Exit as error:
        raise Unknown(f"{program} shows help only") from error
    except click.ClickException as error:
        raise Unknown(f"{program}: {error.format_message()}") from error


def aws(words: list[str], tmp_path: Path) -> None:
    """Against the service models that the aws command is made from."""
    botocore = pytest.importorskip("botocore.session", reason="boto3 is not installed (pip install -e '.[s3]')")
    from botocore import xform_name

    service, operation, *rest = words
    model = botocore.get_session().get_service_model(service)
    operations = {xform_name(name, "-"): name for name in model.operation_names}
    if operation == "wait":
        waiters = botocore.get_session().get_waiter_model(service)
        operations = {xform_name(name, "-"): waiters.get_waiter(name).operation for name in waiters.waiter_names}
        operation, *rest = rest
    if operation not in operations:
        raise Unknown(f"aws {service} has no {operation}")
    shape = model.operation_model(operations[operation]).input_shape
    members = {f"--{xform_name(name, '-')}" for name in shape.members}
    options = {re.sub("^--no-", "--", word) for word in rest if word.startswith("--")}
    if wrong := options - members - {"--query", "--output", "--region", "--profile"}:
        raise Unknown(f"aws {service} {operation} has no {wrong}")
    if missing := {f"--{xform_name(name, '-')}" for name in shape.required_members} - options:
        raise Unknown(f"aws {service} {operation} needs {missing}")
    for word in rest:
        if word.startswith("file://") and not (ROOT / word.removeprefix("file://")).is_file():
            raise Unknown(f"there is no {word}")


def pip(words: list[str], tmp_path: Path) -> None:
    from pip._internal.commands import create_command
    from pip._internal.exceptions import PipError

    verb, *rest = words
    try:
        with SystemExitIsUnknown(shlex.join(["pip", *words])):
            create_command(verb).parse_args(rest)
    except (PipError, KeyError) as error:
        raise Unknown(str(error)) from error
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for flag, value in pairwise(rest):
        named = re.fullmatch(r"\.\[([\w,]+)\]", value) if flag == "-e" else None
        if named and not set(named[1].split(",")) <= set(extras):
            raise Unknown(f"pip install -e {value}: there are the extras {sorted(extras)}")
        if flag in ("-c", "-r") and not (ROOT / value).is_file():
            raise Unknown(f"pip: there is no {value}")


def make(words: list[str], tmp_path: Path) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    if wrong := [word for word in words if "=" not in word and word not in targets]:
        raise Unknown(f"make {wrong[0]}: the Makefile has {targets}")


def system(words: list[str], tmp_path: Path) -> None:
    for flag, value in pairwise(words):
        if flag == "-f" and not (ROOT / value).is_file():
            raise Unknown(f"there is no {value}")


PROGRAMS: dict[str, Callable[[list[str], Path], None]] = {
    "python": python,
    "ray": ray,
    "mlflow": mlflow,
    "aws": aws,
    "pip": pip,
    "make": make,
    **dict.fromkeys(SYSTEM, system),
}


class SystemExitIsUnknown:
    """A parser that ends the program has not understood it."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, SystemExit) and error.code not in (0, None):
            raise Unknown(f"not understood: {self.command}") from error


# ---------------------------------------------------------------------------------------------------------------- tests


def every() -> list[tuple[str, str]]:
    return [(page.name, command) for page in PAGES for command in commands(page.read_text())]


@pytest.mark.parametrize(("page", "command"), every())
def test_the_command_is_understood(page: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    check(command, exported((ROOT / "docs" / page).read_text()), tmp_path)


@pytest.mark.parametrize(
    "command",
    [
        "python pipelines/visualcse.py demo --run.storag s3://b",
        "python pipelines/sweep.py visualcse --recipe demo --trails 16",
        "python pipelines/pack.py upload shards/text",
        "ray up cluster.yml --yes",
        "ray job submit --working-dir . -- python pipelines/visualcse.py demoo",
        "mlflow server --backend-uri sqlite:///x.db",
        "aws cloudformation create-stack --template-body file://cluster-aws.yaml",
        'pip install -e ".[clusters]" -c constraints.txt',
        "make everything",
        "kubectl apply -f rayjobs.yaml",
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
