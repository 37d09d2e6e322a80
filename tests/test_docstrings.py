"""Docstrings of public functions have an `Args:` section: with shapes for arrays, and throughout the API reference."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.conftest import PACKAGE, ROOT

ARRAY = re.compile(r"(?!Callable|dict|Mapping)(.*\W)?(Tensor|ndarray|NDArray)\b")
SHAPE = re.compile(r"\((|\.\.\.|(\.\.\.|[\w .+*/-]+),[^()]*)\)")  # (N, d), (M,), (..., d), (...), or () for a scalar
PACKAGES = ("data", "models", "evaluation", "trainers")
FILES = {
    path: ast.parse(path.read_text("utf-8")) for package in PACKAGES for path in sorted((PACKAGE / package).rglob("*.py"))
}
CLASSES = {node.name: node for tree in FILES.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


REFERENCE = set(re.findall(r"^::: multicse\.([a-z_.]+)", (ROOT / "docs/reference/api.md").read_text("utf-8"), re.M))
"""Modules in the API reference, or prefixes of their objects."""


def public(body: list[ast.stmt]) -> Iterator[ast.FunctionDef]:
    yield from (node for node in body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"))


def inherits(owner: ast.ClassDef, method: str) -> bool:
    """Return True if a base class documents the method."""
    bases = [CLASSES[name] for base in owner.bases if (name := ast.unparse(base)) in CLASSES and name != owner.name]
    return any(
        inherits(base, method) or any(one.name == method and ast.get_docstring(one) for one in public(base.body))
        for base in bases
    )


def complaints(function: ast.FunctionDef, owner: ast.ClassDef | None, reference: bool) -> Iterator[str]:
    given = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    annotations = {one.arg: ast.unparse(one.annotation) for one in given if one.annotation}
    arrays = [name for name, annotation in annotations.items() if ARRAY.match(annotation)]
    text = ast.get_docstring(function) or ""
    if "\nArgs:\n" in text:
        entries = {name: re.search(rf"^    {name}: (.|\n     )*", text, re.M) for name in arrays}
        yield from (f"no shape of {name}" for name, entry in entries.items() if not entry or not SHAPE.search(entry[0]))
    elif (
        (arrays or reference)
        and len(annotations) > 1
        and not (owner and (function.name == "forward" or inherits(owner, function.name)))
    ):
        yield "no Args"


@pytest.mark.parametrize("package", PACKAGES)
def test_arrays_have_shapes(package: str) -> None:
    wrong = []
    for path, tree in FILES.items():
        place = path.relative_to(PACKAGE)
        reference = ".".join(place.with_suffix("").parts) in {name.rstrip(".") for name in REFERENCE}
        classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
        for owner, body in [(None, tree.body), *((one, one.body) for one in classes)]:
            for function in public(body) if place.parts[0] == package else ():
                wrong += [
                    f"{place}:{function.lineno} {function.name}: {text}" for text in complaints(function, owner, reference)
                ]
    assert not wrong, "\n".join(wrong)
