"""Every option of every pipeline and verb is explained by a sentence, without a wait for what only training takes."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin
from unittest import mock

import pytest
import tyro

from multicse.pipelines import cli, mine, registry
from multicse.pipelines.run import VERBS

SENTENCE = re.compile(r"(?!Of )[A-Z`]\S*( \S+){3,}\.", re.DOTALL)
"""Begins with a capital letter or code, has four words or more, ends with a full stop."""
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
DEFAULT = re.compile(r"( ?\((default|required|sets|unset|repeatable|optional)\b[^()]*(\([^()]*\))?[^()]*\))+$")
"""What tyro puts behind a help."""


class Asked(BaseException):
    """What a script hands to its parser: a type, or several as subcommands, and settings."""


def helps(call: Callable[[], Any]) -> Iterator[tuple[str, str]]:
    """Option and help of everything that a script's parser knows, its subcommands included."""

    def ask(kind: Any, args: Any = None, return_unknown_args: bool = False, **settings: Any) -> None:
        raise Asked(kind, settings)

    with mock.patch("tyro.cli", ask), pytest.raises(Asked) as asked:
        call()
    kind, settings = asked.value.args
    for one in get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            parser = tyro.extras.get_parser(one, **settings)
        for action in parser._actions:
            if "-h" not in action.option_strings:
                name = [*action.option_strings, str(action.metavar)][0]
                yield name, DEFAULT.sub("", " ".join(COLOUR.sub("", action.help or "").split()))


def fragments(found: Iterator[tuple[str, str]]) -> list[str]:
    return [f"{option}: {text!r}" for option, text in found if not SENTENCE.fullmatch(text)]


@pytest.mark.parametrize("name", registry.NAMES)
def test_every_setting_is_explained(name: str) -> None:
    recipes = registry.load(name).RECIPES
    kinds = {tuple(make().flat()): row for row, make in recipes.items()}  # those that have other settings
    wrong = [text for row in kinds.values() for text in fragments(helps(partial(cli.parse, recipes, "", [row])))]
    assert not wrong, "\n".join(dict.fromkeys(wrong))


def test_help_waits_for_torch_alone() -> None:
    slow = {"ray", "mlflow", "transformers", "sentence_transformers", "sklearn", "matplotlib", "huggingface_hub.hf_api"}
    code = (
        f"import sys; from multicse.pipelines import registry; list(map(registry.load, {registry.NAMES}));"
        f"sys.exit(' '.join({slow} & set(sys.modules)) or None)"
    )
    told = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert told.returncode == 0, told.stderr


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "run"])
def test_every_option_of_a_verb_is_explained(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [verb, "x"])
    wrong = fragments(helps(importlib.import_module(VERBS[verb]).main))
    assert not wrong, "\n".join(wrong)


def test_every_option_of_a_first_run_is_explained() -> None:
    assert not fragments(helps(partial(mine.choose, registry.load("simcse").RECIPES, [])))
