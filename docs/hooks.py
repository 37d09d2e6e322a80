"""MkDocs hook: reference pages are filled from the code, files of the repository that pages link are shown, tests are not.

A line ``<!-- generated: NAME -->`` of a page is replaced by the Markdown that the function of this name returns.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import re
import sys
import textwrap
import tomllib
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any, get_args, get_origin
from unittest import mock

import griffe
from mkdocs.structure.files import File, InclusionLevel
from pydantic import BaseModel

ROOT = Path(__file__).resolve().parents[1]
WIDTH = "78"
"""Columns of the help texts."""


SHOWN = "files"
"""Folder of the site with a page for each file of the repository that is linked."""
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:|#)([^)\s]+)\)")


def on_files(files: Any, config: Any) -> Any:
    """Add a page for each text file of the repository that a page links and the site does not contain."""
    known = {file.src_uri for file in files}
    linked = {
        place
        for file in files
        if file.is_documentation_page() and file.inclusion.is_included()
        for _, target in LINK.findall(file.content_string)
        for place in [target_of(target, file.src_uri)]
        if place.removeprefix("docs/") not in known and (ROOT / place).is_file()
    }
    for place in sorted(linked):
        content = shown(place, (ROOT / place).read_text(encoding="utf-8"))
        files.append(File.generated(config, f"{SHOWN}/{place}.md", content=content, inclusion=InclusionLevel.NOT_IN_NAV))
    return files


def shown(place: str, text: str) -> str:
    """Return the page of a file, which the search leaves out."""
    language = {".py": "python", ".toml": "toml", ".yaml": "yaml", ".json": "json"}.get(Path(place).suffix, "text")
    return f"---\nsearch: {{exclude: true}}\n---\n# {place}\n\n``````{language}\n{text}``````\n"


def target_of(link: str, page: str) -> str:
    """Return the path of a link's target in the repository, whether it exists or not."""
    return os.path.normpath(Path("docs", page).parent / link.partition("#")[0])


def on_page_markdown(markdown: str, page: Any, files: Any, **_: Any) -> str:
    """Fill the generated parts of a page, and adapt its links and tables to the site."""
    known = {file.src_uri for file in files if file.inclusion.is_included()}
    return without_tests(inside_the_site(filled(markdown), page.file.src_uri, known))


def filled(markdown: str) -> str:
    """Return a page with its generated parts."""
    return re.sub(r"^<!-- generated: (\w+) -->$", lambda found: PARTS[found[1]](), markdown, flags=re.M)


def inside_the_site(markdown: str, page: str, known: set[str]) -> str:
    """Replace links to existing files and folders that the site does not contain.

    A link leads to the page that shows the file if it is among the pages `known`; otherwise its text is left.
    """

    def kept(found: re.Match[str]) -> str:
        place = target_of(found[2], page)
        if place.removeprefix("docs/") in known or not (ROOT / place).exists():
            return found[0]
        there = os.path.relpath(f"{SHOWN}/{place}.md", Path(page).parent)
        return f"[{found[1]}]({there})" if f"{SHOWN}/{place}.md" in known else found[1]

    return LINK.sub(kept, markdown)


def without_tests(markdown: str) -> str:
    """Return a page whose tables lack their last column if its head is ``test``: the tests are for developers."""
    lines, dropping = [], False
    for line in markdown.split("\n"):
        dropping = line.startswith("|") and (dropping or line.endswith("| test |"))
        lines.append(re.sub(r"(?<=[|])(\\[|]|[^|])*[|]\s*$", "", line) if dropping else line)
    return "\n".join(lines)


