"""Registry of everything that has a name in recipes and commands, and that the papers' kit, a package or a user may add to.

A thing is added by `add`; classes of settings (`Settings.plugin`) are added when they are defined. Things are defined in the
modules of a folder (`ROOMS`), which are imported when a thing is looked up; in an installed package, which names them in an
entry point of the group ``multicse.KINDS``, such as ``multicse.methods``; or in a user's file (`load_file`).

kind             thing
---------------  ------------------------------------------------------------------------------------------------------
``method``       settings of a training method
``stream``       settings of a stream
``tower``        settings of an encoder of images or audio
``modality``     settings of the patches of another modality, and of the contrastive loss on its stream
``module``       module whose code an export contains, by its type in modules.json: the name of our module
``task``         kind of evaluation task, ``KIND:PLACE``
``family``       evaluation tasks with fixed names, which read the data folder
``group``        names of tasks that are evaluated together (``sts``)
``layout``       form of the data folder
``templates``    prompt templates of zero-shot classification
``pooling``      pooling over the layers of a transformer, by a regular expression of its names
``word pooling`` pooling over word vectors
``post``         post-processing of embeddings, which is fitted on sentences
``figure``       figures of a model on some tasks
``scatter``      figures of several models on a task
``style``        form of the table of a comparison
"""

from __future__ import annotations

import sys
import zlib
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from multicse.data.errors import command, did_you_mean

ROOT = Path(__file__).parent
OWN = {"method": "trainers/*.py", "stream": "*/streams/*.py", "tower": "*/*towers.py", "modality": "trainers/*.py"}
TASKS = ("task", "family", "group", "layout", "templates")
ROOMS = OWN | dict.fromkeys(TASKS, "*/tasks/*.py") | {"style": "*/styles.py"}
"""Modules that define things of a kind."""
PLUGINS = "*/plugin.py"
"""Modules that add things of several kinds."""

_things: dict[str, dict[str, Any]] = defaultdict(dict)


def add(kind: str, name: str, thing: Any) -> None:
    """Register a thing under a name; it replaces a thing with this name."""
    _things[kind][name] = thing


def every(kind: str) -> Mapping[str, Any]:
    """Return all things of a kind by name."""
    _load(kind)
    return MappingProxyType(_things[kind])


def get(kind: str, name: str) -> Any:
    """Return a thing by name; raise ValueError, which lists all names, if there is none with this name."""
    if name not in _things[kind] and kind in ROOMS:
        _import(ROOMS[kind])  # before `every`, which takes seconds
    if name not in _things[kind] and name not in (found := every(kind)):
        own = f". Run a file of your own that defines it: {command('run')} FILE" if kind in OWN else ""
        known = f" Choose from {', '.join(found)}" if found else ""
        raise ValueError(f"unknown {kind} {name!r}.{did_you_mean(name, found)}{known}{own}")
    return _things[kind][name]


@cache
def _import(pattern: str) -> None:
    for file in sorted(ROOT.glob(pattern)):
        import_module(".".join(("multicse", *file.relative_to(ROOT).with_suffix("").parts)))


@cache
def _load(kind: str) -> None:
    for pattern in (*filter(None, [ROOMS.get(kind)]), PLUGINS):
        _import(pattern)
    kinds = f"{kind.removesuffix('y')}ies" if kind.endswith("y") else f"{kind}s"
    for point in entry_points(group=f"multicse.{kinds}"):
        try:
            add(kind, point.name, point.load())
        except Exception as error:  # of the package's code
            raise ValueError(f"the {kind} {point.name!r} of an installed package cannot be imported: {error!r}") from error


# ------------------------------------------------------------------------------------------------------------ files of users

_files: dict[str, str] = {}


def load_file(path: str | Path) -> ModuleType:
    """Execute a user's Python file, which registers the classes of settings that it defines, and return its module."""
    from multicse.data.text_files import read_text

    return load_source(module_of(path), read_text(path), str(path))


def own_module(path: str | Path) -> ModuleType:
    """Return the module of a user's Python file, which is executed again if its text has changed.

    On workers it is the module that `load_source` has made from the driver's text.
    """
    from multicse.data.text_files import read_text

    name, file = module_of(path), Path(path)
    if name in sys.modules and sys.modules[name].__file__ is None:
        return sys.modules[name]
    changed = file.is_file() and _files.get(name) != read_text(file)
    return load_file(path) if changed or name not in sys.modules else sys.modules[name]


def module_of(path: str | Path) -> str:
    """Return the module name of a user file. It contains a hash of the path, so that files with equal names differ."""
    return f"own_{Path(path).stem}_{zlib.crc32(str(path).encode()):08x}"


def file_name(module: str) -> str:
    """Return the file name of a module that `module_of` has named."""
    return f"{module.removeprefix('own_').rpartition('_')[0]}.py"


def load_source(name: str, source: str, path: str | None = None) -> ModuleType:
    """Execute the source text of a user file, also on workers, which lack the file.

    Args:
        name: Module name (`module_of`).
        source: Text of the file.
        path: Path of the file, if it exists on this machine.
    """
    module = ModuleType(name)
    module.__file__ = path
    sys.modules[name] = module
    try:
        exec(compile(source, path or f"<{name}>", "exec"), module.__dict__)
    except BaseException:
        del sys.modules[name]  # an incomplete module would be used when the file has been corrected
        raise
    _files[name] = source
    return module


def loaded() -> dict[str, str]:
    """Return module name and text of every file that `load_file` has executed, which workers pass to `load_source`."""
    return dict(_files)
