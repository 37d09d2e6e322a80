"""What a model card says, and what it keeps to itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from trainers.engine.card import library_versions, model_card

RECIPE: dict[str, Any] = {
    "name": "visualcse/bert-base",
    "method": {"name": "nonling", "text": {"temperature": 0.05}},
    "encoder": {"path": "google-bert/bert-base-uncased", "pooling": "cls"},
    "streams": {"text": {"shards": "/home/someone/shards/wiki::/data/more", "batch_size": 64}},
    "run": {"seed": 42, "output": "/home/someone/runs", "tracking_uri": "http://inside:5000"},
}
DATA: list[dict[str, Any]] = [
    {"name": "wiki", "licence": "CC BY-SA 4.0", "source": "https://example.org/a|b", "samples": 73604},
    {"name": "mine", "licence": "", "source": None, "samples": None},
]
NUMBERS = {
    "before": {"lee": {"spearman": 14.25, "alignment": 0.3}},
    "after": {"lee": {"spearman": 22.5, "alignment": 0.2}, "sts12": {"spearman": 61.234}},
    "best_step": 125,
}


def split(card: str) -> tuple[dict[str, Any], str]:
    _, head, body = card.split("---\n", 2)
    return yaml.safe_load(head), body


def test_the_hub_reads_the_metadata() -> None:
    from huggingface_hub import ModelCard

    card = model_card(RECIPE, DATA, NUMBERS, {"torch": "2.13.0"})
    head, _ = split(card)
    assert head["library_name"] == "sentence-transformers" and head["pipeline_tag"] == "sentence-similarity"
    assert head["base_model"] == "google-bert/bert-base-uncased" and "nonling" in head["tags"]
    assert head["license"] == "other" and "CC BY-SA 4.0" in head["license_name"] and "unknown" in head["license_name"]
    parsed: Any = ModelCard(card).data
    assert {result.dataset_name: result.metric_value for result in parsed.eval_results} == {"lee": 22.5, "sts12": 61.23}


def test_numbers_data_and_use() -> None:
    _, body = split(model_card(RECIPE, DATA, NUMBERS, {"torch": "2.13.0", "python": "3.11.0"}))
    assert "| lee | spearman | 14.25 | 22.50 | +8.25 |" in body
    assert "| lee | alignment | 0.30 | 0.20 | -0.10 |" in body
    assert "| sts12 | spearman |  | 61.23 |  |" in body
    assert "step 125" in body
    assert "| wiki | 73,604 | CC BY-SA 4.0 | https://example.org/a\\|b |" in body
    assert "| mine | unknown | unknown | unknown |" in body
    assert "torch 2.13.0" in body and '"temperature": 0.05' in body
    snippet = body.split("```python\n")[1].split("```")[0]
    compile(snippet, "snippet", "exec")


def test_places_of_the_machine_stay_private() -> None:
    card = model_card({**RECIPE, "encoder": {"path": "/home/someone/encoder"}}, DATA, NUMBERS, {})
    assert "/home/someone" not in card and "inside:5000" not in card and '"seed": 42' in card
    assert '"wiki::more"' in card and "`encoder`" in card
    assert "base_model" not in split(card)[0]


@pytest.mark.parametrize("kind", ["vit", "htsat"])
@pytest.mark.parametrize("code", [True, False, None])
def test_a_model_of_two_modalities(tmp_path: Path, kind: str, code: bool | None) -> None:
    tower = {"kind": kind, "input": {"rate": 44100} if kind == "htsat" else {"size": 32}}
    recipe = {**RECIPE, "name": "cyclip/x", "method": {"name": "clip", "tower": tower}}
    if code:
        (tmp_path / "multicse_dual.py").write_text("")
    after = {"pairs": {"mean_r1": 31.5, "image_to_text_r1": 30.0, "text_to_image_r1": 33.0, "mean_map10": 40.0}}
    numbers = {"before": {"dev": {"loss": 4.0}}, "after": {**after, "dev": {"loss": 2.5}}}
    head, body = split(model_card(recipe, DATA, numbers, {}, None if code is None else tmp_path))
    things, other = ("pictures", "ClapModel") if kind == "vit" else ("sounds", "CLIPModel")
    assert f"texts and {things}" in body and other not in body and "AutoModel" not in body
    assert head["pipeline_tag"] == "feature-extraction"
    snippet = body.split("```python\n")[1].split("```")[0]
    compile(snippet, "snippet", "exec")
    assert ("trust_remote_code" in body) == (code is not False)
    assert ("multicse_dual.py" in body) == (code is not False)
    assert ("from_pretrained" in body) == (code is not True)
    assert ("Image.open" in snippet) == (kind == "vit") and ("sampling_rate" in snippet) == (kind == "htsat")
    assert ("44,100 samples per second" in body) == (kind == "htsat" and not code)
    assert "| pairs | mean_r1 |  | 31.50 |  |" in body and "| pairs | mean_map10 |  | 40.00 |  |" in body
    assert "| dev | loss | 4.00 | 2.50 | -1.50 |" in body and "smaller is better" in body and "mean average" in body


HUB, TOWER = "google-bert/bert-base-uncased", "some/tower"


@pytest.mark.parametrize(
    ("scratch", "tower", "bases", "words"),
    [
        (False, HUB, HUB, f"Trained from `{HUB}` with clip"),
        (False, TOWER, [HUB, TOWER], f"Trained from `{HUB}` and, for pictures, `{TOWER}` with clip"),
        (False, None, HUB, f"Trained from `{HUB}` and, for pictures, random weights with clip"),
        (False, "/home/someone/tower", HUB, f"Trained from `{HUB}` and, for pictures, `tower` with clip"),
        (True, TOWER, TOWER, f"tokenizer of `{HUB}` and, for pictures, the weights of `{TOWER}`, trained with clip"),
        (True, None, None, f"From random weights, with the tokenizer of `{HUB}`, trained with clip"),
    ],
)
def test_a_card_says_whose_weights_it_began_with(scratch: bool, tower: str | None, bases: object, words: str) -> None:
    method = {"name": "clip", "tower": {"kind": "vit", "path": tower}}
    recipe = {**RECIPE, "method": method, "encoder": {**RECIPE["encoder"], "scratch": scratch}}
    head, body = split(model_card(recipe, DATA, NUMBERS, {}))
    assert head.get("base_model") == bases
    assert words in body and ("From random weights" in body) == scratch and ("Trained from" in body) != scratch


def test_a_sentence_encoder_from_scratch_has_no_base() -> None:
    head, body = split(model_card({**RECIPE, "encoder": {**RECIPE["encoder"], "scratch": True}}, DATA, NUMBERS, {}))
    assert "base_model" not in head and "Trained from" not in body
    assert f"From random weights, with the tokenizer of `{HUB}`, trained with nonling by" in body


def test_nothing_measured_and_nothing_known() -> None:
    card = model_card({}, [], {}, library_versions())
    head, body = split(card)
    assert "None were measured." in body and "Unknown." in body and "model-index" not in head
    assert f"torch {__import__('torch').__version__}" in body
