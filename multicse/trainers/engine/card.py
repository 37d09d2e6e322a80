"""Model card of an export: description, usage, scores, training data and recipe."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from multicse import plugins
from multicse.data.settings import marks
from multicse.evaluation.registry import gold_of
from multicse.evaluation.tables import run_legend, run_rows
from multicse.models.sentence_encoder import CardText, hub_names
from multicse.trainers.method import bibtex
from multicse.trainers.recipe import RunConfig

LIBRARIES = ("torch", "transformers", "sentence-transformers", "ray", "mlflow", "numpy", "multicse")
TAGS = ("sentence-transformers", "sentence-similarity", "feature-extraction", "contrastive-learning", "multicse")
HUB_LICENCE = re.compile(
    r"cc-by(-nc)?(-sa|-nd)?-(2\.0|2\.5|3\.0|4\.0)|cc0-1\.0|apache-2\.0|mit|bsd-[23]-clause|l?gpl-3\.0|gfdl|odbl|odc-by|pddl"
)
"""Licence identifiers of the Hugging Face Hub that data sets use; all others become ``other`` with a name."""
LIBRARY = "reimers2019sentencebert"
"""Citation key of the sentence-transformers paper, which every card cites."""
TEMPLATE = Path(__file__).with_name("card.md")
FOLDERS = re.compile(r"(?:(?<=^)|(?<=[:=]))/(?!/)(?:[^:?&#]*/)?")
"""Folders of absolute local paths in a path, in shard URLs, or in a task with options."""
FOLDER = "path/to/this/folder"
"""Name of the folder in an encoder's usage example; replaced by the repository for an export on the Hugging Face Hub."""


def library_versions() -> dict[str, str]:
    """Return the versions of Python and of the installed libraries that affect the results."""
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
    """Return the README.md of an exported folder, with the metadata that the Hugging Face Hub reads.

    Local paths in the recipe are reduced to their last part, and settings of the machine are omitted.

    Args:
        recipe: Content of recipe.json.
        data: For each stream ``name``, ``licence``, ``source``, ``samples`` and ``languages``. An empty licence or source is
            unknown.
        numbers: Result of the run: ``before``, ``baseline``, ``after`` and ``changes``, each optional, and ``best_step``.
        versions: Version by library.
        text: Description of the encoder (`SentenceEncoder.card`) and of the folder (`write_export`).
    """
    from huggingface_hub import ModelCard, ModelCardData

    name, method = recipe["name"], recipe["method"]["name"]
    place = json.dumps(recipe["run"].get("push_to_hub") or FOLDER)
    head, *scores = run_rows({**numbers, "whitened": text.whitened})
    metrics = {row[1] for row in scores}
    bases, licences = hub_names(text.bases), _licence_ids(data)
    known = len(licences) == 1 and HUB_LICENCE.fullmatch(licences[0]) is not None
    learned = sorted({language for row in data for language in row.get("languages", ())})
    metadata = ModelCardData(
        language=learned or list(text.languages) or None,
        library_name="sentence-transformers",
        pipeline_tag=text.pipeline_tag,
        tags=[*TAGS, method],
        base_model=bases[0] if len(bases) == 1 else bases or None,
        license=licences[0] if known else "other",
        license_name=None if known else "-and-".join(licences),
        model_name=name,
    )
    card = ModelCard.from_template(
        metadata,
        template_path=str(TEMPLATE),
        name=name,
        method=method,
        text=text,
        usage="\n".join(text.usage).replace(json.dumps(FOLDER), place),
        scores_head=head,
        scores=scores,
        legend=" ".join(run_legend(head)),
        ranks=any(metric.endswith(("_r1", "_map10")) for metric in metrics),
        loss="loss" in metrics,
        gold=_gold(recipe.get("evaluation", {})) if "spearman" in metrics else "",
        best_step=numbers["best_step"],
        data=data,
        recipe=json.dumps(_publishable(recipe), indent=2, ensure_ascii=False),
        citations="\n".join(bibtex([*plugins.get("method", method).citations, LIBRARY])),
        versions=", ".join(f"{library} {version}" for library, version in versions.items()),
    )
    return f"{card}\n"


def _gold(evaluation: Mapping[str, Any]) -> str:
    """Return what the ratings of the tasks of a recipe are."""
    names = filter(None, [evaluation.get("select"), *evaluation.get("watch", ()), *evaluation.get("final", ())])
    return " or ".join(dict.fromkeys(gold for name in names if (gold := gold_of(name)))) or "ratings"


def _licence_ids(data: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the Hugging Face Hub's identifiers of the data's licences, or ``other-terms``, sorted."""
    names = {part for row in data for part in str(row.get("licence") or "unknown").lower().split(";")}
    plain = (re.sub(r"\(.*?\)|\blicen[cs]e\b", "", name) for name in names)
    dashed = {re.sub(r"[^a-z0-9.]+", "-", name).strip("-") for name in plain}
    return sorted({name if HUB_LICENCE.fullmatch(name) or name == "unknown" else "other-terms" for name in dashed})


def _publishable(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recipe without local folders and settings of the machine."""

    def clean(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: clean(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [clean(item) for item in value]
        return FOLDERS.sub("", value) if isinstance(value, str) else value

    content, machine = clean(recipe), {name for name, mark in marks(RunConfig).items() if mark and mark.kind == "machine"}
    content["run"] = {key: value for key, value in content["run"].items() if key not in machine}
    return content
