"""Masked-language-model pretraining (Devlin et al., 2019) of a small encoder, for languages without a BERT model."""

from __future__ import annotations

import hashlib
import math
import re
import tempfile
from pathlib import Path
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from multicse.data.shards import size_and_sha256
from multicse.data.streams.base import Batch
from multicse.models.fresh_bert import FreshEncoder, make_encoder
from multicse.models.packing import first_true
from multicse.models.text_encoder import TextEncoder
from multicse.trainers.engine.text_fit import sentences
from multicse.trainers.gather import gather, world_size
from multicse.trainers.method import Method, MethodConfig, RecipeParts, StepOutput
from multicse.trainers.recipe import EncoderConfig, RecipeError

KEY = 10
"""Hex digits in the folder name of a new encoder."""


class FreshStartConfig(MethodConfig):
    """Settings of a method that can train an encoder from random weights."""

    smallest_batch: ClassVar[int] = 1

    fresh: FreshEncoder | None = None
    """Settings of a new encoder and tokenizer, created from the stream's text in a folder below `encoder.path`. If None,
    `encoder.path` is trained further."""

    def make_start(self, recipe: RecipeParts) -> str | None:
        """Create the new encoder, unless it exists, and return its folder.

        The name of its folder is a hash of everything that determines it, including the stream ``text``.

        Raises:
            RecipeError: If `encoder.path` itself contains an encoder.
        """
        if self.fresh is None:
            return None
        assert isinstance(recipe.encoder, EncoderConfig)
        path, shards = Path(recipe.encoder.path), recipe.shards("text")
        if re.fullmatch(rf"[0-9a-f]{{{KEY}}}", path.name):  # from a run's recipe.json
            path = path.parent
        if (path / "config.json").exists():
            raise RecipeError(
                f"encoder.path={recipe.encoder.path!r} contains an encoder, but this recipe creates one (method.fresh); use "
                "a recipe that trains an existing encoder, such as pretrain/further, or choose another folder for new "
                "encoders"
            )
        files = [shard.sha256 or size_and_sha256(shard.url)[1] for shard in shards.shards]
        first = "" if shards.first is None else f" {shards.first}"
        content = f"{self.fresh.model_dump_json()} {recipe.run.seed} {files}{first}"
        folder = path / hashlib.sha256(content.encode()).hexdigest()[:KEY]
        if not folder.exists():
            path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=path, prefix=".new-") as place:
                made = Path(place) / "start"
                make_encoder(self.fresh, sentences(recipe), made, recipe.run.seed)
                made.rename(folder)
        return str(folder)


class MaskedLMConfig(FreshStartConfig):
    """Settings of masked-language-model pretraining."""

    citations: ClassVar[tuple[str, ...]] = ("devlin2019bert",)

    name: Literal["mlm"] = "mlm"
    variant: Literal["fixed"] = "fixed"
    mask_probability: float = Field(0.15, gt=0, lt=1)
    """Share of tokens that are selected for prediction."""

    def build(self, encoder: TextEncoder) -> MaskedLM:
        """Return the encoder with a masked-language-model head."""
        return MaskedLM(encoder, self)


class MaskedLM(Method):
    """Masked language model on the stream ``text`` with ``input_ids`` and ``attention_mask`` (B, 1, L)."""

    sentence_encoder: TextEncoder
    special: Tensor
    """Ids of the special tokens, which are not masked."""

    def __init__(self, encoder: TextEncoder, config: MaskedLMConfig) -> None:
        super().__init__()
        width = encoder.hidden_size
        self.sentence_encoder, self.settings = encoder, config
        self.transform = word_transform(width)
        self.bias = nn.Parameter(torch.zeros(len(encoder.tokenizer)))
        self.register_buffer("special", torch.tensor(encoder.tokenizer.all_special_ids), persistent=False)

    def encode(self, stream: str, batch: Batch) -> dict[str, Tensor]:
        """Return ``loss`` and ``correct`` (B,), sums over a sentence's selected tokens, and their number ``chosen`` (B,)."""
        ids, mask, host_mask = (tensor[:, 0] for tensor in batch.texts())
        tokenizer, share = self.sentence_encoder.tokenizer, self.settings.mask_probability
        masked, chosen = mask_tokens(ids, share, tokenizer.mask_token_id, len(tokenizer), self.special)
        if ids.device.type == "cpu":
            count = int(chosen.sum())
        else:  # counting would synchronise with the GPU; mean plus ten standard deviations is never exceeded
            tokens = int(host_mask.sum())
            count = min(tokens, math.ceil(tokens * share + 10 * math.sqrt(tokens * share) + 10))
        places = first_true(chosen, count)
        counts, targets = chosen.flatten()[places], ids.flatten()[places]
        states = self.sentence_encoder.outputs(masked, mask, host_mask=host_mask).tokens.flatten(0, 1)[places]
        words = self.sentence_encoder.model.get_input_embeddings().weight
        logits = F.linear(self.transform(states), words, self.bias).float()  # tied to the input embeddings
        rows = places // ids.shape[1]
        loss = F.cross_entropy(logits, targets, reduction="none") * counts
        correct = (logits.argmax(-1) == targets).float() * counts
        zeros = loss.new_zeros(len(ids))
        return {
            "loss": zeros.index_add(0, rows, loss),
            "correct": zeros.index_add(0, rows, correct),
            "chosen": chosen.sum(1).to(loss.dtype),
        }

    def losses(self, features: dict[str, dict[str, Tensor]], batches: dict[str, Batch]) -> StepOutput:
        """Return the loss ``mlm``, the mean over the selected tokens of all workers, and their accuracy in percent."""
        sums = {name: values.sum() * world_size() for name, values in features["text"].items()}
        count = gather(features["text"]["chosen"]).sum().clamp_min(1)
        return StepOutput({"mlm": sums["loss"] / count}, {"masked_accuracy": 100 * sums["correct"] / count})


def word_transform(width: int) -> nn.Sequential:
    """Return BERT's layer between token states and word embeddings of a width; its linear map starts as the identity."""
    first = nn.Linear(width, width)
    nn.init.eye_(first.weight)
    nn.init.zeros_(first.bias)
    return nn.Sequential(first, nn.GELU(), nn.LayerNorm(width))


def mask_tokens(ids: Tensor, probability: float, mask_id: int, vocab_size: int, special: Tensor) -> tuple[Tensor, Tensor]:
    """Select tokens for prediction and replace 80 % of them by [MASK] and 10 % by a random token; 10 % stay unchanged.

    Args:
        ids: Token ids, (B, L).
        probability: Share of tokens to select.
        mask_id: Id of [MASK].
        vocab_size: Random tokens are below this id.
        special: Ids of tokens that are never selected, (S,).

    Returns:
        Token ids with replacements, and a mask of the selected tokens, (B, L) each.
    """
    ordinary = ~torch.isin(ids, special)
    chosen = (torch.rand(ids.shape, device=ids.device) < probability) & ordinary
    fate = torch.rand(ids.shape, device=ids.device)
    masked = torch.where(chosen & (fate < 0.8), mask_id, ids)
    random = torch.randint(vocab_size, ids.shape, device=ids.device)
    return torch.where(chosen & (fate >= 0.9), random, masked), chosen
