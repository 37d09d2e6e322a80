"""Recipes: changing values, complete JSON, and equal identities for equal experiments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from multicse.commands.registry import NAMES, load
from multicse.data.settings import marked
from multicse.pipelines import cyclip, visualcse
from multicse.trainers.engine.checks import find_callback
from multicse.trainers.engine.launch import resolve


def test_identity_does_not_depend_on_where_a_run_executes() -> None:
    recipe = visualcse.bert_base()
    same = (
        recipe.replace("run.output_dir", "/elsewhere")
        .replace("run.tracking_uri", "http://x")
        .replace("streams.text.cpus", 1)
    )
    assert same.identity() == recipe.identity()
    moved = recipe.replace("streams.text.shards", "/data/shards/wiki1m").replace("evaluation.data", "/x/data/downstream")
    assert moved.identity() == recipe.identity()
    assert recipe.replace("streams.text.shards", "shards/wiki").identity() != recipe.identity()
    assert recipe.replace("run.seed", 1).identity() != recipe.identity()
    assert recipe.replace("encoder.prompt", "a ").identity() != recipe.identity()
    assert recipe.replace("method.image.weight", 0.1).identity() != recipe.identity()


def test_steps_count_the_primary_stream() -> None:
    recipe = visualcse.bert_base()
    assert recipe.steps(1_000_001) == 15_626  # the released training log
    assert recipe.replace("run.epochs", 3).steps(1_000_001) == 46_878
    assert recipe.replace("run.gradient_accumulation_steps", 2).steps(1_000_001) == 7_813
    for steps in (10, 20_000):  # fewer and more than the epochs have
        assert recipe.replace("run.max_steps", steps).steps(1_000_001) == steps


def test_steps_of_a_share_of_epochs_are_not_rounded_up() -> None:
    """100 * 1.1 is above 110 as a float."""
    recipe = visualcse.bert_base()
    changed = recipe.changed({"run.epochs": 1.1, "run.max_steps": None})
    assert changed.steps(100 * changed.streams[changed.lead].batch_size) == 110
    assert changed.replace("run.epochs", 1e-9).steps(1000) == 1


def test_changes_that_require_each_other_may_be_in_any_order() -> None:
    recipe = visualcse.bert_base()
    changes = {"export.dimensions": 5, "export.whiten": True}
    whitened = recipe.changed(changes)
    assert whitened.export.whiten and whitened.export.dimensions == 5
    assert whitened.changed({"export.whiten": False, "export.dimensions": None}) == recipe


def test_a_corrected_file_of_a_callback_is_executed_again(tmp_path: Path) -> None:
    """In a notebook the process remains."""
    file = tmp_path / "cb.py"
    file.write_text("import absent_module")
    with pytest.raises(ValueError, match="absent_module"):
        find_callback(f"{file}:note")
    for number in (1, 2):
        file.write_text(f"def note(*_): return {number}")
        found: Any = find_callback(f"{file}:note")
        assert found() == number and find_callback(f"{file}:note") is found


def test_identity_depends_on_options_of_a_task_but_not_on_its_parent_folders() -> None:
    def identity(task: str, tower: str = "a/tower") -> str:
        recipe = cyclip.RECIPES["cyclip-s-vit"]().replace("evaluation.final", (task,))
        return recipe.replace("method.tower.path", tower).identity()

    here = identity("zero-shot:/here/shards/imagenet?classes=/here/prompts/imagenet.json")
    assert here == identity("zero-shot:/there/shards/imagenet?classes=/there/prompts/imagenet.json", "/there/a/tower")
    assert here != identity("zero-shot:/here/shards/imagenet-v2?classes=/here/prompts/imagenet.json")
    assert here != identity("zero-shot:/here/shards/imagenet?classes=/here/prompts/other.json")
    assert here != identity("zero-shot:/here/shards/imagenet?classes=/here/prompts/imagenet.json", "a/other")


@pytest.mark.parametrize(
    ("name", "path", "given", "resolved"),
    [
        ("cyclip/cyclip-s-vit", "method.tower.path", "own/here", "FOLDER/own/here"),
        ("mocoutrl/smoke", "streams.text.lexicon", "own/here", "FOLDER/own/here"),
        ("mocoutrl/smoke", "streams.text.lexicon", "small", "small"),  # a word of the setting
        ("simcse/smoke", "evaluation.select", "pairs:own/here/dev.tsv", "pairs:FOLDER/own/here/dev.tsv"),
    ],
)
def test_places_are_absolute_for_workers_in_other_folders(
    name: str, path: str, given: str, resolved: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The working directory is not part of the identity."""
    found = []
    for folder in (tmp_path / "one", tmp_path / "two"):
        for part in ("own/here", "small"):
            (folder / part).mkdir(parents=True)
        (folder / "own/here/dev.tsv").touch()
        monkeypatch.chdir(folder)
        found.append(resolve(RECIPES[name]().changed({path: given, "run.tracking_uri": "sqlite:///x.db"})))
        assert found[-1].flat()[path] == resolved.replace("FOLDER", str(folder))
    assert found[0].identity() == found[1].identity()


RECIPES = {f"{name}/{recipe}": make for name in NAMES for recipe, make in load(name).RECIPES.items()}


def test_places_are_known_by_their_marks_and_not_by_their_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In all recipes every path has a mark, words of settings are no paths, and an absolute path is the same experiment."""
    monkeypatch.chdir(tmp_path)
    for folder in ("small", "frozen", "auto", "shards/wiki1m", "SentEval/data/downstream"):
        Path(folder).mkdir(parents=True)
    for name, make in RECIPES.items():
        recipe = make()
        marks = {path: mark for path, mark, _ in marked(recipe)}
        texts = {path: value for path, value in recipe.flat().items() if isinstance(value, str) and path != "name"}
        assert {path for path, value in texts.items() if "/" in value} <= marks.keys(), name
        resolved = resolve(recipe)
        for path, value in resolved.flat().items():
            if path in marks and texts.get(path) in marks[path].words:
                assert value == texts[path], (name, path)
        assert resolved.identity() == recipe.identity(), name
        assert resolved.differences(recipe).keys() <= marks.keys(), name


def test_secrets_of_urls_are_not_stored_and_do_not_change_the_identity() -> None:
    """Stored recipes contain no secrets, recipes for workers do; a new signature does not change the identity."""
    plain = "https://host/x-{0..3}.tar?part=1"
    recipe = visualcse.bert_base().replace("streams.text.shards", plain)
    signed = [
        recipe.replace("streams.text.shards", f"https://{user}host/x-{{0..3}}.tar?part=1&X-Amz-Signature={sign}")
        for user, sign in (("me:pass1word@", "pass1word1"), ("me:pass1word@", "pass1word2"))
    ]
    assert "pass1word" not in signed[0].to_json() and "***" in signed[0].to_json()
    assert type(recipe).from_json(signed[0].to_json(secrets=True)) == signed[0]
    assert type(recipe).from_json(signed[0].to_json()).identity() == signed[0].identity() == signed[1].identity()
    assert recipe.replace("streams.text.shards", plain.replace("1", "2")).identity() != recipe.identity()
