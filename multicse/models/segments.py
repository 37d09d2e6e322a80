"""Token types (segments) of single texts: XLNet's first segment is not the one of its classification token, for example."""

from __future__ import annotations

import inspect
from itertools import takewhile
from typing import Any, NamedTuple

import torch
from torch import Tensor

SAMPLES = ("a dog", "", "A longer text, of 12 words: the cat sleeps in the big park.", "犬が走る", "a " * 40)
NAME = "token_type_ids"


class Segments(NamedTuple):
    """Token types that a tokenizer gives the tokens of a text, by position."""

    first: tuple[int, ...]
    """Types of the special tokens before the text."""
    text: int
    """Type of the tokens of the text."""
    last: tuple[int, ...]
    """Types of the special tokens after the text."""


def segments_of(tokenizer: Any, model: Any) -> Segments | None:
    """Return the types that a model gets from a tokenizer, or None if they are all 0 or the model has no types.

    Args:
        tokenizer: Tokenizer of transformers.
        model: Model, or its class.

    Raises:
        ValueError: If the types do not follow from the position of the tokens.
    """
    if NAME not in tokenizer.model_input_names or not takes(model, NAME):
        return None
    limits: dict[str, Any] = {"truncation": True, "max_length": min(512, tokenizer.model_max_length)}
    marks: dict[str, Any] = {"return_token_type_ids": True, "return_special_tokens_mask": True}
    found = [tokenizer(text, **limits, **marks) for text in SAMPLES]
    longest = max(found, key=lambda one: len(one["input_ids"]))
    types, special = longest[NAME], longest["special_tokens_mask"]
    before, after = (len(list(takewhile(bool, row))) for row in (special, special[::-1]))
    if before == len(types):  # no text
        before, after = 0, 0
    segments = Segments(tuple(types[:before]), types[before], tuple(types[len(types) - after :]))
    for text, one in zip(SAMPLES, found, strict=True):
        want = _placed(segments, torch.ones(1, len(one["input_ids"]), dtype=torch.long))[0].tolist()
        if len(want) >= before + after and one[NAME] != want:
            raise ValueError(f"token types (token_type_ids) {one[NAME]} of the text {text!r} do not follow from positions")
    return segments if any((*segments.first, segments.text, *segments.last)) else None


def takes(model: Any, name: str) -> bool:
    """Return True if a model, or a class of models, has an input of this name."""
    return model is not None and name in inspect.signature(model.forward).parameters


def segment_ids(model: Any, mask: Tensor) -> dict[str, Tensor]:
    """Return the token types of a batch as a keyword argument of a model; empty if they are all 0.

    Args:
        model: Transformer with an attribute ``segments``, see `segments_of`.
        mask: 1 for tokens, 0 for padding on either side, (B, L).

    Returns:
        ``token_type_ids``, (B, L).
    """
    segments = getattr(model, "segments", None)
    return {} if segments is None else {NAME: _placed(segments, mask)}


def _placed(segments: Segments, mask: Tensor) -> Tensor:
    place = mask.cumsum(1)  # from 1
    left = mask.sum(1, keepdim=True) - place
    types = torch.full_like(mask, segments.text)
    for number, value in enumerate(segments.first, 1):
        types = types.masked_fill(place == number, value)
    for number, value in enumerate(segments.last[::-1]):
        types = types.masked_fill(left == number, value)
    return types * mask
