"""TSDAE (Wang et al., Findings of EMNLP 2021): a decoder reconstructs a sentence from the embedding of some of its words."""

from __future__ import annotations

import re
import string
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from ray import tune
from safetensors import safe_open
from torch import Tensor, nn
from transformers.activations import ACT2FN

from multicse.data.streams.base import Batch
from multicse.models.fresh_bert import FreshEncoder
from multicse.models.packing import Dropout, Packing, can_pack
from multicse.models.pooling import layer_stack
from multicse.models.text_encoder import TextEncoder
from multicse.pipelines import parts, pretrain
from multicse.trainers.gather import gather, world_size
from multicse.trainers.method import Method, RecipeParts, StepOutput, check_texts
from multicse.trainers.pretrain import FreshStartConfig, word_transform
from multicse.trainers.recipe import Recipe
from multicse.trainers.tuning.space import SearchSpace

DECODERS = ("bert", "camembert", "roberta", "xlm-roberta")  # model types
PUNCTUATION = re.compile(rf"[Ġ▁].*|[{re.escape(string.punctuation)}]+")


class TSDAEConfig(FreshStartConfig):
    """Settings of TSDAE; the defaults are the paper's."""

    citations: ClassVar[tuple[str, ...]] = ("wang2021tsdae",)

    name: Literal["tsdae"] = "tsdae"
    variant: Literal["fixed"] = "fixed"
    deletion: float = Field(0.6, ge=0, lt=1)
    """Probability that a word is deleted before the sentence is encoded; at least one word stays."""

    def check(self, recipe: RecipeParts, encoder: Any) -> None:
        """Check that a sample is one text and that the encoder's layers can decode."""
        check_texts(recipe, "text", (1,), "method.name='tsdae'", "one column, txt")
        if encoder is not None and encoder.model_type not in DECODERS:
            raise ValueError(
                f"encoder.path: the layers of a {encoder.model_type!r} model cannot decode; choose {', '.join(DECODERS)}"
            )

    def build(self, encoder: TextEncoder) -> TSDAE:
        """Return TSDAE with `encoder`."""
        return TSDAE(encoder, self)


class TSDAE(Method):
    """TSDAE on the stream ``text``: ``input_ids``, ``attention_mask`` (B, 1, L).

    Encoder and decoder are tied: the decoder consists of the encoder's embeddings and layers, with causal attention, and of
    a `Memory` per layer, which a hook calls after the self-attention if the layer receives ``memory``.
    """

    sentence_encoder: TextEncoder
    continues: Tensor  # (V,)

    def __init__(self, encoder: TextEncoder, config: TSDAEConfig) -> None:
        super().__init__()
        assert can_pack(encoder.model)  # so are all models in DECODERS
        layers: Any = layer_stack(encoder.model)
        self.sentence_encoder, self.config = encoder, config
        self.memories = nn.ModuleList(Memory(encoder.config, layer.attention) for layer in layers)
        self.transform = word_transform(encoder.hidden_size)
        self.bias = nn.Parameter(torch.zeros(encoder.model.get_input_embeddings().num_embeddings))
        self.register_buffer("continues", continuations(encoder.tokenizer), persistent=False)
        load_head(self, encoder)

    def encode(self, stream: str, batch: Batch) -> dict[str, Tensor]:
        """Return ``loss``, the sum over the tokens of each sentence, and the number of tokens ``count``, (B,)."""
        ids, mask, host_mask = (tensor[:, 0] for tensor in batch.texts())
        encoder, model = self.sentence_encoder, self.sentence_encoder.model
        kept = delete_words(ids, mask, self.continues, self.config.deletion, encoder.tokenizer.pad_token_id)
        sentence = encoder.project(encoder.outputs(*kept, padding=ids.device.type != "cpu").pooled)  # a GPU does not wait
        packing = Packing(mask[:, 1:], host_mask[:, 1:])  # every token with a successor
        rows = packing.places // (ids.shape[1] - 1)
        given = packing.arguments(model, ids[:, :-1])
        states = model.embeddings(input_ids=given["input_ids"], position_ids=given["position_ids"])
        for layer in layer_stack(model):
            states = layer(states, None, is_causal=True, packing=packing, memory=sentence[rows][None])
        logits = F.linear(self.transform(states[0]), model.get_input_embeddings().weight, self.bias)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        loss = F.cross_entropy(logits, packing.pack(ids[:, 1:])[0], reduction="none")  # -log P(x_t | x~), section 3
        return {"loss": loss.new_zeros(len(ids)).index_add(0, rows, loss), "count": mask[:, 1:].sum(1).to(loss.dtype)}

    def losses(self, features: dict[str, dict[str, Tensor]], batches: dict[str, Batch]) -> StepOutput:
        """Return the loss ``reconstruction``, the mean over the tokens of all workers."""
        sums = features["text"]
        return StepOutput({"reconstruction": sums["loss"].sum() * world_size() / gather(sums["count"]).sum().clamp_min(1)})


HEADS = ("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.bias")
ROBERTA_HEADS = ("lm_head.dense", "lm_head.layer_norm", "lm_head.bias")
"""Names in checkpoints of BERT and of RoBERTa: linear map and norm before the softmax, and the bias of the vocabulary."""


