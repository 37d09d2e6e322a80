"""Inputs of a run: digests of everything that it reads and that decides its result, and what changed between two of them.

A digest depends on content only, not on places and times: an input may be moved, copied or touched.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib.util
import json
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import huggingface_hub
from fsspec.implementations.local import LocalFileSystem
from pydantic import BaseModel

from multicse import plugins
from multicse.data import shard_urls
from multicse.data.settings import Mark, marked
from multicse.data.shard_urls import filesystem, split_options
from multicse.data.shards import ShardSet
from multicse.data.text_files import read_text
from multicse.evaluation import registry as tasks
from multicse.evaluation.registry import make_tasks
from multicse.trainers.recipe import Recipe, local_task

WHOLE = 2**26
"""Bytes up to which a file is hashed whole. If it is larger, `BLOCKS` evenly spaced blocks of it are hashed; if it contains
safetensors, also the header and the beginning of every tensor."""
BLOCKS, BLOCK, BEGINNING = 64, 2**16, 2**12


def inputs(recipe: Recipe) -> dict[str, str]:
    """Return the digests of all inputs of a run by the name that messages show; see `difference`.

    They are the samples of every stream, the data of every evaluation task, files, folders and models that settings name,
    and the text of the user's own Python files. An input that cannot be read is left out: a finished run does not need it,
    and before an unfinished run starts, `checks.check_recipe` reports it.

    Args:
        recipe: Recipe with absolute paths.
    """
    found, unread = dict[str, str](), contextlib.suppress(OSError, ValueError)
    for name in recipe.streams:
        with unread:
            found[f"streams.{name}.shards"] = _shards(recipe.shards(name))
    for setting, place in _places(recipe):
        with unread:
            if (digest := _place(place)) is not None:
                found[setting] = digest
    evaluation = recipe.evaluation
    for name in filter(None, (evaluation.select, *evaluation.watch, *evaluation.final)):
        with unread:
            (task,) = make_tasks([name], evaluation.data)
            found[f"evaluation task {local_task(name)}"] = getattr(task, "hash", None) or _of(*task.sentences())
    return found | {file: _of(text) for file, text in _sources(recipe).items()}


def start_over(option: str) -> str:
    """Return the ways out for a run, which has an option that starts over."""
    return f"set another run.output_dir, or start over: {option}"


def difference(before: Mapping[str, str], now: Mapping[str, str], run: str, ways: str) -> str | None:
    """Return the message that names the inputs which have changed, or None. Inputs in only one of both are not compared.

    Args:
        before: Inputs when the run was started.
        now: Inputs now.
        run: The run, for the message, for example ``the run in runs/demo``.
        ways: The ways out besides restoring the inputs, for example ``or give another --output``.
    """
    names = [name for name, digest in now.items() if digest != before.get(name, digest)]
    if not names:
        return None
    verb, them = ("has", "it") if len(names) == 1 else ("have", "them")
    return f"{', '.join(names)} {verb} changed since {run} was started. Restore {them}, {ways}"


def _of(*texts: str) -> str:
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()


def _shards(shards: ShardSet) -> str:
    """Return the digest of samples. `dataset.json` has the hashes of packed shards; others are read."""
    contents = [_unlisted(split_options(shard.url)[0]) for shard in shards.shards if shard.sha256 is None]
    return _of(shards.digest, *contents) if contents else shards.digest


def _unlisted(url: str) -> str:
    fs, path = filesystem(url)
    return digest_of(Path(path)) if isinstance(fs, LocalFileSystem) else str(fs.info(path).get("ETag"))


def places(recipe: Recipe) -> Iterator[tuple[str, str, str]]:
    """Yield all paths, URLs and models that a recipe reads, each with its setting and the kind of the mark.

    A user's settings without a mark count as places if they are absolute paths.
    """
    marks = {path: mark for path, mark, _ in marked(recipe)}
    parts = {"shards": shard_urls.places, "task": tasks.places, "place": lambda text: [text], "machine": lambda text: []}
    for setting, value in recipe.flat().items():
        mark = marks.get(setting, Mark("place"))
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and text not in mark.words and (setting in marks or Path(text).is_absolute()):
                yield from ((setting, mark.kind, place) for place in parts[mark.kind](text))


def _places(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Yield the settings that name a file, a folder or a model, with their values; the data of tasks are the tasks' own."""
    for setting, kind, place in places(recipe):
        if kind == "place" and setting != "evaluation.data":
            yield setting, place
    for name, stream in recipe.streams.items():
        with contextlib.suppress(ValueError):  # not found
            yield from [(f"streams.{name}.{setting}", place) for setting, place in stream.defaults().items()]


