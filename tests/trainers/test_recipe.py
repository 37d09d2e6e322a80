"""Recipes: one way to change a value, complete in JSON, equal identities for equal experiments."""

from __future__ import annotations

from pathlib import Path

import pytest

from multicse.pipelines import cyclip, visualcse
from multicse.trainers.engine.launch import resolve
from multicse.trainers.recipe import RecipeError


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("optim.text.learning_rate", 1, r"Did you mean 'optim\.text\.lr'\?"),
        ("optim.txt.lr", 1, r"optim\.text\.lr\b"),
        ("optim.text.lr", "fast", r"optim\.text\.lr"),
        ("run.precision", "fp8", r"run\.precision"),
        ("method.image.loss", "triplet", r"method\.image\.loss"),
        ("streams.image.flip", 2, r"streams\.image\.flip"),
    ],
)
def test_replace_names_the_setting(path: str, value: object, named: str) -> None:
    with pytest.raises(RecipeError, match=named):
        visualcse.bert_base().replace(path, value)


def test_identity_is_the_experiment_not_where_it_runs() -> None:
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
    assert recipe.replace("method.image.weight", 0.1).identity() != recipe.identity()


def test_steps_count_the_leading_stream() -> None:
    recipe = visualcse.bert_base()
    assert recipe.steps(1_000_001) == 15_626  # the released training log
    assert recipe.replace("run.epochs", 3).steps(1_000_001) == 46_878
    assert recipe.replace("run.gradient_accumulation_steps", 2).steps(1_000_001) == 7_813
    assert recipe.replace("run.max_steps", 10).steps(1_000_001) == 10


def test_identity_tells_options_of_a_task_apart_and_not_the_folders_above() -> None:
    def identity(task: str, tower: str = "a/tower") -> str:
        recipe = cyclip.RECIPES["cyclip-s-vit"]().replace("evaluation.final", (task,))
        return recipe.replace("method.tower.path", tower).identity()

    here = identity("zero-shot:/here/shards/imagenet?classes=/here/prompts/imagenet.json")
    assert here == identity("zero-shot:/there/shards/imagenet?classes=/there/prompts/imagenet.json", "/there/a/tower")
    assert here != identity("zero-shot:/here/shards/imagenet-v2?classes=/here/prompts/imagenet.json")
    assert here != identity("zero-shot:/here/shards/imagenet?classes=/here/prompts/other.json")
    assert here != identity("zero-shot:/here/shards/imagenet?classes=/here/prompts/imagenet.json", "a/other")


def test_every_path_of_a_method_is_absolute_for_workers_in_other_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tower").mkdir()
    recipe = cyclip.RECIPES["cyclip-s-vit"]().replace("method.tower.path", "tower")
    assert resolve(recipe).flat()["method.tower.path"] == str(tmp_path / "tower")


def test_secrets_of_urls_are_not_kept_and_change_no_identity() -> None:
    """What is written down has none; what workers are sent has them; a new signature is no other experiment."""
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
