"""What the model card of a dual encoder says of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from data.streams.inputs import AudioInput
from models.carried_code import CARRIED, DUAL, carries_code
from models.hub_folders import languages_of
from models.sentence_encoder import CardText, shown

if TYPE_CHECKING:
    from models.dual_encoder import DualEncoder

THINGS = {"image": "pictures", "audio": "sounds"}
ITEMS = {
    "image": ("from PIL import Image", 'item = Image.open("dog.jpg")', "item"),
    "audio": (
        "import soundfile",
        'samples, rate = soundfile.read("dog.wav")  # mono: samples (T,)',
        '{"array": samples, "sampling_rate": rate}',
    ),
}
"""How a program gets an item and what it hands over: an import, a line, an expression."""


def card_of_dual(dual: DualEncoder, folder: Path) -> CardText:
    """Of `dual`, saved to `folder`."""
    modality = dual.modalities[1]
    code, things = carries_code(folder), THINGS[modality]
    imported, opened, item = ITEMS[modality]
    return CardText(
        what=f"An encoder of texts and {things}: vectors of one space, whose cosine says how well a text describes one of "
        f"the {things}, or how close two texts are.",
        began=_began(dual, things),
        usage=(
            imported,
            "from sentence_transformers import SentenceTransformer",
            "",
            f'model = SentenceTransformer("path/to/this/folder"{", trust_remote_code=True" if code else ""})',
            opened,
            f"items = model.encode([{item}])",
            'texts = model.encode(["a dog", "a cat"])',
            "print(model.similarity(items, texts))",
        ),
        notes=_with_code() if code else _native(dual),
        pipeline_tag="feature-extraction",
        bases=(dual.text.origin if dual.text.path else None, dual.tower_path),
        languages=languages_of(dual.text.path),
    )


def _began(dual: DualEncoder, things: str) -> str:
    text, tower = shown(dual.text.origin or "unknown"), dual.tower_path and shown(dual.tower_path)
    if dual.text.path is None:
        other = f" and, for {things}, the weights of `{tower}`" if tower else ""
        return f"From random weights, with the tokenizer of `{text}`{other}, trained"
    if tower == text:
        return f"Trained from `{text}`"
    return f"Trained from `{text}` and, for {things}, " + (f"`{tower}`" if tower else "random weights")


def _native(dual: DualEncoder) -> str:
    model = "ClapModel" if isinstance(dual.input, AudioInput) else "CLIPModel"
    rate = f" Sounds must have {dual.input.rate:,} samples per second." if isinstance(dual.input, AudioInput) else ""
    return (
        f"`{model}.from_pretrained` and `AutoProcessor.from_pretrained` load the same folder.{rate} A further run takes its "
        "text half with `--encoder.path` and the other one with `--method.tower.path`."
    )


def _with_code() -> str:
    files = ", ".join(f"`{name}`" for name in CARRIED[DUAL].files)
    return (
        f"The folder brings Python of its own ({files}), which `trust_remote_code=True` runs: read it first if the folder "
        "has come from somewhere else. The text half alone needs none of it: "
        '`SentenceTransformer("path/to/this/folder/text")` gives the same vectors of texts. A further run takes the halves '
        "with `--encoder.path .../text` and `--method.tower.path .../tower` (a ResNet begins anew)."
    )
