"""Every command of docs/cluster.md and docs/sweeps.md, read by the program that would run it.

A command is checked with the program's own parser (our pipelines, Ray's and MLflow's click commands, pip) or with the schema
it is made from (AWS's service model). For programs that have neither here, what they do is done in a named test. An unknown
option, file or target fails.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "docs" / name for name in ("cluster.md", "sweeps.md")]

DONE_IN_A_TEST = {
    "docker": "tests/cluster/test_cluster_files.py::test_the_image_holds_every_package",
    "kubectl": "tests/cluster/test_cluster_files.py::test_kuberay_reads_the_same_cluster",
    "psql": "tests/cluster/test_postgres_tracking.py::test_eight_trials_at_once",
    "pg_dump": "tests/cluster/test_postgres_tracking.py::test_eight_trials_at_once",
    "pg_restore": "tests/cluster/test_postgres_tracking.py::test_eight_trials_at_once",
}
"""Programs of the system, and the test that does what they are there for. Their options are compared with their own help
where they are installed."""


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
        elif found[1] == "sweep":
            _sweep(module, rest)
        elif found[1] == "pack":
            module.parse(rest)
        else:
            _arguments(module, rest)


def _recipe_file(word: str, tmp_path: Path) -> str:
    """A recipe that an earlier command of the page would have written."""
    if not word.endswith(".json"):
        return word
    from pipelines.visualcse import demo

    (tmp_path / "recipe.json").write_text(demo().to_json())
    return str(tmp_path / "recipe.json")


def _sweep(module: Any, rest: list[str]) -> None:
    import tyro

    if "--help" in rest:
        return
    arguments, more = tyro.cli(module.Arguments, args=rest, return_unknown_args=True)
    module.make_sweep(arguments, more)


def _arguments(module: Any, rest: list[str]) -> None:
    """A script with a command line of one class, or of a verb that it names itself."""
    import tyro

    if "--help" in rest:
        return
    if hasattr(module, "Arguments"):
        tyro.cli(module.Arguments, args=rest)
    elif hasattr(module, "parse"):
        module.parse(rest)
    else:
        raise Unknown(f"{module.__name__} has no parser that can be asked")


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
    if operation == "wait":
        waiters = botocore.get_session().get_waiter_model(service)
        operations = {xform_name(name, "-"): waiters.get_waiter(name).operation for name in waiters.waiter_names}
        operation, rest = rest[0], rest[1:]
    else:
        operations = {xform_name(name, "-"): name for name in model.operation_names}
    if operation not in operations:
        raise Unknown(f"aws {service} has no {operation}")
    shape = model.operation_model(operations[operation]).input_shape
    members = {f"--{xform_name(name, '-')}": inner for name, inner in shape.members.items()}
    flags = {"--query", "--output", "--region", "--profile"}
    flags |= {flag.replace("--", "--no-", 1) for flag, inner in members.items() if inner.type_name == "boolean"}
    options = [word for word in rest if word.startswith("--")]
    if wrong := [option for option in options if option not in members and option not in flags]:
        raise Unknown(f"aws {service} {operation} has no {wrong[0]}")
    required = {f"--{xform_name(name, '-')}" for name in shape.required_members}
    if missing := required - set(options):
        raise Unknown(f"aws {service} {operation} needs {sorted(missing)[0]}")
    for word in rest:
        if word.startswith("file://") and not (ROOT / word.removeprefix("file://")).is_file():
            raise Unknown(f"there is no {word}")


def pip(words: list[str], tmp_path: Path) -> None:
    from pip._internal.commands import create_command
    from pip._internal.exceptions import PipError

    verb, *rest = words
    try:
        with SystemExitIsUnknown(shlex.join(["pip", *words])):
            _, arguments = create_command(verb).parse_args(rest)
    except (PipError, KeyError) as error:
        raise Unknown(str(error)) from error
    extras = set(re.findall(r"^(\w+) = \[", _table("project.optional-dependencies"), re.MULTILINE))
    for flag, value in pairwise(rest):
        if flag == "-e" and (found := re.fullmatch(r"\.\[([\w,]+)\]", value)) and not set(found[1].split(",")) <= extras:
            raise Unknown(f"pip install -e {value}: there are the extras {sorted(extras)}")
        if flag in ("-c", "-r") and not (ROOT / value).is_file():
            raise Unknown(f"pip: there is no {value}")
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    for name, _, version in (argument.partition("==") for argument in arguments):
        if version and pinned.get(name, version) != version:
            raise Unknown(f"{name}=={version}, and constraints.txt has {pinned[name]}")


def _table(name: str) -> str:
    text = (ROOT / "pyproject.toml").read_text()
    return text[text.index(f"[{name}]") :].split("\n[")[0]


def make(words: list[str], tmp_path: Path) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    if wrong := [word for word in words if "=" not in word and word not in targets]:
        raise Unknown(f"make {wrong[0]}: the Makefile has {targets}")


def system(name: str) -> Callable[[list[str], Path], None]:
    def check_system(words: list[str], tmp_path: Path) -> None:
        place, _, test = DONE_IN_A_TEST[name].partition("::")
        if f"def {test}" not in (ROOT / place).read_text():
            raise Unknown(f"{name}: there is no test {place}::{test} that does what it does")
        for flag, value in pairwise(words):
            if flag == "-f" and not (ROOT / value).is_file():
                raise Unknown(f"{name} -f {value}: there is no such file")
        if shutil.which(name):
            _own_help(name, words)

    return check_system


def _own_help(name: str, words: list[str]) -> None:
    """The options are in the help of the program or of one of its verbs (kubectl create secret generic)."""
    verbs = [word for word in words if not word.startswith("-")][:3]
    tries = [[name, *verbs[:count], "--help"] for count in range(len(verbs) + 1)]
    done = [subprocess.run(one, capture_output=True, text=True, timeout=60) for one in tries]
    texts = [one.stdout for one in done if one.returncode == 0]
    if not texts:
        return  # a stub without help
    for option in (word.split("=")[0] for word in words if word.startswith("--")):
        if not any(re.search(rf"{option}\b", text) for text in texts):
            raise Unknown(f"{name} {shlex.join(verbs)} has no {option}")


PROGRAMS: dict[str, Callable[[list[str], Path], None]] = {
    "python": python,
    "ray": ray,
    "mlflow": mlflow,
    "aws": aws,
    "pip": pip,
    "make": make,
    **{name: system(name) for name in DONE_IN_A_TEST},
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


@pytest.mark.parametrize(("page", "least"), [("cluster.md", 20), ("sweeps.md", 8)])
def test_there_are_commands(page: str, least: int) -> None:
    """A page whose blocks are no longer read would pass with nothing checked. One that is gone fails in `every`."""
    assert len([command for name, command in every() if name == page]) >= least


@pytest.mark.parametrize(
    "command",
    [
        "python pipelines/visualcse.py demo --run.storag s3://b",
        "python pipelines/visualcse.py demoo",
        "python pipelines/nothing.py",
        "python pipelines/sweep.py visualcse --recipe demo --trails 16",
        "python pipelines/sweep.py visualcse --recipe demo --trials 16 --optim.text.learning_rate 1",
        "python pipelines/sweep.py visualcse --recipe nothing",
        "python pipelines/pack.py upload shards/text",
        "ray up cluster.yml --yes",
        "ray up cluster.yaml --verbos",
        "ray job submit --working-dir . -- python pipelines/visualcse.py demoo",
        "ray job submit --workingdir . -- python pipelines/visualcse.py demo",
        "ray job submit -- python pipelines/visualcse.py demo",
        'ray job submit --runtime-env-json "{env_vars: 1}" --working-dir . -- python pipelines/visualcse.py',
        "ray jobs list",
        "mlflow server --backend-uri sqlite:///x.db",
        "aws cloudformation create-stack --stack-name multicse --template file://cluster-aws.yaml",
        "aws cloudformation create-stack --template-body file://cluster-aws.yaml",
        "aws cloudformation make-stack --stack-name multicse",
        "aws cloudformation wait stack-make-complete --stack-name multicse",
        'pip install -e ".[clusters]" -c constraints.txt',
        "pip install --constraints constraints.txt x",
        "make everything",
        "kubectl apply -f rayjobs.yaml",
        "terraform apply",
        "curl https://example.org",
    ],
)
def test_a_wrong_command_is_found(command: str, tmp_path: Path) -> None:
    """The check above can fail."""
    with pytest.raises(ValueError):  # RecipeError and the like are ValueErrors
        check(command, {}, tmp_path)


def test_blocks_are_read_as_a_shell_reads_them(tmp_path: Path) -> None:
    text = 'text\n```bash\na b \\\n  c  # why\n# nothing\nexport X="1\n2"\nexport Y="$X-3"\n```\n```python\nd\n```\n'
    assert list(commands(text)) == ["a b    c  # why", 'export X="1\n2"', 'export Y="$X-3"']
    assert exported(text) == {"X": "1\n2", "Y": "1\n2-3"}
