"""The model card of an export: what it is, how to use it, what it learned from, how good it is."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

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
CODE, WORD_CODE = "multicse_dual.py", "multicse_words.py"
"""The file of a folder whose architecture transformers does not have (see `models.carried_code`)."""
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
    folder: Path | None = None,
) -> str:
    """README.md of an exported sentence-transformers folder, with the metadata that the Hugging Face hub reads.

    recipe: the content of recipe.json. data: one mapping per stream with ``name``, ``licence``, ``source``, ``samples``; an
    empty licence or source is said to be unknown. numbers: ``before`` and ``after``, each task -> metric -> value
    (correlations in points), and ``best_step``; all may be absent. versions: library -> version. folder: where the model
    is, which says how one of texts and pictures or sounds is loaded; without it the card says how to tell.

    Local folders in the recipe are reduced to their last name, and settings of the machine are left out.
    """
    name = str(recipe.get("name", "model"))
    method = recipe.get("method", {}).get("name", name.split("/")[0])
    content = _publishable(recipe)
    licences = sorted({str(row.get("licence") or "unknown") for row in data})
    task = "sentence-similarity" if _modality(recipe) is None else "feature-extraction"
    parts = [
        _front_matter(name, _bases(recipe), method, task, licences, numbers.get("after") or {}),
        f"# {name}",
        *_introduction(f"{_start(content)} with {method} by [MultiCSE](#recipe)", _modality(recipe), folder, recipe),
        "## Numbers",
        _number_table(numbers),
        "## Data",
        _data_table(data),
        "The licence of a model that was trained on data of several licences is for whoever publishes it to decide; "
        "the metadata above lists those of the data.",
        "## Recipe",
        "```json\n" + json.dumps(content, indent=2, ensure_ascii=False) + "\n```",
        "## Versions",
        ", ".join(f"{library} {version}" for library, version in versions.items()),
    ]
    return "\n\n".join(parts) + "\n"


def _modality(recipe: Mapping[str, Any]) -> str | None:
    """What the model takes beside texts: ``image``, ``audio``, or nothing."""
    method = recipe.get("method", {})
    if method.get("name") != "clip":
        return None
    return "image" if method.get("tower", {}).get("kind") in ("vit", "resnet") else "audio"


def _is_words(recipe: Mapping[str, Any]) -> bool:
    """Whether the encoder is word vectors with filters over them."""
    return "regions" in recipe.get("encoder", {})


def _paths(recipe: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Where the weights of the text encoder and of the tower beside it came from; None for random ones."""
    encoder, tower = recipe.get("encoder", {}), recipe.get("method", {}).get("tower") or {}
    if _is_words(recipe):
        return None, None
    return None if encoder.get("scratch") else encoder.get("path", "unknown"), tower.get("path")


def _bases(recipe: Mapping[str, Any]) -> list[str]:
    """Names on the Hugging Face hub of the models whose weights this one began with."""
    names = [name for name in dict.fromkeys(_paths(recipe)) if name and name != "unknown"]
    return [name for name in names if re.fullmatch(r"[\w\-.]+(/[\w\-.]+)?", name) and not Path(name).exists()]


def _start(recipe: Mapping[str, Any]) -> str:
    """What training began with: "Trained from ...", or "From random weights ..., trained"."""
    if _is_words(recipe):
        vectors = recipe["encoder"]["vectors"]
        source = f"the word vectors `{Path(vectors).name}`" if vectors else "word vectors of its own training sentences"
        return f"On {source}, which stay as they are, filters were trained from random weights"
    text, tower = _paths(recipe)
    things = {"image": "pictures", "audio": "sounds"}.get(_modality(recipe) or "")
    if text is None:
        other = f" and, for {things}, the weights of `{tower}`" if tower else ""
        return f"From random weights, with the tokenizer of `{recipe['encoder'].get('path', 'unknown')}`{other}, trained"
    if things is None or tower == text:
        return f"Trained from `{text}`"
    return f"Trained from `{text}` and, for {things}, " + (f"`{tower}`" if tower else "random weights")


