"""What a sentence encoder says of itself, so that training, evaluation and export need not know its kind."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

SENTENCES = "A sentence encoder: texts to vectors whose cosine says how close their meanings are."


class CardText(NamedTuple):
    """What a model card says of the encoder; the card adds method, numbers, data and recipe."""

    what: str
    """One sentence: what the model does."""
    initialised_from: str
    """What training began with, up to the verb: "Trained from `x`"."""
    usage: tuple[str, ...]
    """Lines of Python."""
    notes: str
    """What else a user should know, behind the usage."""
    bases: tuple[str | None, ...] = ()
    """Where the weights came from; the card lists those that are names on the Hugging Face hub."""
    pipeline_tag: str = "sentence-similarity"
    """What the hub lists it under."""
    languages: tuple[str, ...] = ()
    """Codes of the languages that the text encoder it began with is for, as that one's card says."""
    form: str = ""
    """What the saved model is made of; `write_export` reads it off the folder."""
    whitened: Mapping[str, Mapping[str, float]] | None = None
    """Scores of the saved model by task and metric, where it whitens its vectors: then not those of the trained weights."""


class SentenceEncoder(nn.Module):
    """Texts to vectors, perhaps pictures or sounds as well: what a method trains, and what is evaluated and exported.

    The defaults are those of an encoder of texts alone.
    """

    modalities: tuple[str, ...] = ("text",)
    """What it encodes: ``text``, and ``image`` or ``audio``."""
    layered: bool = False
    """Its folder is a Hugging Face text model, whose layers can be scored one by one."""
    logit_factor: Callable[[], float] | None = None
    """The factor on cosines that the encoder has learned, where it has one."""

    def tokenize(self, texts: list[str], max_length: int | None = None) -> dict[str, Tensor]:
        """``input_ids`` and ``attention_mask`` (B, L), padded to the longest text and cut at `max_length` or the limit."""
        raise NotImplementedError  # the interface: every encoder defines it

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Sentence vectors (B, d) of tokenised texts."""
        raise NotImplementedError  # the interface: every encoder defines it

    def save(self, folder: str) -> None:
        """Write a folder that `SentenceTransformer(folder)` loads."""
        raise NotImplementedError  # the interface: every encoder defines it

    def card(self, folder: Path) -> CardText:
        """What the card of the model that was saved to `folder` says of it."""
        raise NotImplementedError  # the interface: every encoder defines it

    def stack(self) -> list[nn.Module]:
        """The embeddings of its text transformer and then its layers, from the first to the last; none without one."""
        return []

    def encode_items(self, items: Sequence[Any]) -> Tensor:
        """Vectors (B, d) of pictures, uint8 (H, W, 3), or of sounds with ``samples`` (T,) and ``rate``."""
        raise ValueError(f"this encoder takes {' and '.join(self.modalities)} only")

    def probe_items(self) -> tuple[list[Any], list[Any]]:
        """Some items of the other modality, to compare an export by: as `encode_items` takes them and as
        sentence-transformers does."""
        return [], []


class Settings(BaseModel):
    """A frozen part of a recipe; unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class AnyEncoderConfig(Settings):
    """What every kind of encoder is asked before a run."""

    kind: ClassVar[str]
    """What methods call it that train such an encoder (`MethodConfig.encoder_kind`)."""
    layered: ClassVar[bool] = False
    """Whether it has a transformer's layers, which a run can treat one by one and whose vectors an export can whiten."""

    def read(self) -> Any:
        """What decides whether a method can train the encoder, such as its ``hidden_size``, from its files.

        Raises ValueError, which begins with the setting, when there is no such encoder.
        """
        raise NotImplementedError  # the interface: every encoder defines it

    def load(self, places: Sequence[Path]) -> SentenceEncoder:
        """The encoder itself; `places` are the folders in which a run leaves what it prepared."""
        raise NotImplementedError  # the interface: every encoder defines it

    def prepare_cache_key(self) -> dict[str, Any] | None:
        """Return the settings that decide, with sentences and seed, what `prepare` makes; None if it makes nothing."""
        return None

    def prepare(self, sentences: Callable[[], Iterator[str]], folder: Path, seed: int) -> None:
        """Look at the sentences of a run, and make in `folder` what the encoder needs of them. Raises ValueError."""


def usage(options: str = "") -> tuple[str, ...]:
    """Python that encodes two texts with a model that is loaded with `options`."""
    return (
        "from sentence_transformers import SentenceTransformer",
        "",
        f'model = SentenceTransformer("path/to/this/folder"{options})',
        'vectors = model.encode(["A dog runs through the park.", "The stock market fell today."])',
        "print(model.similarity(vectors, vectors))",
    )


def shown(path: str) -> str:
    """A path as it may be published: a name on the hub as it is, a folder of this machine by its last name."""
    return Path(path).name if Path(path).is_absolute() else path


def hub_names(paths: Sequence[str | None]) -> list[str]:
    """Those that are names on the Hugging Face hub."""
    names = [path for path in dict.fromkeys(paths) if path]
    return [name for name in names if re.fullmatch(r"[\w\-.]+(/[\w\-.]+)?", name) and not Path(name).exists()]