def load_head(method: TSDAE, encoder: TextEncoder) -> None:
    """Load the head of masked language modelling from the encoder's checkpoint, if it has one; otherwise it is new."""
    file = Path(encoder.path or "") / "model.safetensors"
    if not file.is_file():
        return
    with safe_open(file, "pt") as tensors:
        keys = list(tensors.keys())
        found = {
            key.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias"): key
            for key in keys
        }
        for names, activation in ((HEADS, encoder.config.hidden_act), (ROBERTA_HEADS, "gelu")):
            dense, norm, bias = names
            if not {f"{dense}.weight", f"{norm}.weight", bias} <= found.keys():
                continue
            linear, _, scale = method.transform
            for module, name in ((linear, dense), (scale, norm)):
                module.load_state_dict({end: tensors.get_tensor(found[f"{name}.{end}"]) for end in ("weight", "bias")})
            method.bias.data.copy_(tensors.get_tensor(found[bias]))
            method.transform[1], scale.eps = ACT2FN[activation], encoder.config.layer_norm_eps


class Memory(nn.Module):
    """Cross-attention of a layer to the sentence embedding s, its only key (section 3), so that the softmax is always 1."""

    def __init__(self, config: Any, attention: nn.Module) -> None:
        super().__init__()
        attention.register_forward_hook(self._attend, with_kwargs=True)
        width, self.heads = config.hidden_size, config.num_attention_heads
        self.value, self.dense = nn.Linear(width, width), nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.head_dropout, self.dropout = Dropout(config.attention_probs_dropout_prob), Dropout(config.hidden_dropout_prob)
        for linear in (self.value, self.dense):
            nn.init.normal_(linear.weight, std=config.initializer_range)
            nn.init.zeros_(linear.bias)

    def _attend(self, attention: nn.Module, args: Any, kwargs: dict[str, Any], output: tuple[Tensor, Any]) -> Any:
        """Apply the cross-attention to the output of a layer's self-attention, if the layer decodes."""
        return None if kwargs.get("memory") is None else (self(output[0], kwargs["memory"]), *output[1:])

    def forward(self, states: Tensor, sentence: Tensor) -> Tensor:
        """Add the sentence embeddings (1, T, d) of the tokens to their states (1, T, d)."""
        heads = self.head_dropout(states.new_ones(*states.shape[:-1], self.heads, 1))
        value = (heads * self.value(sentence).unflatten(-1, (self.heads, -1))).flatten(-2)
        return self.norm(states + self.dropout(self.dense(value)))


def continuations(tokenizer: Any) -> Tensor:
    """Return for each piece of a vocabulary if it continues a word, (V,): ``##`` of WordPiece, or no ``Ġ`` or ``▁``.

    A piece of punctuation is a word of its own with both, as BERT's tokenizer splits it, and NLTK's in the authors' code.
    """
    pieces = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    inside, first = ([piece.startswith(marks) for piece in pieces] for marks in (("##",), ("Ġ", "▁")))
    return torch.tensor(inside if sum(inside) >= sum(first) else [PUNCTUATION.fullmatch(piece) is None for piece in pieces])


def delete_words(ids: Tensor, mask: Tensor, continues: Tensor, probability: float, pad: int) -> tuple[Tensor, Tensor]:
    """Delete random words.

    Args:
        ids: Token IDs with one special token at each end, (B, L).
        mask: 1 for tokens, 0 for padding on the right, (B, L).
        continues: True for pieces that continue a word, (V,).
        probability: Probability of each word; the word with the largest random number always stays.
        pad: Token ID of padding.

    Returns:
        Token IDs and mask of the remaining words, (B, L) each.
    """
    place = torch.arange(ids.shape[1], device=ids.device)
    inside = (place > 0) & (place < mask.sum(1, keepdim=True) - 1)
    word = (inside & (~continues[ids] | (place == 1))).cumsum(1)
    draws = torch.rand(ids.shape, device=ids.device).gather(1, word).masked_fill(~inside, -1.0)
    keep = (mask != 0) & (~inside | (draws >= probability) | (draws == draws.amax(1, keepdim=True)))
    kept, order = keep.long().sort(dim=1, descending=True, stable=True)
    return torch.where(kept != 0, ids.gather(1, order), pad), kept


def bert_base() -> Recipe:
    """Train BERT-base on sentences of Wikipedia: 100,000 steps, batch 8, constant lr 3e-5."""
    changes = {
        "streams.text.batch_size": 8,
        "streams.text.max_length": 75,
        "optim.text.schedule": "constant",
        "evaluation.eval_steps": 1000,
        "run.max_steps": 100_000,
    }
    return parts.text_bert_base("tsdae", TSDAEConfig()).changed(changes)


def scratch() -> Recipe:
    """Train a new BERT with 2 layers, 192 dimensions and 8,000 word pieces; set --streams.text.shards."""
    changes = {"name": "tsdae/scratch", "run.output_dir": "runs/tsdae/scratch"}
    return pretrain.small().changed({**changes, "method": TSDAEConfig(fresh=FreshEncoder(layers=2))})


def demo() -> Recipe:
    """Train in minutes on a laptop, offline: Wikipedia sentences, this project's small encoder."""
    return parts.text_demo("tsdae", TSDAEConfig())


smoke = parts.smoke_of(demo)

RECIPES = {"demo": demo, "smoke": smoke, "bert-base": bert_base, "scratch": scratch}

deletion: SearchSpace = {"method.deletion": tune.grid_search([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9])}
wide: SearchSpace = {
    "method.deletion": tune.uniform(0.2, 0.9),
    "optim.text.lr": tune.loguniform(1e-5, 1e-3),
    "optim.text.warmup": tune.choice([0.0, 0.1]),
}
SPACES = {"deletion": deletion, "wide": wide}
