"""Content of a model card, and what it must not contain."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard

from multicse.models.sentence_encoder import CardText
from multicse.trainers.engine.card import model_card

RECIPE: dict[str, Any] = {
    "name": "visualcse/bert-base",
    "method": {"name": "nonling", "text": {"temperature": 0.05}},
    "encoder": {"path": "google-bert/bert-base-uncased", "pooling": "pooler"},
    "streams": {"text": {"shards": "/home/someone/shards/wiki::/data/more", "batch_size": 64}},
    "optim": {"text": {"lr": 3e-5, "schedule": "linear", "betas": [0.9, 0.999]}},
    "run": {"seed": 42, "epochs": 2.0, "output_dir": "/home/someone/runs", "tracking_uri": "http://inside:5000"},
}
DATA: list[dict[str, Any]] = [
    {"name": "wiki", "licence": "CC BY-SA 4.0", "source": "https://example.org/a|b", "samples": 73604},
    {"name": "mine", "licence": "", "source": None},  # its shards were moved
]
NUMBERS = {
    "before": {"lee": {"spearman": 14.25, "alignment": 0.3}},
    "after": {"lee": {"spearman": 22.5, "alignment": 0.2}, "sts12": {"spearman": 61.234}},
    "best_step": 125,
}


TEXT = CardText(
    what="An encoder.",
    initialised_from="Trained from `x`",
    usage=("print(1)",),
    notes="Read it.",
    bases=("google-bert/bert-base-uncased", None, "/home/someone/tower"),
    languages=("de",),
    form="Two layers.",
)


def split(card: str) -> tuple[dict[str, Any], str]:
    _, head, body = card.split("---\n", 2)
    return yaml.safe_load(head), body


def test_the_hub_reads_the_metadata() -> None:
    card = model_card(RECIPE, DATA, NUMBERS, {"torch": "2.13.0"}, TEXT)
    head, _ = split(card)
    assert head["library_name"] == "sentence-transformers" and head["pipeline_tag"] == "sentence-similarity"
    assert head["base_model"] == "google-bert/bert-base-uncased" and "nonling" in head["tags"]
    assert head["license"] == "other" and head["license_name"] == "cc-by-sa-4.0-and-unknown"
    assert head["language"] == ["de"], "the language of the encoder, if the data specifies none"
    german = model_card(RECIPE, [{**DATA[0], "languages": ("gsw",)}], NUMBERS, {}, TEXT)
    assert split(german)[0]["language"] == ["gsw"]
    assert ModelCard(card).data.to_dict()["model_name"] == RECIPE["name"]


@pytest.mark.parametrize(
    ("written", "identifier"),
    [
        ("CC BY-SA 4.0", "cc-by-sa-4.0"),
        ("Apache License 2.0", "apache-2.0"),
        ("MIT; MIT", "mit"),
        ("CC-BY-SA-3.0 (Wikipedia)", "cc-by-sa-3.0"),
        ("captions CC-BY-4.0; its own license", None),
    ],
)
def test_licences_are_identifiers_of_the_hugging_face_hub(written: str, identifier: str | None) -> None:
    head, _ = split(model_card(RECIPE, [{**DATA[0], "licence": written}], NUMBERS, {}, TEXT))
    assert head["license"] == (identifier or "other") and head.get("license_name") == (None if identifier else "other-terms")


def test_scores_data_and_usage() -> None:
    _, body = split(model_card(RECIPE, DATA, NUMBERS, {"torch": "2.13.0", "python": "3.11.0"}, TEXT))
    assert "| lee | spearman | 14.25 | 22.50 | +8.25 |" in body
    assert "| sts12 | spearman | - | 61.23 | - |" in body
    whitened = {**NUMBERS, "baseline": {"lee": {"spearman": 20.0}}}
    assert "| lee | spearman | 14.25 | 20.00 | 22.50 | +8.25 |" in split(model_card(RECIPE, DATA, whitened, {}, TEXT))[1]
    changes = {"lee": {"metric": "spearman", "n": 435, "difference": 8.25, "low": -0.5, "high": 17.0, "p": 0.07}}
    tested = split(model_card(RECIPE, DATA, {**NUMBERS, "changes": changes}, {}, TEXT))[1]
    assert "| lee | spearman | 435 | 14.25 | 22.50 | +8.25 | n.s.  -0.50 to +17.00 |" in tested
    assert "| sts12 | spearman | - | - | 61.23 | - | - |" in tested and "n.s.: not significant (p >= .05)" in tested
    assert "| wiki | 73,604 | CC BY-SA 4.0 | https://example.org/a\\|b |" in body
    assert "| mine | unknown | unknown | unknown |" in body
    assert "## Model\n\nTwo layers." in body
    assert "```bibtex\n@inproceedings{jian2022nonlinguistic,\n  author = {Jian, Yiren and" in body
    assert "torch 2.13.0" in body and '"temperature": 0.05' in body and "print(1)" in body


def test_local_paths_are_not_published() -> None:
    tasks = {"final": ["zero-shot:/home/someone/photos?classes=/home/someone/classes.json", "pairs:s3://bucket/a/b.tsv"]}
    recipe = {**RECIPE, "encoder": {"path": "/home/someone/encoder"}, "evaluation": tasks}
    card = model_card(recipe, DATA, NUMBERS, {}, TEXT._replace(bases=()))
    assert "/home/someone" not in card and "inside:5000" not in card and '"seed": 42' in card
    assert '"zero-shot:photos?classes=classes.json"' in card and '"pairs:s3://bucket/a/b.tsv"' in card
    assert '"wiki::more"' in card and '"path": "encoder"' in card
    assert "base_model" not in split(card)[0]


def test_a_whitened_model_has_its_own_scores() -> None:
    _, body = split(model_card(RECIPE, DATA, NUMBERS, {}, TEXT._replace(whitened={"lee": {"spearman": 31.0}})))
    assert (
        "| lee | spearman | 14.25 | 22.50 | 31.00 | +8.25 |" in body and "| sts12 | spearman | - | 61.23 | - | - |" in body
    )


@pytest.mark.parametrize(
    ("names", "gold"),
    [
        (["lee"], "human ratings"),
        (["pairs:own.tsv"], "ratings"),
        (["pairs:dev.tsv?gold=labels%20of%20sentence%20halves"], "labels of sentence halves"),
        (["lee", "retrieval:x", "pairs:own.tsv?gold=votes"], "human ratings or votes"),
    ],
)
def test_the_card_names_what_the_ratings_are(names: list[str], gold: str) -> None:
    evaluation = {"select": names[0], "watch": (), "final": names[1:]}
    card = model_card({**RECIPE, "evaluation": evaluation}, DATA, NUMBERS, {}, TEXT)
    assert f"between cosine similarities and {gold}. For alignment" in card
