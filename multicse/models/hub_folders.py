"""Folders of Hugging Face and sentence-transformers models: their structure, and exports."""

from __future__ import annotations

import importlib
import inspect
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import huggingface_hub  # as a module: it imports what a name of it needs when that name is used
import torch

from multicse import plugins

if TYPE_CHECKING:  # takes seconds, and training does not need it before an export
    from sentence_transformers import SentenceTransformer
    from transformers import PretrainedConfig

ABOUT = "config_sentence_transformers.json"
"""File with the settings of a sentence-transformers model."""
ROUTER = "router_config.json"
"""File that identifies a Router of sentence-transformers."""
SCALE = "logit_scale.safetensors"
"""File in a Router's folder with the logarithm of the learned scale; sentence-transformers does not read it."""
HALVES = {"clip_text_model": "CLIPTextModel", "clap_text_model": "ClapTextModel", "clap_audio_model": "ClapAudioModel"}
"""Text and audio transformers of CLIP and CLAP, which a complete model's folder contains, too; class in transformers."""


def read_json(file: Path) -> Any:
    """Return the content of a JSON file."""
    return json.loads(file.read_text(encoding="utf-8"))


def write_json(file: Path, content: Any) -> None:
    """Write a JSON file."""
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def model_class(config: PretrainedConfig) -> Any:
    """Return the class of a text or tower model with this configuration; None if all classes of transformers need a task."""
    import transformers  # here: takes a third of a second, too long for --help

    name = HALVES.get(config.model_type)
    found = getattr(transformers, name) if name else transformers.MODEL_MAPPING.get(type(config), None)
    return found[0] if isinstance(found, tuple) else found  # Funnel's classes with and without decoder


def has_pooler(config: PretrainedConfig) -> bool:
    """Return True if the model type has an optional pooler, such as BERT but not DistilBERT."""
    kind = model_class(config)
    return kind is not None and "add_pooling_layer" in inspect.signature(kind.__init__).parameters


def unpooled(config: PretrainedConfig) -> dict[str, Any]:
    """Return the options to create a model without its pooler."""
    return {"add_pooling_layer": False} if has_pooler(config) else {}


def route_of(folder: Path, modality: str) -> list[tuple[str, Path]]:
    """Return type and folder of the modules on a modality's route through a Router of sentence-transformers.

    Empty if the folder is not a Router or has no such route. Raises ValueError if a module is outside the folder.
    """
    file = folder / ROUTER
    saved = read_json(file) if file.is_file() else {"structure": {}}
    names = saved["structure"].get(modality, ())
    if outside := [name for name in names if Path(name).name != name or name == ".."]:
        raise ValueError(f"{file} names modules outside its folder: {', '.join(outside)}")
    return [(saved["types"][name], folder / name) for name in names]


def projection_layers(route: list[tuple[str, Path]]) -> list[Path]:
    """Return the folders of the projection, the last Dense modules of a route: one without bias (CLIP), or two (CLAP)."""
    dense = [place for kind, place in route if kind.endswith(".Dense")]
    if not dense:
        return []
    if not read_json(dense[-1] / "config.json")["bias"]:
        return dense[-1:]
    return dense[-2:] if len(dense) > 1 else []


def half(folder: Path, modality: str) -> Path:
    """Return the folder of a modality's transformer: the first module of its route in a Router, otherwise `folder`."""
    route = route_of(folder, modality)
    return route[0][1] if route else folder


def languages_of(folder: str | None) -> tuple[str, ...]:
    """Return the language codes in the model card of a folder; empty without a card."""
    card = Path(folder or "") / "README.md"
    found = (huggingface_hub.metadata_load(card) or {}).get("language") if card.is_file() else None
    return (found,) if isinstance(found, str) else tuple(found or ())


# ---- exports ---------------------------------------------------------------------------------------------------------


class ExportError(ValueError):
    """Checkpoint that cannot be exported, or invalid destination of an export."""


OWN = "multicse_"
"""Prefix of the types in modules.json, file and class, whose code the folder contains. Each class copies its files to the
folder that it is saved to; the plugin of the kind ``module`` with the name of the type is the module with our own copy."""
WORDS = "multicse_words.WordModule"
plugins.add("module", WORDS, "multicse.models.word_module")


def module_types(folder: Path) -> list[str]:
    """Return the types of all modules of a sentence-transformers folder, including those in a Router; otherwise empty."""
    modules, router = folder / "modules.json", folder / ROUTER
    types = [entry["type"] for entry in read_json(modules)] if modules.is_file() else []
    return [*types, *(read_json(router)["types"].values() if router.is_file() else ())]


def own_type(folder: Path) -> str | None:
    """Return the type of the module whose code a folder contains, or None."""
    return next((kind for kind in module_types(folder) if kind.startswith(OWN)), None)


def carried_files(folder: Path) -> list[str]:
    """Return the names of the folder's Python files, which `trust_remote_code` runs; empty if it needs no code."""
    return sorted(file.name for file in folder.glob("*.py")) if own_type(folder) else []


WEIGHTS = {"use_safetensors": True, "dtype": torch.float32}
"""Options of sentence-transformers to load weights in their stored precision, like training."""


def load_saved(folder: Path, device: str = "cpu") -> SentenceTransformer:
    """Load an export or any other sentence-transformers or CLIP-like folder from local safetensors.

    No code of the folder is run: if an export contains code, this package's copy of the code is used instead.
    """
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Normalize, Router

    options: dict[str, Any] = {"local_files_only": True, "model_kwargs": WEIGHTS}
    own = own_type(folder)
    if own is None:
        return SentenceTransformer(str(folder), device=device, **options)
    module = getattr(importlib.import_module(plugins.get("module", own)), own.partition(".")[2])
    if own == WORDS:
        return SentenceTransformer(modules=[module.load(str(folder), local_files_only=True)], device=device)
    router = Router.load(str(folder), module_classes={own: module}, **options)
    about = read_json(folder / ABOUT)
    prompts = {name: about[name] for name in ("prompts", "default_prompt_name")}
    return SentenceTransformer(modules=[router, Normalize()], device=device, **prompts)