def table(header: Iterable[str], content: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table."""
    cells = [[*header], *map(list, content)]
    cells.insert(1, ["---"] * len(cells[0]))
    return "\n".join(
        "| " + " | ".join(re.sub(r"\s+", " ", cell).replace("|", r"\|") for cell in row) + " |" for row in cells
    )


# --------------------------------------------------------------------------------------------------------------- commands


def commands() -> str:
    """Return a section per command, with the help that its parser prints."""
    from multicse.commands import cli, mine, registry
    from multicse.commands.run import VERBS
    from multicse.pipelines import visualcse

    def papers() -> Iterable[str]:
        for name in registry.NAMES:
            module = registry.load(name)
            recipes = [
                (f"`{recipe}`", (make.__doc__ or "").strip().split("\n")[0]) for recipe, make in module.RECIPES.items()
            ]
            yield f"## {name}\n\n{(module.__doc__ or '').strip()}\n\n{table(('recipe', 'contents'), recipes)}\n"

    def verbs() -> Iterable[str]:
        for name, module in VERBS.items():
            main = importlib.import_module(module).main
            text = printed(name, main, ["--help"])
            yield f"## {name}\n\n{fenced(text)}"
            for sub in re.findall(r"^usage: .*\{([\w,-]+)\}", text)[: "subcommands" in text]:
                for one in sub.split(","):
                    yield f"### {name} {one}\n\n{fenced(printed(name, main, [one, '--help']))}"

    own = printed("visualcse", lambda given: mine.choose(visualcse.RECIPES, given), ["--help"])
    shown = printed("visualcse", lambda given: cli.parse(visualcse.RECIPES, visualcse.__doc__ or "", given), ["--help"])
    return "\n".join([PAPERS, fenced(shown.partition("\n\nThe options below ")[0]), MINE, fenced(own), *papers(), *verbs()])


PAPERS = """## Papers

Every paper is a command with the arguments of this one. Its settings are in the [configuration](configuration.md).
"""
MINE = """## mine

Papers that learn from sentences, images or audio accept `mine` in place of a recipe.
"""


def printed(name: str, main: Callable[[list[str]], Any], given: list[str]) -> str:
    """Return the output of a command for these arguments, with paths relative to the repository."""
    out = io.StringIO()
    with (
        mock.patch.object(sys, "argv", [f"multicse {name}"]),
        mock.patch.dict(os.environ, COLUMNS=WIDTH, NO_COLOR="1"),
        contextlib.redirect_stdout(out),
        contextlib.suppress(SystemExit),
    ):
        main(given)
    return "\n".join(map(wrapped, out.getvalue().replace(f"{ROOT}/", "").splitlines())).strip()


def wrapped(line: str) -> str:
    """Return a line of a help in lines of `WIDTH` columns. What follows the first name of a list stays in its column."""
    name = re.match(r"\s+\S+\s{2,}(?=\S)|\s*", line)
    assert name is not None
    return textwrap.fill(line.rstrip(), int(WIDTH), subsequent_indent=" " * len(name[0]), break_on_hyphens=False)


def fenced(text: str) -> str:
    """Return a block of plain text."""
    return f"```text\n{text}\n```\n"


# --------------------------------------------------------------------------------------------------------------- settings


def settings(group: str) -> str:
    """Return tables of the settings of a group: ``run``, ``encoders``, ``streams`` or ``methods``."""
    from multicse import plugins
    from multicse.commands.options import documented, shown
    from multicse.models.config import AnyEncoder
    from multicse.trainers import recipe

    def rows(prefix: str, model: type[BaseModel]) -> Iterable[tuple[str, ...]]:
        for name, field in model.model_fields.items():
            meaning = documented(model, name)
            parts = [] if get_origin(field.annotation) is dict else [*models(field.annotation)]
            parts = [part for part in parts if not getattr(part, "plugin", None)]  # has its own section
            if not parts or type(None) in get_args(field.annotation):
                usual = {"name": "Name of the method.", "kind": "Kind of the stream.", "tower": "One of the towers below."}
                meaning = meaning or usual.get(name, "See the next rows.")
                yield f"`{prefix}.{name}`", f"`{shown(field.annotation)}`", default(field), meaning
            for part in parts:
                yield from rows(f"{prefix}.{name}", part)

    def section(title: str, prefix: str, model: type[BaseModel]) -> str:
        content = dict.fromkeys(rows(prefix, model))
        return f"## {title}\n\n{table(('setting', 'type', 'default', 'meaning'), content)}\n"

    optim = ((f"optim.UPDATE: {model.__name__}", model) for model in (recipe.OptimConfig, recipe.SGDConfig))
    if group == "encoders":
        return "\n".join(section(f"encoder: {model.__name__}", "encoder", model) for model in models(AnyEncoder))
    if group == "streams":
        return "\n".join(
            section(f"streams.NAME: {name}", "streams.NAME", model) for name, model in plugins.every("stream").items()
        )
    if group == "methods":
        every = [(kind, *one) for kind in ("method", "tower") for one in plugins.every(kind).items()]
        places = {"method": "method", "tower": "method.tower"}
        return "\n".join(section(f"{places[kind]}: {name}", places[kind], model) for kind, name, model in every)
    parts = [
        section("run", "run", recipe.RunConfig),
        section("evaluation", "evaluation", recipe.EvaluationConfig),
        section("export", "export", recipe.ExportConfig),
        *(section(title, "optim.UPDATE", model) for title, model in optim),
        section("optim.UPDATE.groups.GROUP", "optim.UPDATE.groups.GROUP", recipe.GroupOverride),
    ]
    return "\n".join(parts)


def models(annotation: Any) -> Iterable[type[BaseModel]]:
    """Yield the models of a union, through `Annotated`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from models(part)


def default(field: Any) -> str:
    """Return the default of a setting as a recipe's JSON has it, with its bounds."""
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        return "see the next rows"
    bounds = ", ".join(
        f"{sign} {getattr(bound, name)}"
        for bound in field.metadata
        for name, sign in {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}.items()
        if getattr(bound, name, None) is not None
    )
    shown = "required" if field.is_required() else f"`{json.dumps(value)}`"
    return f"{shown} ({bounds})" if bounds else shown


@cache
def source(module: str) -> griffe.Module:
    """Return a module as its source has it."""
    found = griffe.load(module, search_paths=[ROOT])
    assert isinstance(found, griffe.Module)
    return found


# -------------------------------------------------------------------------------------------------- tasks and environment


def tasks() -> str:
    """Return the names of tasks, and the kinds of tasks on a user's own data."""
    from multicse import plugins
    from multicse.evaluation import registry

    names = [name for name in registry.known() if not name.endswith(registry.GEOMETRY)]
    rows = [(f"`{name}`", "yes" if registry.is_development(name) else "") for name in names]
    groups = [
        (f"`{name}`", " ".join(f"`{member}`" for member in members)) for name, members in plugins.every("group").items()
    ]
    kinds = [
        (f"`{name}:PLACE`", one.about(), " ".join(f"`{option}`" for option in one.options()))
        for name, one in registry.kinds().items()
    ]
    return "\n\n".join(
        [
            "## Named tasks\n",
            table(("task", "selects checkpoints"), rows),
            "## Groups\n",
            table(("group", "tasks"), groups),
            "## Your own data\n",
            table(("task", "data", "options"), kinds),
        ]
    )


def limits() -> str:
    """Return the limits of what is read, with their variables and defaults."""
    rows = [
        (f"`MULTICSE_MAX_{name}`", re.sub(r"_limit\(.*?, (.*)\)", r"`\1`", str(member.value)), member.docstring.value)
        for name, member in source("multicse.data.limits").members.items()
        if isinstance(member, griffe.Attribute) and member.docstring and str(member.value).startswith("_limit(")
    ]
    return table(("variable", "default", "limit"), rows)


def errors() -> str:
    """Return tables of refused settings, commands, data and tasks with parts of the messages, and of Ray's errors."""
    from multicse.trainers.engine.ray_start import BUSY, CAUSES, UNANSWERED

    listed = tomllib.loads((ROOT / "docs/reference/errors.toml").read_text())
    refused = (
        (f"`{entry['recipe']}`", " ".join(f"`{path}={value}`" for path, value in entry["set"].items()), f"`{message}`")
        for entry in listed["setting"]
        for message in [refused_setting(entry["recipe"], entry["set"]).replace("`", "'")]
    )
    commands = ((f"`multicse {entry['run']}`", _parts(entry["message"])) for entry in listed["command"])
    data, tasks = (
        [
            (f"`{entry.get(what) or next(iter(entry['files']))}`", _contents(entry["files"]), _parts(entry["message"]))
            for entry in listed[kind]
        ]
        for kind, what in (("data", "open"), ("task", "task"))
    )
    causes = ((f"`{re.sub('{(.*?)}', lambda fact: fact[1].upper(), cause.text)}`",) for cause in (*CAUSES, UNANSWERED, BUSY))
    parts = {
        "Settings": table(("recipe", "changed to", "message"), refused),
        "Commands": table(("command", "the message contains"), commands),
        "Data": table(("opened", "files", "the message contains"), data),
        "Tasks": table(("task", "files", "the message contains"), tasks),
        "Ray does not start": table(("message",), causes),
    }
    return "\n".join(f"## {name}\n\n{rows}\n" for name, rows in parts.items())


def _contents(files: dict[str, str]) -> str:
    return "<br>".join(f"`{name}`: `{text[:60]!r}`".replace("|", "\\|") for name, text in files.items())


def _parts(message: list[str]) -> str:
    return " … ".join(f"`{part}`" for part in message)


def refused_setting(name: str, changes: dict[str, Any]) -> str:
    """Return the message with which changes of a recipe are refused."""
    from multicse.commands.api import load_recipe
    from multicse.trainers.engine.checks import check_settings

    own = ROOT / "examples" / f"{name.partition('/')[0]}.py"
    recipe = load_recipe(f"{own}/{name.partition('/')[2]}" if own.is_file() else name)
    check_settings(recipe)
    try:
        changed = recipe.changed({path: None if value == "None" else value for path, value in changes.items()})
        check_settings(changed)
        changed.method.check(changed, changed.encoder.read())
    except ValueError as error:
        return str(error).replace(f"{ROOT}/", "")
    raise AssertionError(f"{name} with {changes} is not refused")


PARTS: dict[str, Callable[[], str]] = {
    "commands": commands,
    **{f"settings_{group}": partial(settings, group) for group in ("run", "encoders", "streams", "methods")},
    "tasks": tasks,
    "limits": limits,
    "errors": errors,
}
"""Functions that generate parts of docs/reference, by their names on the pages."""
