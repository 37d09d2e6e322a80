"""Interface of sentence encoders and of their settings, used by training, evaluation and export."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn

from multicse.data.settings import Settings as Settings

SENTENCES = "A sentence encoder: the cosine similarity of its vectors measures how similar the meanings of two texts are."


class CardText(NamedTuple):
    """Parts of a model card that describe the encoder; the card adds method, numbers, data and recipe."""

    what: str
    """Description of the model in one sentence."""
    initialised_from: str
    """Initial weights, as the beginning of a sentence that ends with a verb: "Trained from `x`"."""
    usage: tuple[str, ...]
    """Lines of Python code."""
    notes: str
    """Notes after the usage."""
    bases: tuple[str | None, ...] = ()
    """Folders or model IDs of the initial weights; the card lists the model IDs."""
    pipeline_tag: str = "sentence-similarity"
    """Task under which the Hugging Face Hub lists the model."""
    languages: tuple[str, ...] = ()
    """Language codes from the card of the initial text encoder."""
    form: str = ""
    """Modules of the saved model; `write_export` reads them from the folder."""
    whitened: Mapping[str, Mapping[str, float]] | None = None
    """Scores of the saved model by task and metric if it whitens its vectors; they differ from the scores in training."""


class SentenceEncoder(nn.Module):
    """Encoder of texts, and optionally of images or audio, that a method trains and that is evaluated and exported.

    The defaults are for an encoder of texts only.
    """

    modalities: tuple[str, ...] = ("text",)
    """Supported modalities: ``text``, and ``image`` or ``audio``."""
    layered: bool = False
    """The saved folder is a Hugging Face text model, so its layers can be evaluated separately."""
    logit_factor: Callable[[], float] | None = None
    """Learned factor on cosine similarities, for encoders that have one."""

    def tokenize(self, texts: list[str], max_length: int | None = None) -> dict[str, Tensor]:
        """Tokenise texts, padded to the longest text of the batch.

        Args:
            texts: B texts.
            max_length: Maximum number of tokens, at most the encoder's limit, which is the default.

        Returns:
            ``input_ids`` and ``attention_mask``, (B, L).
        """
        raise NotImplementedError  # the interface: every encoder defines it

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Map ``input_ids`` and ``attention_mask``, (B, L), to sentence vectors, (B, d)."""
        raise NotImplementedError  # the interface: every encoder defines it

    def save(self, folder: str) -> None:
        """Write a folder that `SentenceTransformer(folder)` loads."""
        raise NotImplementedError  # the interface: every encoder defines it

    def card(self, folder: Path) -> CardText:
        """Return the text of the model card for the model that was saved to `folder`."""
        raise NotImplementedError  # the interface: every encoder defines it

    def stack(self) -> list[nn.Module]:
        """Return the embeddings and the layers of the text transformer, first to last; empty without a transformer."""
        return []

    def encode_items(self, items: Sequence[Any]) -> Tensor:
        """Map B images, uint8 (H, W, 3), or audio clips with ``samples`` (T,) and ``rate``, to vectors, (B, d)."""
        raise ValueError(f"this encoder takes {' and '.join(self.modalities)} only")

    def probe_items(self) -> tuple[list[Any], list[Any]]:
        """Return items of the other modality for a test of an export, for `encode_items` and for sentence-transformers."""
        return [], []


class AnyEncoderConfig(Settings):
    """Settings of a sentence encoder of any kind."""

    kind: ClassVar[str]
    """Name of this kind of encoder, for methods that require it (`MethodConfig.encoder_kind`)."""
    layered: ClassVar[bool] = False
    """True if the encoder is a transformer, so a run can set options per layer and an export can whiten its vectors."""

    def find(self) -> None:
        """Raise ValueError, with the setting, if the encoder is not found. Takes no seconds, unless it is downloaded."""

    def read(self) -> Any:
        """Return the properties that methods check, such as ``hidden_size``, without loading weights.

        Raise ValueError, with the setting, if the encoder is not found or not supported.
        """
        raise NotImplementedError  # the interface: every encoder defines it

    def check_vectors(self) -> None:
        """Load the encoder and raise ValueError, with the setting, if its export would give other vectors than training."""

    def load(self, places: Sequence[Path]) -> SentenceEncoder:
        """Load the encoder; `places` are folders that may contain the output of `prepare`."""
        raise NotImplementedError  # the interface: every encoder defines it

    def prepare_cache_key(self) -> dict[str, Any] | None:
        """Return the settings that, with sentences and seed, determine the output of `prepare`; None if it has no output."""
        return None

    def prepare(self, sentences: Callable[[], Iterator[str]], folder: Path, seed: int) -> None:
        """Check the sentences of a run, and write the files that the encoder needs to a folder."""


def usage(options: str = "") -> tuple[str, ...]:
    """Return Python code that loads a model with `options` and encodes two texts."""
    return (
        "from sentence_transformers import SentenceTransformer",
        "",
        f'model = SentenceTransformer("path/to/this/folder"{options})',
        'vectors = model.encode(["A dog runs through the park.", "The stock market fell today."])',
        "print(model.similarity(vectors, vectors))",
    )


def shown(path: str) -> str:
    """Return a path without local folder names: a model ID unchanged, otherwise the name of the folder."""
    return Path(path).name if Path(path).is_absolute() else path


def hub_names(paths: Sequence[str | None]) -> list[str]:
    """Return the paths that are model IDs on the Hugging Face Hub."""
    names = [path for path in dict.fromkeys(paths) if path]
    return [name for name in names if re.fullmatch(r"[\w\-.]+(/[\w\-.]+)?", name) and not Path(name).exists()]