def _place(place: str) -> str | None:
    """Return the digest of a file or folder, or the commit of a model of the Hugging Face Hub in the cache."""
    path = Path(place).expanduser()
    if path.exists():
        return digest_of(path)
    cached = huggingface_hub.try_to_load_from_cache(place, "config.json")
    return f"commit:{Path(cached).parent.name}" if isinstance(cached, str) else None


def digest_of(path: Path) -> str:
    """Return the digest of a file, or of the files of a folder without model cards and hidden files.

    It starts with ``sampled-sha256:`` if a file is so large that only parts of it are hashed (`WHOLE`), otherwise with
    ``sha256:``.
    """
    if path.is_dir():
        names = sorted(file.relative_to(path) for file in path.rglob("*") if file.is_file() and file.suffix != ".md")
        files = [path / name for name in names if not any(part.startswith((".", "__pycache__")) for part in name.parts)]
    else:
        files = [path]
    stats = [file.stat() for file in files]
    parts = [_file(str(file), stat.st_size, stat.st_mtime_ns) for file, stat in zip(files, stats, strict=True)]
    sampled = "sampled-" if any(stat.st_size > WHOLE for stat in stats) else ""
    return f"{sampled}sha256:{_of(*(f'{file.relative_to(path)} {part}' for file, part in zip(files, parts, strict=True)))}"


@lru_cache(maxsize=4096)
def _file(path: str, size: int, time: int) -> str:
    """Return the digest of a file, which is read again only if its size or time changes."""
    with open(path, "rb") as file:
        if size <= WHOLE:
            return hashlib.file_digest(file, "sha256").hexdigest()
        digest = hashlib.sha256(str(size).encode())
        blocks = [((size - BLOCK) * i // (BLOCKS - 1), BLOCK) for i in range(BLOCKS)]
        if path.endswith(".safetensors"):
            first = 8 + int.from_bytes(file.read(8), "little")
            digest.update(header := file.read(first - 8))
            tensors = json.loads(header)
            tensors.pop("__metadata__", None)
            blocks += [(first + tensor["data_offsets"][0], BEGINNING) for tensor in tensors.values()]
        for start, count in blocks:
            file.seek(start)
            digest.update(file.read(count))
        return digest.hexdigest()


def _sources(recipe: Recipe) -> dict[str, str]:
    """Return the text of the user's own files by name: of methods and other settings, of callbacks, and what they import."""
    found = dict[str, str]()
    todo = [kind.__module__ for part in _parts(recipe) for kind in type(part).__mro__]
    for place in (name.rpartition(":")[0] for name in recipe.run.callbacks):
        if place.endswith(".py") and Path(place).is_file():
            found[Path(place).name] = read_text(place)
        else:
            todo.append(plugins.module_of(place) if place.endswith(".py") else place)
    todo += [name for text in found.values() for name in _imported(text)]
    seen = set[str]()
    while todo:
        if (module := todo.pop()) not in seen:
            seen.add(module)
            with contextlib.suppress(AttributeError, ValueError, OSError, SyntaxError):  # no such module, or without a file
                if (own := _source(module)) is not None:
                    found[own[0]] = own[1]
                    todo += _imported(own[1])
    return found


def _parts(value: Any) -> Iterator[BaseModel]:
    if isinstance(value, BaseModel):
        yield value
        value = dict(value)
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from _parts(item)


def _source(module: str) -> tuple[str, str] | None:
    """Return file name and text of a module, or None for MultiCSE, the standard library and installed packages."""
    if (text := plugins.loaded().get(module)) is not None:
        return plugins.file_name(module), text
    file = _file_of(module)
    if file is None or file.suffix != ".py" or {"site-packages", "dist-packages"} & {*file.parts}:
        return None
    return file.name, read_text(file)


def _file_of(module: str) -> Path | None:
    """Return the file of a module, which is not imported."""
    top, *rest = module.split(".")
    if top == "multicse" or top in sys.stdlib_module_names:
        return None
    if module in sys.modules:
        return Path(sys.modules[module].__file__ or "")
    if (spec := importlib.util.find_spec(top)) is None:
        return None
    if not rest:
        return Path(spec.origin or "")
    found = [Path(folder, *rest) for folder in spec.submodule_search_locations or ()]
    files = [file for place in found for file in (place.with_suffix(".py"), place / "__init__.py")]
    return next((file for file in files if file.is_file()), None)


def _imported(text: str) -> Iterator[str]:
    """Yield the modules that a file imports."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
