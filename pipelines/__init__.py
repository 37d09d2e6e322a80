"""Scripts: one per method, with its recipes, and one per command."""

from __future__ import annotations

from typing import Any

from docstring_parser import attrdoc


class _Joined(attrdoc.AttributeDocstrings):
    """Attribute docstrings in one line each: tyro keeps the line breaks of the source, so that the help would be ragged."""

    def get_attr_docs(self, component: Any) -> dict[str, tuple[str, str | None, str | None]]:
        found = super().get_attr_docs(component)
        return {name: (" ".join(text.split()), kind, default) for name, (text, kind, default) in found.items()}


attrdoc.AttributeDocstrings = _Joined  # type: ignore[misc]
