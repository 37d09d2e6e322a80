"""What the folder of a model says of itself, and whether it holds all that the loaded model needs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from multicse.evaluation.task import EvaluationError
from multicse.models.hub_folders import EVALUATED, route_of

OWN = "multicse_"  # what the type of a module in modules.json begins with, if its code is this project's
ROUTER = ".Router"  # and how it ends if sentence-transformers has a route for each modality


def model_type(folder: Path) -> str | None:
    """``model_type`` of the folder's first module."""
    for file in (folder / "config.json", folder / "0_CLIPModel" / "config.json"):
        if file.is_file():
            try:
                return json.loads(file.read_text(encoding="utf-8")).get("model_type")
            except (ValueError, AttributeError) as error:
                raise EvaluationError(f"{file} is no JSON object: {error}") from error
    return None


def own_module(folder: Path) -> str | None:
    """The type of the folder's first module, where it is a Router or one with code of its own, as this project exports."""
    file = folder / "modules.json"
    if not file.is_file():
        return None
    try:
        first = json.loads(file.read_text(encoding="utf-8"))[0]["type"]
    except (ValueError, LookupError, TypeError) as error:
        raise EvaluationError(f"{file} is no list of modules: {error}") from error
    return first if isinstance(first, str) and (first.startswith(OWN) or first.endswith(ROUTER)) else None


def refuse_random(model: Any, folder: Path) -> None:
    """Raise ValueError where weights of a SentenceTransformer's networks are not in its folder, or it has no tokenizer."""
    modules = folder / "modules.json"
    entries = json.loads(modules.read_text(encoding="utf-8")) if modules.is_file() else [{"path": ""}]
    parts = [(module, folder / entry["path"]) for module, entry in zip(model, entries, strict=False)]
    for name, route in getattr(model[0], "sub_modules", {}).items():  # of a Router
        parts += zip(route, (place for _, place in route_of(folder, name)), strict=True)
    for module, place in parts:
        network = getattr(module, "auto_model", None)
        if network is not None and not (place / "adapter_config.json").is_file():
            tokenizer = module.tokenizer if "text" in module.modalities else None
            EVALUATED.refuse_random(str(folder), place, network, tokenizer)
