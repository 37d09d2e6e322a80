"""Registry of methods by name: from the project, from installed packages and from user files."""

from __future__ import annotations

import importlib
import sys
import zlib
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from multicse.data.errors import command
from multicse.data.text_files import read_text
from multicse.trainers.method import MethodConfig

METHODS = {
    "simcse": ".simcse:SimCSEConfig",
    "simcse-mixed": ".simcse:MixedSimCSEConfig",
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
"""Entry point group of installed packages: ``name = "package.module:Config"``."""

_own: dict[str, type[MethodConfig]] = {}
_files: dict[str, str] = {}


def method_config(name: str) -> type[MethodConfig]:
    """Return the settings class of a method; raise ValueError, which lists all methods, if none has this name."""
    if name in _own:
        return _own[name]
    place = METHODS.get(name)
    if place is None:
        installed = {point.name: point.value for point in entry_points(group=GROUP)}  # tens of milliseconds
        place = installed.get(name)
        if place is None:
            raise ValueError(
                f"method {name!r} not found; known methods: {', '.join([*METHODS, *installed, *_own])}. Run a method in "
                f"your own file with: {command('run')} FILE"
            )
    module, _, attribute = place.partition(":")
    found: type[MethodConfig] = getattr(importlib.import_module(module, __package__), attribute)
    return found


def load_file(path: str | Path) -> ModuleType:
    """Execute a user's Python file, register the methods whose settings it defines, and return its module."""
    return load_source(module_of(path), read_text(path), str(path))


def own_module(path: str | Path) -> ModuleType:
    """Return the module of a user's Python file, which is executed again if its text has changed.

    On workers it is the module that `load_source` has made from the driver's text.
    """
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
    """Register the methods defined in the source text of a user file, for workers, which lack the file.

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
    own = [v for v in vars(module).values() if isinstance(v, type) and issubclass(v, MethodConfig) and v.__module__ == name]
    _files[name] = source
    _own.update({value.model_fields["name"].default: value for value in own})
    return module


def loaded() -> dict[str, str]:
    """Return module name and text of every file that `load_file` has executed, which workers pass to `load_source`."""
    return dict(_files)
