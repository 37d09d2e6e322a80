"""Test that all options have a sentence as help, and that help does not import libraries for training."""

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
from typing import Any, Literal, Union, get_args, get_origin

import pytest
import tyro

from multicse.commands import RULES, mine, options, registry
from multicse.commands.run import VERBS
from multicse.pipelines.parts import SMALL_ENCODER
from tests.worlds import call_of_tyro

SENTENCE = re.compile(r"(?!Of )[A-Z`]\S*( \S+){3,}\.", re.DOTALL)
"""Starts with a capital letter or code, has at least four words, ends with a full stop."""
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
DEFAULT = re.compile(r"( ?\((default|required|sets|unset|repeatable|optional)\b[^()]*(\([^()]*\))?[^()]*\))+$")
"""Text that tyro appends to a help."""


def helps(call: Callable[[], Any]) -> Iterator[tuple[str, str]]:
    """Yield all options of a script's parser and its subcommands, with their help."""
    (kind,), settings = call_of_tyro(call)
    settings = {name: value for name, value in settings.items() if name not in ("args", "return_unknown_args")}
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
def test_every_setting_is_explained_and_can_be_given(name: str) -> None:
    """A command line with every setting of a recipe, with its value, gives the same recipe."""
    for make in registry.load(name).RECIPES.values():
        recipe = make()
        settings = {path: (type(part), one, getattr(part, one)) for path, part, one in options.options(recipe)}
        texts = ((path, options.documented(kind, one)) for path, (kind, one, _) in settings.items())
        assert not (wrong := fragments(iter(texts))), "\n".join(wrong)
        words = {path: value if isinstance(value, tuple) else [value] for path, (*_, value) in settings.items()}
        line = [str(word) for path, values in words.items() for word in (f"--{path}", *values)]
        assert options.changed(recipe, options.split(line)[1]) == recipe
        listed = options.listed(recipe)
        annotations = {path: kind.model_fields[one].annotation for path, (kind, one, _) in settings.items()}
        fixed = {path for path, kind in annotations.items() if get_origin(kind) is Literal and len(get_args(kind)) == 1}
        assert {*re.findall(r"^  --(\S+) ", listed, re.MULTILINE)} == settings.keys() - fixed


def test_help_has_no_line_breaks_of_the_source_and_describes_a_default_once() -> None:
    """The help of --dev has two lines in the source, and its default is None."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        options = {action.dest: action for action in tyro.extras.get_parser(mine.Arguments, registry=RULES)._actions}
    text = options["dev"].help
    assert text and "Default: pairs made of the halves" in text and "\n" not in text and "(default" not in text
    assert "(default: None)" in (options["images"].help or "")


def test_help_imports_torch_only() -> None:
    slow = {"ray", "mlflow", "transformers", "sentence_transformers", "sklearn", "matplotlib", "huggingface_hub.hf_api"}
    code = (
        f"import sys; from multicse.commands import registry; list(map(registry.load, {registry.NAMES}));"
        f"sys.exit(' '.join({slow} & set(sys.modules)) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_of_a_command_is_explained(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [verb, "x"])
    wrong = fragments(helps(importlib.import_module(VERBS[verb]).main))
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("verb", VERBS)
def test_a_wrong_option_is_one_line(verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", [verb])
    assert importlib.import_module(VERBS[verb]).main(["--no-such-option"]) == 2
    said = capsys.readouterr()
    assert re.fullmatch(r"error: [^\n─]+\n", said.err) and not said.out


def test_every_option_of_mine_is_explained() -> None:
    assert not fragments(helps(partial(mine.choose, registry.load("simcse").RECIPES, [])))


WATCH = """
import sys
class Watch:
    def find_spec(self, name, *_):
        if name in LIBRARIES:
            sys.exit(99)
sys.meta_path.insert(0, Watch())
"""
"""Ends the process where it imports one of `LIBRARIES`."""


@pytest.mark.parametrize(
    "start",
    [
        "run.main('evaluate --model small-bert-en+whitening --fit a.txt --tasks lee')",
        "run.main('embed small-bert-en a.txt --out vectors')",
        "run.main('simcse mine --text a.txt --run.num_workers 0')",
        "run.main('simcse smoke --run.num_workers 0')",
        "multicse.train('simcse/smoke')",
    ],
)
def test_a_line_is_printed_before_the_seconds_of_imports(start: str, tmp_path: Path) -> None:
    """Also if an option or a model is looked at with these libraries."""
    (tmp_path / "a.txt").write_text("A cat sleeps.\n" * 20)
    (tmp_path / "small-bert-en").symlink_to(SMALL_ENCODER)
    command = re.sub(r"run\.main\((.*)\)", r"sys.argv[1:] = \1.split(); run.main()", start)
    code = f"LIBRARIES = {{'transformers'}}{WATCH}import multicse\nfrom multicse.commands import run\n{command}"
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 99 and ended.stderr.startswith("Loading torch and transformers ..."), ended.stderr


WRONG = """
simcse smoke --encoder.path /nowhere
simcse smoke --method.negatives.margin 0.1 --method.negatives.guide /nowhere
visualcse smoke --method.image.path ./nowhere
gclsr smoke --encoder.vectors /nowhere.bin
simcse smoke --evaluation.select stsb-dve
simcse smoke --streams.text.shards /nowhere
simcse mine --text /nowhere.txt
simcse mine --text a.txt --evaluation.final stsb-dve
evaluate --model small-bert-en --tasks lea
"""
ALL_REFUSED = """
from multicse.commands import run
for line in sys.stdin.read().strip().splitlines():
    print(line, file=sys.stderr)
    sys.argv[1:] = line.split()
    try:
        code = run.main()
    except SystemExit as end:
        code = end.code
    if code != 2:
        sys.exit(code or 1)
"""


def test_wrong_names_are_refused_before_the_seconds_of_imports(tmp_path: Path) -> None:
    """And before Ray starts or files are packed."""
    (tmp_path / "a.txt").write_text("A cat sleeps.\n" * 30)
    (tmp_path / "small-bert-en").symlink_to(SMALL_ENCODER)
    code = f"LIBRARIES = {{'sentence_transformers', 'ray'}}{WATCH}{ALL_REFUSED}"
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, input=WRONG, capture_output=True, text=True)
    assert ended.returncode == 0 and ended.stderr.count("error: ") == len(WRONG.split("\n")) - 2, ended.stderr
    assert not (tmp_path / "runs/simcse").exists()
