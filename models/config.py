"""The sentence encoder that a run starts from: a transformer, or word vectors."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag


class Settings(BaseModel):
    """A frozen part of a recipe; unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class EncoderConfig(Settings):
    """The sentence encoder a run starts from."""

    path: str
    """A Hugging Face or sentence-transformers folder, or a hub name."""
    pooling: Literal["cls", "cls_before_pooler", "mean", "max", "eot", "avg_top2", "avg_first_last"] | None = None
    """How token vectors become a sentence vector; none: as the folder says, else mean (CLIP: eot)."""
    scratch: bool = False
    """Take configuration and tokenizer of the path and make the weights anew, from the run's seed."""
    hidden_dropout: float | None = Field(None, ge=0, lt=1)
    """Dropout in the layers, which makes the two views of a sentence; none: the model's own (BERT: 0.1)."""
    attention_dropout: float | None = Field(None, ge=0, lt=1)
    """Dropout of the attention weights; none: the model's own."""


class WordEncoderConfig(Settings):
    """Frozen word vectors and convolutions over them (GCLSR). The filters start from the run's seed."""

    vectors: str | None = None
    """A word2vec or GloVe file (.bin, .txt, .vec, with or without .gz), or a folder of word vectors. None: trained on the
    run's own sentences before it begins."""
    dim: int = Field(300, gt=0)
    """Length of a vector, where they are trained; a file says its own."""
    epochs: int = Field(20, gt=0)
    """Passes over the sentences, where vectors are trained."""
    max_words: int = Field(64, gt=0)
    """Words of a sentence, which is cut or padded to them."""
    regions: tuple[int, ...] = (1, 1, 1, 6, 15, 20)
    """Words that the filters of each bank see at once."""
    filters: int = Field(300, gt=0)
    """Filters of a bank; the sentence vector has as many dimensions as all banks have filters."""
    letters: Literal["a-z", "any"] = "a-z"
    """What belongs to a word; any: the letters of every script."""
    unknown: Literal["fixed", "redrawn"] = "fixed"
    """The random vector of a word that has none. Fixed: always the same one. Redrawn, as the released code: another one
    every time a sentence is read; in evaluation the sentence decides, so that scores repeat."""


def _kind(given: Any) -> str:
    names = given if isinstance(given, dict) else type(given).model_fields if isinstance(given, Settings) else {}
    return "words" if "path" not in names and ("vectors" in names or "regions" in names) else "transformer"


AnyEncoder = Annotated[
    Annotated[EncoderConfig, Tag("transformer")] | Annotated[WordEncoderConfig, Tag("words")], Discriminator(_kind)
]
"""Told apart by their fields."""
