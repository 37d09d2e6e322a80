"""Exports that transformers has no architecture for bring their Python along; which folders may be loaded with it."""

from __future__ import annotations

import filecmp
import json
from pathlib import Path

from models import dual_export
from models import word_encoder as words
from models.dual_export import ExportError

FORMS = {dual_export.CLASS: dual_export.CODE, words.CLASS: words.CODE}
"""The type that modules.json names -> the files of such a folder that hold code, and where each is copied from."""


def carries_code(folder: Path) -> bool:
    """Whether a folder brings code, so that this project's own code, byte for byte, is all that `trust_remote_code` runs of
    it. Raises ExportError for a folder with other code."""
    file = folder / "modules.json"
    kinds = [entry.get("type") for entry in json.loads(file.read_text(encoding="utf-8"))] if file.is_file() else []
    found = [kind for kind, code in FORMS.items() if kind in kinds or (folder / next(iter(code))).is_file()]
    if not found:
        return False
    other = [] if kinds == found else [file.name]
    for name, ours in ((name, ours) for kind in found for name, ours in FORMS[kind].items()):
        if not (folder / name).is_file() or not filecmp.cmp(folder / name, ours, shallow=False):
            other.append(name)
    if other:
        raise ExportError(
            f"{folder}: its code is not this project's ({', '.join(other)} differs from what is written now), so it is not "
            "run; export again, or load it yourself with trust_remote_code after reading it"
        )
    return True
