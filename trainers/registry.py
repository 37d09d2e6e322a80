"""Every method by the name that a recipe gives it: the project's, those of installed packages and of a user's own files."""

from __future__ import annotations

import importlib
import sys
import zlib
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from multicse.data.errors import command
from multicse.trainers.method import MethodConfig

METHODS = {
    "simcse": ".simcse:SimCSEConfig",
    "visualcse": ".nonling:VisualCSEConfig",
    "audiocse": ".nonling:AudioCSEConfig",
    "nonling": ".nonling:NonLingCSEConfig",
    "sgbert": ".sgbert:SGBERTConfig",
    "clip": ".clip:CLIPConfig",
    "gclsr": ".gclsr:GCLSRConfig",
    "mocoutrl": ".mocoutrl:MoCoUTRLConfig",
    "multicse": ".multicse:MultiCSEConfig",
    "mlm": ".pretrain:MaskedLMConfig",
}
GROUP = "multicse.methods"
"""Entry points of installed packages: ``name = "package.module:Config"``."""

_own: dict[str, type[MethodConfig]] = {}
_files: dict[str, str] = {}


def method_config(name: str) -> type[MethodConfig]:
    """The settings of the method of this name. Raises ValueError for one that is not known, with those that are."""
    if name in _own:
        return _own[name]
    place = METHODS.get(name)
    if place is None:
        installed = {point.name: point.value for point in entry_points(group=GROUP)}  # tens of milliseconds
        place = installed.get(name)
        if place is None:
            raise ValueError(
                f"there is no method {name!r}; there are {', '.join([*METHODS, *installed, *_own])}. A method in a file of "
                f"your own is run by: {command('run')} FILE"
            )
    module, _, attribute = place.partition(":")
    found: type[MethodConfig] = getattr(importlib.import_module(module, __package__), attribute)
    return found


def load_file(path: str | Path) -> ModuleType:
    """Run a Python file of the user's own, and register the methods whose settings it defines. Returns its module."""
    return load_source(module_of(path), Path(path).read_text(encoding="utf-8"), str(path))


def module_of(path: str | Path) -> str:
    """The name of the module that such a file becomes: another one for every file, as a worker has no folders to tell them
    apart by."""
    return f"own_{Path(path).stem}_{zlib.crc32(str(path).encode()):08x}"


def load_source(name: str, source: str, path: str | None = None) -> ModuleType:
    """The same of the file's text, for a worker to which the file itself has not come."""
    module = ModuleType(name)
    module.__file__ = path
    sys.modules[name] = module
    exec(compile(source, path or f"<{name}>", "exec"), module.__dict__)
    _files[name] = source
    for value in list(vars(module).values()):
        if isinstance(value, type) and issubclass(value, MethodConfig) and value.__module__ == name:
            _own[value.model_fields["name"].default] = value
    return module


def loaded() -> dict[str, str]:
    """Name and text of every file that `load_file` has run: what workers give to `load_source`."""
    return dict(_files)