def _introduction(trained: str, modality: str | None, folder: Path | None, recipe: Mapping[str, Any]) -> list[str]:
    """What it is, and how to use it."""
    if modality is not None:
        return _dual_introduction(trained, modality, folder, recipe)
    if _is_words(recipe):
        return _word_introduction(trained)
    return [
        f"A sentence encoder: texts to vectors whose cosine says how close their meanings are. {trained}, and an ordinary "
        "[sentence-transformers](https://sbert.net) model.",
        "## Use",
        _python(
            "from sentence_transformers import SentenceTransformer",
            "",
            'model = SentenceTransformer("path/to/this/folder")',
            'vectors = model.encode(["A dog runs through the park.", "The stock market fell today."])',
            "print(model.similarity(vectors, vectors))",
        ),
        "`AutoModel.from_pretrained` loads the same folder and gives token states; the pooling is in `modules.json`. "
        "A further run starts from it with `--encoder.path`.",
    ]


def _word_introduction(trained: str) -> list[str]:
    """The same of a model of word vectors."""
    return [
        f"A sentence encoder: texts to vectors whose cosine says how close their meanings are. {trained}. It is a "
        "[sentence-transformers](https://sbert.net) model that brings its vectors and its Python.",
        "## Use",
        _python(
            "from sentence_transformers import SentenceTransformer",
            "",
            'model = SentenceTransformer("path/to/this/folder", trust_remote_code=True)',
            'vectors = model.encode(["A dog runs through the park.", "The stock market fell today."])',
            "print(model.similarity(vectors, vectors))",
        ),
        f"`trust_remote_code=True` runs `{WORD_CODE}`: read it first if the folder has come from somewhere else.",
    ]


def _dual_introduction(trained: str, modality: str, folder: Path | None, recipe: Mapping[str, Any]) -> list[str]:
    """The same of a model of texts and pictures or sounds."""
    things, hf = {"image": ("pictures", "CLIPModel"), "audio": ("sounds", "ClapModel")}[modality]
    code = None if folder is None else (folder / CODE).is_file()
    flag = "" if code is False else ", trust_remote_code=True"
    open_item = {
        "image": ["from PIL import Image", 'item = Image.open("dog.jpg")'],
        "audio": ["import soundfile", 'samples, rate = soundfile.read("dog.wav")  # mono: samples (T,)'],
    }[modality]
    item = "item" if modality == "image" else '{"array": samples, "sampling_rate": rate}'
    rate = recipe.get("method", {}).get("tower", {}).get("input", {}).get("rate", 48000)
    native = (
        f"`{hf}.from_pretrained` and `AutoProcessor.from_pretrained` load the same folder."
        + (f" Sounds must have {rate:,} samples per second." if modality == "audio" else "")
        + " A further run takes its text half with `--encoder.path` and the other one with `--method.tower.path`."
    )
    own = (
        f"The folder brings Python of its own (`{CODE}` and `resnet.py`), which `trust_remote_code=True` runs: read it "
        "first if the folder has come from somewhere else. The text half alone needs none of it: "
        '`SentenceTransformer("path/to/this/folder/text")` gives the same vectors of texts. '
        "A further run takes the halves with `--encoder.path .../text` and `--method.tower.path .../tower` (a ResNet begins "
        "anew)."
    )
    if code is None:
        own = f"If there is a file `{CODE}`: {own} If there is none, leave `trust_remote_code` out: {native}"
    return [
        f"An encoder of texts and {things}: vectors of one space, whose cosine says how well a text describes one of the "
        f"{things}, or how close two texts are. {trained}, a [sentence-transformers](https://sbert.net) model.",
        "## Use",
        _python(
            open_item[0],
            "from sentence_transformers import SentenceTransformer",
            "",
            f'model = SentenceTransformer("path/to/this/folder"{flag})',
            open_item[1],
            f"items = model.encode([{item}])",
            'texts = model.encode(["a dog", "a cat"])',
            "print(model.similarity(items, texts))",
        ),
        native if code is False else own,
    ]


def _python(*lines: str) -> str:
    return "\n".join(("```python", *lines, "```"))


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
        license_name=f"training data: {', '.join(licences)}" if licences else "unknown",
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
    step = numbers.get("best_step")
    return f"{table}\n\n{note}" + (f" The weights are those of step {step}." if step is not None else "")


def _data_table(data: Sequence[Mapping[str, Any]]) -> str:
    if not data:
        return "Unknown."
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
    if isinstance(content.get("run"), dict):
        content["run"] = {key: value for key, value in content["run"].items() if key not in PRIVATE}
    return content
