"""Exports that transformers has no architecture for bring their Python along: what they carry, and how all are loaded."""

from __future__ import annotations

import filecmp
import importlib
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:  # seconds, which training does not need before an export
    from sentence_transformers import SentenceTransformer


class ExportError(ValueError):
    """A checkpoint that cannot be exported, a place where it may not go, or an export with code that is not ours."""


class Carried(NamedTuple):
    """What a folder with code is made of."""

    module: str
    """Module of this package and name of the class of its one sentence-transformers module."""
    files: dict[str, Path]
    """Files of the folder that hold code, and where each is copied from; the first holds the class."""


ROOT = Path(__file__).resolve().parents[1]
DUAL, WORDS = "multicse_dual.DualEncoder", "multicse_words.WordModule"
"""What modules.json says of such folders."""
CARRIED = {
    DUAL: Carried(
        "dual_module:DualEncoder",
        {
            "multicse_dual.py": ROOT / "models" / "dual_module.py",
            "resnet.py": ROOT / "models" / "resnet.py",
            "preprocess.py": ROOT / "data" / "streams" / "preprocess.py",
        },
    ),
    WORDS: Carried("word_module:WordModule", {"multicse_words.py": ROOT / "models" / "word_module.py"}),
}


def save_with_code(module: Any, folder: Path, kind: str) -> None:
    """Write a folder of one module that ``SentenceTransformer(folder, trust_remote_code=True)`` loads; `kind` is of
    `CARRIED`."""
    from sentence_transformers import SentenceTransformer

    SentenceTransformer(modules=[module], device="cpu", similarity_fn_name="cosine").save(
        str(folder), create_model_card=False
    )
    for name, ours in CARRIED[kind].files.items():
        shutil.copyfile(ours, folder / name)
    modules = [{"idx": 0, "name": "0", "path": "", "type": kind}]
    (folder / "modules.json").write_text(json.dumps(modules, indent=2) + "\n", encoding="utf-8")


def carries_code(folder: Path) -> bool:
    """Whether a folder brings code, so that this project's own code, byte for byte, is all that `trust_remote_code` runs of
    it. Raises ExportError for a folder with other code."""
    kinds = _kinds(folder)
    found = [kind for kind, (_, files) in CARRIED.items() if kind in kinds or (folder / next(iter(files))).is_file()]
    other = [] if kinds == found or not found else ["modules.json"]
    for name, ours in ((name, ours) for kind in found for name, ours in CARRIED[kind].files.items()):
        if not (folder / name).is_file() or not filecmp.cmp(folder / name, ours, shallow=False):
            other.append(name)
    if other:
        raise ExportError(
            f"{folder}: its code is not this project's ({', '.join(other)} differs from what is written now), so it is not "
            "run; export again, or load it yourself with trust_remote_code after reading it"
        )
    return bool(found)


def load_saved(folder: Path, device: str = "cpu") -> SentenceTransformer:
    """The model of an export, or of any other sentence-transformers or CLIP-like folder, from local safetensors.

    No code of the folder is run: of one that brings its own, this project's copy is taken, whatever the folder's says.
    """
    from sentence_transformers import SentenceTransformer

    kind = next(iter(_kinds(folder)), None)
    if kind in CARRIED:
        place, _, name = CARRIED[kind].module.partition(":")
        module = getattr(importlib.import_module(f".{place}", __package__), name).load(str(folder), local_files_only=True)
        return SentenceTransformer(modules=[module], device=device)
    return SentenceTransformer(str(folder), device=device, local_files_only=True, model_kwargs={"use_safetensors": True})


def load_by_its_code(folder: Path) -> SentenceTransformer:
    """The model of an export as its users load it, on the CPU: with the folder's own code, which `carries_code` has
    compared. Raises ExportError for other code."""
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu", trust_remote_code=carries_code(folder))


def _kinds(folder: Path) -> list[Any]:
    file = folder / "modules.json"
    return [entry.get("type") for entry in json.loads(file.read_text(encoding="utf-8"))] if file.is_file() else []
