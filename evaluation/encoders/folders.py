"""Types of model folders, and a check that a folder contains all weights of the loaded model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from multicse.evaluation.task import EvaluationError
from multicse.models.hub_folders import read_json, route_of
from multicse.models.pretrained import EVALUATED

OWN = "multicse_"  # prefix of module types in modules.json with code of this package
ROUTER = ".Router"  # suffix of the module type in sentence-transformers with a route per modality


def model_type(folder: Path) -> str | None:
    """Return ``model_type`` of the folder's first module; None if its configuration has none."""
    for file in (folder / "config.json", folder / "0_CLIPModel" / "config.json"):
        if file.is_file():
            try:
                return read_json(file).get("model_type")
            except (ValueError, AttributeError) as error:
                raise EvaluationError(f"{file} is not a JSON object: {error}") from error
    return None


def own_module(folder: Path) -> str | None:
    """Return the type of the folder's first module if it is a Router or has code of this package, otherwise None."""
    file = folder / "modules.json"
    if not file.is_file():
        return None
    try:
        first = read_json(file)[0]["type"]
    except (ValueError, LookupError, TypeError) as error:
        raise EvaluationError(f"{file} is not a list of modules: {error}") from error
    return first if isinstance(first, str) and (first.startswith(OWN) or first.endswith(ROUTER)) else None


def refuse_random(model: Any, folder: Path) -> None:
    """Check that a loaded SentenceTransformer has no random weights.

    Args:
        model: SentenceTransformer.
        folder: Folder that it was loaded from.

    Raises:
        ValueError: If weights are missing from the folder, or no valid tokenizer is found.
    """
    modules = folder / "modules.json"
    entries = read_json(modules) if modules.is_file() else [{"path": ""}]
    parts = [(module, folder / entry["path"]) for module, entry in zip(model, entries, strict=False)]
    for name, route in getattr(model[0], "sub_modules", {}).items():  # only a Router has them
        parts += zip(route, (place for _, place in route_of(folder, name)), strict=True)
    for module, place in parts:
        network = getattr(module, "auto_model", None)
        if network is not None and not (place / "adapter_config.json").is_file():
            tokenizer = module.tokenizer if "text" in module.modalities else None
            EVALUATED.refuse_random(str(folder), place, network, tokenizer)
