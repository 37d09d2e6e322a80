"""What a wheel holds: the rooms as packages of `multicse`, which a user's own ``data/`` or ``models/`` cannot be taken for.

In a clone modules import each other as ``from data.errors import ...``; in a wheel as ``from multicse.data.errors import
...``, and what they tell to type is the installed command: ``multicse pack`` in place of ``python pipelines/pack.py``.
"""

from __future__ import annotations

import re
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOMS = ("data", "models", "evaluation", "trainers", "tune_spaces", "pipelines")
IMPORT = re.compile(rf"^( *from )(?=(?:{'|'.join(ROOMS)})\b[\w.]* import )", re.MULTILINE)
COMMAND = re.compile(r"(?:python )?\bpipelines/(\w+|\{[^}]*\})\.py")


class Wheel(build_py):
    """Copies modules with the names that they have in a wheel."""

    def build_module(self, module: str, module_file: str, package: str) -> tuple[str, bool]:
        place, copied = super().build_module(module, module_file, package)
        text = Path(place).read_text(encoding="utf-8")
        Path(place).write_text(COMMAND.sub(r"multicse \1", IMPORT.sub(r"\1multicse.", text)), encoding="utf-8")
        return place, copied


packages = find_packages(include=[pattern for room in ROOMS for pattern in (room, f"{room}.*")])
setup(
    packages=["multicse", *(f"multicse.{name}" for name in packages)],
    package_dir={f"multicse.{room}": room for room in ROOMS},
    package_data={"multicse.models": ["small-bert-en/**"]},
    cmdclass={"build_py": Wheel},
)
