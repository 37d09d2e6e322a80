"""Exports with classes that no library has bring their Python along: which these are, and how all exports are loaded."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # seconds, which training does not need before an export
    from sentence_transformers import SentenceTransformer


class ExportError(ValueError):
    """A checkpoint that cannot be exported, or a place where it may not go."""


RESNET, WORDS = "multicse_resnet.ResNetModule", "multicse_words.WordModule"
"""What a folder calls these classes: the copy of a file in it, and a class in that."""
CARRIED = {RESNET: "resnet_module", WORDS: "word_module"}
"""Modules of this package that hold them. Each class copies its files to the folders that it is saved to."""
ROUTER = "router_config.json"


def module_types(folder: Path) -> list[str]:
    """Types of the modules of a sentence-transformers folder, a Router's included; none for other folders."""
    modules, router = folder / "modules.json", folder / ROUTER
    types = [entry["type"] for entry in json.loads(modules.read_text(encoding="utf-8"))] if modules.is_file() else []
    return [*types, *(json.loads(router.read_text(encoding="utf-8"))["types"].values() if router.is_file() else ())]


def carried_files(folder: Path) -> list[str]:
    """Names of the folder's files of Python, which `trust_remote_code` runs; none where it needs no code."""
    return sorted(file.name for file in folder.glob("*.py")) if CARRIED.keys() & {*module_types(folder)} else []


def load_saved(folder: Path, device: str = "cpu") -> SentenceTransformer:
    """The model of an export, or of any other sentence-transformers or CLIP-like folder, from local safetensors.

    No code of the folder is run: of one that brings its own, this project's copy is taken, whatever the folder's says.
    """
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Normalize, Router

    options: dict[str, Any] = {"local_files_only": True, "model_kwargs": {"use_safetensors": True}}
    own = next((kind for kind in CARRIED if kind in module_types(folder)), None)
    if own is None:
        return SentenceTransformer(str(folder), device=device, **options)
    module = getattr(importlib.import_module(f".{CARRIED[own]}", __package__), own.partition(".")[2])
    if own == WORDS:
        return SentenceTransformer(modules=[module.load(str(folder), local_files_only=True)], device=device)
    router = Router.load(str(folder), module_classes={own: module}, **options)
    return SentenceTransformer(modules=[router, Normalize()], device=device)
