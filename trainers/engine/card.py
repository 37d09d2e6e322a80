"""The model card of an export: what it is, how to use it, what it learned from, how good it is."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from models.sentence_encoder import CardText, hub_names

LIBRARIES = ("torch", "transformers", "sentence-transformers", "ray", "mlflow", "numpy", "multicse")
SHOWN = (
    "spearman",
    "accuracy",
    "image_to_text_r1",
    "text_to_image_r1",
    "audio_to_text_r1",
    "text_to_audio_r1",
    "mean_r1",
    "mean_map10",
    "loss",
    "alignment",
    "uniformity",
)
"""Metrics of the before/after table, in this order; smaller is better for the last three."""
TAGS = ("sentence-transformers", "sentence-similarity", "feature-extraction", "contrastive-learning", "multicse")
PRIVATE = ("output", "storage", "tracking_uri", "experiment", "register_as", "verbose")
"""Settings of a run that say something about a machine and nothing about the model."""


def library_versions() -> dict[str, str]:
    """Versions of Python and of the libraries that decide a result; those that are not installed are left out."""
    versions = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def model_card(
    recipe: Mapping[str, Any],
    data: Sequence[Mapping[str, Any]],
    numbers: Mapping[str, Any],
    versions: Mapping[str, str],
    text: CardText,
) -> str:
    """README.md of an exported sentence-transformers folder, with the metadata that the Hugging Face hub reads.

    recipe: the content of recipe.json. data: one mapping per stream with ``name``, ``licence``, ``source``, ``samples``; an
    empty licence or source is said to be unknown. numbers: ``before`` and ``after``, each task -> metric -> value
    (correlations in points; either may be absent), and ``best_step``. versions: library -> version. text: what the encoder
    says of itself, `SentenceEncoder.card`.

    Local folders in the recipe are reduced to their last name, and settings of the machine are left out.
    """
    name, method = recipe["name"], recipe["method"]["name"]
    licences = sorted({str(row.get("licence") or "unknown") for row in data})
    parts = [
        _front_matter(name, hub_names(text.bases), method, text.pipeline_tag, licences, numbers.get("after") or {}),
        f"# {name}",
        f"{text.what} {text.began} with {method} by [MultiCSE](#recipe). It is a "
        "[sentence-transformers](https://sbert.net) model.",
        "## Use",
        "\n".join(("```python", *text.usage, "```")),
        text.notes,
        "## Numbers",
        _number_table(numbers),
        "## Data",
        _data_table(data),
        "The licence of a model that was trained on data of several licences is for whoever publishes it to decide; "
        "the metadata above lists those of the data.",
        "## Recipe",
        "```json\n" + json.dumps(_publishable(recipe), indent=2, ensure_ascii=False) + "\n```",
        "## Versions",
        ", ".join(f"{library} {version}" for library, version in versions.items()),
    ]
    return "\n\n".join(parts) + "\n"


def _front_matter(
    name: str, bases: list[str], method: str, task: str, licences: list[str], after: Mapping[str, Mapping[str, float]]
) -> str:
    from huggingface_hub import EvalResult, ModelCardData

    scores = [
        EvalResult(
            task_type="sts",
            task_name="Semantic Textual Similarity",
            dataset_type=task,
            dataset_name=task,
            metric_type="spearman_cosine",
            metric_name="Spearman of cosine x 100",
            metric_value=round(float(metrics["spearman"]), 2),
        )
        for task, metrics in after.items()
        if "spearman" in metrics
    ]
    card = ModelCardData(
        library_name="sentence-transformers",
        pipeline_tag=task,
        tags=[*TAGS, method],
        base_model=bases[0] if len(bases) == 1 else bases or None,
        license="other",
        license_name=f"training data: {', '.join(licences)}",
        model_name=name,
        eval_results=scores or None,
    )
    return f"---\n{card.to_yaml()}\n---"


def _number_table(numbers: Mapping[str, Any]) -> str:
    before, after = numbers.get("before") or {}, numbers.get("after") or {}
    rows = []
    for task in [*after, *(task for task in before if task not in after)]:
        for metric in SHOWN:
            pair = [scores.get(task, {}).get(metric) for scores in (before, after)]
            if pair == [None, None]:
                continue
            change = "" if None in pair else f"{pair[1] - pair[0]:+.2f}"
            rows.append([task, metric, *("" if value is None else f"{value:.2f}" for value in pair), change])
    if not rows:
        return "None were measured."
    table = _table(["task", "metric", "before", "after", "change"], rows)
    shown = {row[1] for row in rows}
    notes = [
        "Spearman is that of cosine against human ratings, times 100; of alignment and uniformity the smaller is better."
    ]
    if any(metric.endswith(("_r1", "_map10")) for metric in shown):
        notes.append(
            "r1 is the share of queries, in points, whose first hit is right, map10 the mean average precision of 10."
        )
    if "loss" in shown:
        notes.append("The loss is the contrastive one, and smaller is better.")
    note = " ".join(notes)
    return f"{table}\n\n{note} The weights are those of step {numbers['best_step']}."


def _data_table(data: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [
            str(row.get("name") or "unknown"),
            f"{row['samples']:,}" if row.get("samples") is not None else "unknown",
            str(row.get("licence") or "unknown"),
            str(row.get("source") or "unknown"),
        ]
        for row in data
    ]
    return _table(["data", "samples", "licence", "source"], rows)


def _table(head: list[str], rows: list[list[str]]) -> str:
    cells = [head, ["---"] * len(head), *([cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def _publishable(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe without what only says where files are on one machine."""

    def clean(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: clean(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [clean(item) for item in value]
        if isinstance(value, str) and "/" in value:
            return "::".join(Path(part).name if Path(part).is_absolute() else part for part in value.split("::"))
        return value

    content = clean(recipe)
    content["run"] = {key: value for key, value in content["run"].items() if key not in PRIVATE}
    return content
