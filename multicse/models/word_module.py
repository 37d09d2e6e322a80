"""Sentence encoder of GCLSR: frozen word vectors, convolutions, and the maximum over time.

Every export of such a model contains a copy of this file, so it requires torch and sentence-transformers, but not the
project that wrote it. Use:

    model = SentenceTransformer(folder, trust_remote_code=True)
    model.encode(["a dog barks"])

The folder contains the words, their vectors, the filters, and the settings.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from sentence_transformers.base.modules import InputModule
from torch import Tensor, nn

CONFIG, WORDS, VECTORS, FILTERS = "word_config.json", "words.txt", "vectors.safetensors", "model.safetensors"

HUB_OPTIONS = ("token", "cache_folder", "revision", "local_files_only")
EPSILON = 1e-9
"""Score of a word with padding, as in the released code of Algorithm 1."""


# ---- text to word ids ------------------------------------------------------------------------------------------------


class _Letters(dict[int, str]):
    """A table for `str.translate` that removes apostrophes and replaces other characters than letters by blanks."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        inside = unicodedata.category(char)[0] in "LM" or char in "\u200c\u200d"  # joiners occur inside words
        self[code] = "" if char in "'’" else char if inside else " "
        return self[code]


_ANY = _Letters()


def split(text: str, letters: str = "a-z") -> list[str]:
    """Split a text into lower-case words, without apostrophes and at all characters that are not letters.

    Args:
        text: Text.
        letters: ``a-z``, as in GCLSR's released code, or ``any`` for the letters of every script, with their marks.
    """
    if letters == "any":
        return text.lower().translate(_ANY).split()
    return re.findall("[a-z]+", text.lower().replace("'", "").replace("’", ""))


def word_hash(word: str) -> int:
    """Hash a word to a number below 2^56."""
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=7).digest(), "big")


def hashed_vectors(hashes: Tensor, dim: int) -> Tensor:
    """Make vectors for words without a vector, uniform in [-b, b) with b = sqrt(3 / dim), which gives a length of about 1.

    The components are splitmix64 of a counter that starts at the hash, so they are equal on every device.

    Args:
        hashes: Hashes of the words, int64 (...).
        dim: Length of a vector, d.

    Returns:
        float32 (..., d).
    """
    x = hashes[..., None] * (0xD1342543DE82EF95 - 2**64)  # as signed numbers
    x = x + torch.arange(1, dim + 1, device=hashes.device) * (0x9E3779B97F4A7C15 - 2**64)
    x = (x ^ _shifted(x, 30)) * (0xBF58476D1CE4E5B9 - 2**64)
    x = (x ^ _shifted(x, 27)) * (0x94D049BB133111EB - 2**64)
    x = x ^ _shifted(x, 31)
    return (_shifted(x, 40).float() / 2**23 - 1) * math.sqrt(3 / dim)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Return x >> bits without the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


# ---- convolution -----------------------------------------------------------------------------------------------------


class TextCNN(nn.Module):
    """Kim's convolution: filters over r words, ReLU, and the maximum over all windows of a sentence padded to `length`.

    Args:
        dim: Length of a word vector, d.
        regions: Sizes r of the banks of filters; (1, 1, 1, 6) is three banks over single words and one over six words.
        filters: Number of filters of a bank.
        length: Number of words to which sentences are padded.
    """

    def __init__(self, dim: int, regions: Sequence[int], filters: int, length: int) -> None:
        super().__init__()
        self.length, self.size = length, len(regions) * filters
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for size in sorted(set(regions)):
            bound = 1 / math.sqrt(size * dim)  # as nn.Conv1d is initialised
            width = filters * list(regions).count(size)
            self.weights.append(torch.empty(size, dim, width).uniform_(-bound, bound))
            self.biases.append(torch.empty(width).uniform_(-bound, bound))

    def forward(self, words: Tensor, lengths: Tensor, padding: Tensor) -> Tensor:
        """Return the maximum of every filter, (B, len(regions) * filters), with the banks in ascending order of their size.

        `words` (B, L, d) are followed by `padding` (d,) from `lengths` (B,) on.
        """
        beyond = torch.arange(words.shape[1], device=words.device) >= lengths[:, None]
        words = torch.where(beyond[..., None], padding, words)
        banks = []
        for weight, bias in zip(self.weights, self.biases, strict=True):
            # Padding for one window of padding only, if `length` allows it: all further windows are equal to it.
            more = min(self.length - words.shape[1], len(weight))
            padded = torch.cat([words, padding.expand(len(words), more, -1)], 1)
            banks.append(F.conv1d(padded.mT, weight.permute(2, 1, 0), bias).amax(2).relu())
        return torch.cat(banks, 1)


# ---- the model -------------------------------------------------------------------------------------------------------


def importance(words: Tensor, mask: Tensor, places: int) -> Tensor:
    """Compute the importance of each word, a_i = sum over j of x_i · x_j / sqrt(d), where pairs with padding count 1e-9.

    Args:
        words: Word vectors, (B, L, d).
        mask: 1 for words, 0 for padding, (B, L).
        places: Length of a sentence with its padding.

    Returns:
        (B, L).

    References:
        GCLSR, Algorithm 1.
    """
    words = words * mask[..., None]
    scores = torch.einsum("bld,bd->bl", words, words.sum(1)) / math.sqrt(words.shape[-1])
    count = mask.sum(1, keepdim=True)
    return torch.where(mask > 0, scores + EPSILON * (places - count), EPSILON * places)


class WordModel(nn.Module):
    """Encoder of sentences: frozen word vectors, optionally attention, and `TextCNN`.

    The table is neither trained nor part of the state dict. It is moved to the device of the first ids; on a CPU it may be
    memory-mapped.

    Args:
        words: V words.
        table: Their vectors, float32 (V, d).
        max_words: Number of words to which sentences are cut and padded.
        regions: Sizes of the banks of filters, in words.
        filters: Number of filters of a bank.
        letters: Letters of words, as in `split`.
        unknown: Vectors of words without a vector: ``fixed`` per word, or ``redrawn`` per occurrence.
        attention: Use attention.
        softmax: Use BERT's attention without parameters instead of GCLSR's.
    """

    def __init__(
        self,
        words: Sequence[str],
        table: Tensor,
        *,
        max_words: int = 64,
        regions: Sequence[int] = (1, 1, 1, 6, 15, 20),
        filters: int = 300,
        letters: str = "a-z",
        unknown: str = "fixed",
        attention: bool = False,
        softmax: bool = False,
    ) -> None:
        super().__init__()
        self.words, self.table = words, table
        self.rows = {word: row for row, word in enumerate(words, 1)}
        self.max_words, self.letters, self.unknown = max_words, letters, unknown
        self.attention, self.softmax = attention, softmax
        self.cut = max_words
        """Number of words that are read of a text; it is still padded to `max_words`."""
        self.filters, self.regions = filters, tuple(regions)
        self.cnn = TextCNN(table.shape[1], regions, filters, max_words)
        self.register_buffer("padding", hashed_vectors(torch.tensor(word_hash("")), table.shape[1]), persistent=False)

    @property
    def hidden_size(self) -> int:
        """Length of a sentence vector."""
        return self.cnn.size

    def tokenize(self, texts: list[str], max_length: int | None = None) -> dict[str, Tensor]:
        """Return ``input_ids`` and ``attention_mask``, (B, L), of the first words of B texts.

        0 is padding, 1 to V are the rows of the table, and larger ids are hashes of words without a vector: of the word
        (``fixed``), or of the word, its place and its sentence (``redrawn``), so that its vector differs between places.
        """
        limit = min(max_length or self.cut, self.cut)
        found = [self._ids(text, limit) for text in texts]
        width = max(map(len, found), default=0) or 1  # without any word, a column of padding
        ids = torch.tensor([row + [0] * (width - len(row)) for row in found], dtype=torch.long).view(len(texts), width)
        return {"input_ids": ids, "attention_mask": (ids > 0).long()}

    def _ids(self, text: str, limit: int) -> list[int]:
        first = len(self.words) + 1
        redrawn = self.unknown == "redrawn"
        return [
            self.rows.get(word) or first + word_hash(f"{word}\n{place}\n{text}" if redrawn else word)
            for place, word in enumerate(split(text, self.letters)[:limit])
        ]

    def look_up(self, ids: Tensor) -> Tensor:
        """Return word vectors (..., d) of ids (...); the vectors of padding are arbitrary.

        In training, ``redrawn`` draws the vectors of unknown words from torch's random numbers.
        """
        if self.table.device != ids.device:
            self.table = self.table.to(ids.device)
        size = len(self.table)
        vectors = self.table[(ids - 1).clamp(0, size - 1)]
        missing = ids > size
        on_cpu = ids.device.type == "cpu"  # a GPU makes vectors for all words: otherwise the host would wait for `missing`
        hashes = (ids[missing] if on_cpu else ids) - (size + 1)
        if self.training and self.unknown == "redrawn":
            hashes = hashes ^ torch.randint(1 << 55, hashes.shape, device=ids.device)
        made = hashed_vectors(hashes, self.table.shape[1]).to(vectors)
        if on_cpu:
            vectors[missing] = made
        else:
            vectors = torch.where(missing[..., None], made, vectors)
        return vectors.to(self.cnn.biases[0].dtype)

    def attended(self, words: Tensor, mask: Tensor) -> Tensor:
        """Apply attention to words: GCLSR's multiplies words by their importance; `softmax` is BERT's, without parameters.

        Args:
            words: Word vectors, (B, L, d).
            mask: 1 for words, 0 for padding, (B, L).

        Returns:
            (B, L, d).
        """
        if not self.softmax:
            return words * importance(words, mask, self.max_words)[..., None]
        scores = words @ words.transpose(1, 2) / math.sqrt(words.shape[-1])
        return scores.masked_fill(mask[:, None] == 0, -1e9).softmax(2) @ words

    def embed(self, words: Tensor, mask: Tensor, attention: bool) -> Tensor:
        """Compute sentence vectors without autocast, because words and padding must be rounded in the same way.

        Args:
            words: Word vectors, (B, L, d).
            mask: 1 for words, 0 for padding, (B, L).
            attention: Use attention.

        Returns:
            (B, d_out).
        """
        padding: Tensor = self.padding  # type: ignore[assignment]  # a buffer
        with torch.autocast(words.device.type, enabled=False):
            if attention:
                words = self.attended(words, mask)
                padding = padding * (EPSILON * self.max_words)
            return self.cnn(words, mask.sum(1), padding)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Return sentence vectors (B, d_out) of tokenised texts."""
        return self.embed(self.look_up(batch["input_ids"]), batch["attention_mask"], self.attention)

    @property
    def settings(self) -> dict[str, Any]:
        """Arguments of the model, except words and vectors."""
        names = ("max_words", "regions", "filters", "letters", "unknown", "attention", "softmax")
        return {name: getattr(self, name) for name in names}


class WordModule(InputModule):
    """`WordModel` as the module of a sentence-transformers model."""

    __module__ = "multicse_words"  # file in a saved folder, by which sentence-transformers finds the class
    config_file_name = CONFIG

    def __init__(self, model: WordModel) -> None:
        super().__init__()
        self.model = model

    @property
    def tokenizer(self) -> Any:
        """None: the model has no tokenizer of transformers."""
        return None

    @property
    def max_seq_length(self) -> int:
        """Largest number of words of a text."""
        return self.model.cut

    @max_seq_length.setter
    def max_seq_length(self, value: int | None) -> None:
        self.model.cut = min(value or self.model.max_words, self.model.max_words)

    def get_embedding_dimension(self) -> int:
        """Return the length of a sentence vector."""
        return self.model.hidden_size

    def preprocess(self, inputs: Sequence[str], prompt: str | None = None, **kwargs: Any) -> dict[str, Any]:
        """Return ids and mask of the texts, each after the prompt."""
        return dict(self.model.tokenize([(prompt or "") + text for text in inputs]))

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Add ``sentence_embedding`` (B, d_out)."""
        return {**features, "sentence_embedding": self.model(features)}

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:
        """Write words, vectors, filters, settings and this file, always as safetensors."""
        folder, model = Path(output_path), self.model
        save_file({"vectors": model.table.detach().cpu().contiguous()}, folder / VECTORS)
        save_file({name: t.detach().cpu().contiguous() for name, t in model.cnn.state_dict().items()}, folder / FILTERS)
        (folder / WORDS).write_bytes("".join(f"{word}\n" for word in model.words).encode())
        (folder / CONFIG).write_text(json.dumps(model.settings, indent=2) + "\n", encoding="utf-8")
        shutil.copyfile(__file__, folder / "multicse_words.py")

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", *args: Any, **kwargs: Any) -> WordModule:
        """Load the module of a folder or of a repository on the Hugging Face Hub."""
        options = {name: value for name, value in kwargs.items() if name in HUB_OPTIONS}
        place = cls.load_dir_path(model_name_or_path, subfolder, **options)
        assert place is not None
        folder = Path(place)
        words = (folder / WORDS).read_bytes().decode().removesuffix("\n").split("\n")  # text mode accepts other line ends
        settings = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        model = WordModel(words, load_file(folder / VECTORS)["vectors"], **settings)
        model.cnn.load_state_dict(load_file(folder / FILTERS))
        return cls(model.eval())
