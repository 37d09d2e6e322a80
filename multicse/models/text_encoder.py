"""Text encoder: a Hugging Face transformer, a pooling and optionally a head."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multicse.models.adapters import merged
from multicse.models.clip_layers import add_dropout, last_clip_layer
from multicse.models.hub_folders import has_pooler, languages_of, model_class
from multicse.models.packing import DECODERS, Packing, can_pack, enable_packing, layers_can_pack, model_kwargs, token_states
from multicse.models.pooling import AVERAGED, Head, Pooling, layer_stack, pool, without_prompt
from multicse.models.pretrained import ENCODER, pad_and_mask
from multicse.models.segments import segment_ids, segments_of
from multicse.models.sentence_encoder import SENTENCES, CardText, SentenceEncoder, shown, usage
from multicse.models.st_modules import Conventions, make_modules, write_for_older
from multicse.models.text_folders import (
    default_pooling,
    load_transformer,
    new_model,
    no_pooler,
    open_text_model,
    positions,
    positions_of,
    set_dropouts,
)

if TYPE_CHECKING:
    from transformers import PretrainedConfig

STACKS = {"bert", "roberta", "xlm-roberta", "distilbert"}
"""Model types with layers that take (hidden states, mask), so patches enter them directly."""

TOKENIZING = threading.RLock()
"""Lock around calls of a tokenizer, which stores the length of its last call, since every stream has its own thread. All
encoders share one lock because encoders are copied."""


class EncoderOutput(NamedTuple):
    """Output of `TextEncoder.outputs`."""

    pooled: Tensor
    """Pooled states before the head, (B, d)."""
    tokens: Tensor
    """Token states of the last layer, (B, L, d)."""


class TextEncoder(SentenceEncoder):
    """Encoder of sentences: transformer, pooling, optional head, optional scaling to unit length.

    Poolings use the states of the last layer, except for the two that average two layers:

    ========================  ===========================================================================
    ``cls``                   first token
    ``pooler``                first token, then the head (Linear + tanh; a saved model's pooler)
    ``mean``, ``max``         over the tokens that are not padding
    ``lasttoken``             last token that is not padding, for causal models (CLIP, Llama, Qwen)
    ``last2``                 mean over tokens of the mean of the last two layers
    ``first-last``            mean over tokens of the mean of embedding output and last layer (the published
                              SimCSE numbers; later SimCSE code uses the first transformer layer instead)
    ========================  ===========================================================================

    Args:
        model: Transformer of Hugging Face.
        tokenizer: Its tokenizer.
        pooling: Name of the pooling.
        head: Head after the pooling. If None, pooled states are the vectors.
        normalise: Scale vectors to unit length.
        limit: Maximum number of tokens of a text. If None, the maximum of model and tokenizer.
    """

    layered = True

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any,
        pooling: Pooling = "mean",
        head: Head | None = None,
        normalise: bool = False,
        limit: int | None = None,
    ) -> None:
        super().__init__()
        self.model: Any = model
        enable_packing(model)
        self.tokenizer, self.normalise = tokenizer, normalise
        self.pooling: Pooling = pooling
        self.config: PretrainedConfig = model.config
        self.head = head
        self.head_only_trains = False
        """Use the head in training only, not in evaluation and in exports (SimCSE's ``mlp_only_train``)."""
        self.head_is_pooler = False
        """The head is the pooler of a Hugging Face folder, which may have been trained on next-sentence prediction."""
        self.origin: str | None = None
        """Folder or model ID of configuration and tokenizer."""
        self.path: str | None = None
        """Folder of the initial weights. If None, they were random."""
        self.projected = False
        """The folder in `path` also contains a projection into a space shared with another modality; see `DualEncoder`."""
        self.limit = min(limit or 10**9, positions_of(model), tokenizer.model_max_length)
        """Maximum number of tokens of a text, including special tokens."""
        self.tokenizer.model_max_length = self.limit
        network: Any = model
        config: Any = network.config
        if config.model_type in DECODERS:
            config.use_cache = False  # for generation only
        pad_and_mask(tokenizer, config)
        network.segments = segments_of(tokenizer, model)
        self.conventions = Conventions()
        """Settings of sentence-transformers for texts and vectors."""
        self.prompt_tokens = 0
        """Number of initial tokens that the pooling excludes: the tokens of a prompt that is not pooled."""

    @classmethod
    def from_pretrained(
        cls,
        path: str,
        pooling: Pooling | None = None,
        hidden_dropout: float | None = None,
        attention_dropout: float | None = None,
        scratch: bool = False,
        prompt: str | None = None,
        include_prompt: bool | None = None,
    ) -> TextEncoder:
        """Load a model in float32, from safetensors only; the arguments are the settings of `EncoderConfig`.

        With pooling ``pooler`` the head is the model's pooler if it has one. Raises ValueError if the model cannot be loaded
        or has unsupported sentence-transformers modules.
        """
        try:
            ENCODER.folder(path, weights=not scratch)  # downloads a model of the Hub before it is read
            folder, saved, config, tokenizer = open_text_model(path, scratch, True, prompt, include_prompt)
            set_dropouts(config, hidden_dropout, attention_dropout)
            pooling = pooling or saved.pooling or default_pooling(config)
            if scratch:
                model, head = new_model(config), Head(config.hidden_size) if pooling == "pooler" else None
            else:
                wanted = pooling == "pooler" and saved.head is None
                model, pooler = load_transformer(path, saved.folder, config, wanted)
                # A head belongs to the pooling it was trained on.
                head = pooler or (saved.head if pooling in ("pooler", saved.pooling) else None)
        except Exception as error:  # the libraries raise a dozen kinds for a broken folder
            if str(error).startswith("encoder."):
                raise
            raise ENCODER.cannot_load(path, error) from error
        if hidden_dropout and model.config.model_type == "clip_text_model":
            add_dropout(model, hidden_dropout)
        encoder = cls(model, tokenizer, pooling, head, saved.normalise, saved.limit)
        encoder.conventions, encoder.origin = saved.conventions, path
        if not saved.conventions.include_prompt and saved.conventions.prompt:
            ids = tokenizer(saved.conventions.prompt, truncation=True)["input_ids"]  # as sentence-transformers counts
            encoder.prompt_tokens = len(ids) - (ids[-1] in tokenizer.all_special_ids)
        if not scratch:
            encoder.path, encoder.projected = str(folder), saved.projected
            encoder.head_is_pooler = saved.head is None
        return encoder

    @property
    def hidden_size(self) -> int:
        """Return the width of the transformer."""
        return self.config.hidden_size

    @property
    def causal(self) -> bool:
        """Return True if tokens attend to preceding tokens only."""
        return getattr(self.config, "is_causal", True) and any(
            getattr(part, "is_causal", False) for part in self.model.modules()
        )

    @property
    def embeddings(self) -> nn.Module:
        """Return the module of layer 0, with all embeddings and LayerNorm, or raise ValueError if it does not exist."""
        module = getattr(self.model, "embeddings", getattr(self.model, "embed_tokens", None))
        if not isinstance(module, nn.Module):
            raise ValueError(
                f"encoder.path: a {self.config.model_type!r} model has no module `embeddings` that could be frozen; choose "
                "a model such as BERT, RoBERTa, XLM-R, DistilBERT, DeBERTa, MPNet or ELECTRA"
            )
        return module

    def stack(self) -> list[nn.Module]:
        """Return the embeddings and the layers of the transformer."""
        return [self.embeddings, *layer_stack(self.model)]

    def add_head(self, only_trains: bool) -> None:
        """Add a new `Head` after the pooling, or keep the head of a saved sentence encoder.

        The pooler of a Hugging Face folder is replaced, since SimCSE builds BERT without its pooler.
        """
        if self.head is None or self.head_is_pooler:
            self.head, self.head_is_pooler = Head(self.hidden_size), False
        self.head_only_trains = only_trains
        if not only_trains and self.pooling == "cls":
            self.pooling = "pooler"

    def project(self, pooled: Tensor) -> Tensor:
        """Apply the head, if any, to pooled states (B, d), as in training."""
        return pooled if self.head is None else self.head(pooled)

    def tokenize(
        self, texts: list[str], max_length: int | None = None, spans: Sequence[tuple[int, int] | None] | None = None
    ) -> dict[str, Tensor]:
        """Tokenise texts, padded to the longest text of the batch.

        Args:
            texts: B texts.
            max_length: Maximum number of tokens, at most `limit`, which is the default.
            spans: For every text the position of the first character of a word and of the one after its last, or None.

        Returns:
            ``input_ids`` and ``attention_mask``, (B, L). With `spans` also ``word_mask``, (B, L) int64: 1 for tokens with
            characters of the word; all 0 if the span is None or empty, or the word was truncated.

        Raises:
            NotImplementedError: With `spans`, if the tokenizer is not a fast one.
        """
        limit, prompt = min(max_length or self.limit, self.limit), self.conventions.prompt
        with TOKENIZING:
            tokens = dict(
                self.tokenizer(
                    [prompt + text for text in texts] if prompt else texts,
                    padding=True,
                    truncation=True,
                    max_length=limit,
                    return_tensors="pt",
                    return_token_type_ids=False,  # `segment_ids` makes them
                    return_offsets_mapping=spans is not None,
                )
            )
        if spans is not None:
            moved = [span and (span[0] + len(prompt), span[1] + len(prompt)) for span in spans]
            tokens["word_mask"] = _word_mask(tokens.pop("offset_mapping"), moved)
        return tokens

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Return the sentence vectors (B, d) that are evaluated and that a saved folder gives."""
        vectors = self.outputs(batch["input_ids"], batch["attention_mask"]).pooled
        vectors = vectors if self.head_only_trains else self.project(vectors)
        return F.normalize(vectors, dim=-1) if self.normalise else vectors

    def pooled(self, input_ids: Tensor, attention_mask: Tensor, host_mask: Tensor | None = None) -> Tensor:
        """Return the pooled states. CLIP's text transformer computes its last layer for one token per text only.

        Args:
            input_ids: Token IDs, (B, L).
            attention_mask: 1 for tokens, 0 for padding, (B, L).
            host_mask: Copy of the mask on the CPU, (B, L), which avoids a synchronisation with the GPU.

        Returns:
            ``outputs(...).pooled``, (B, d).
        """
        if self.pooling != "lasttoken" or self.config.model_type != "clip_text_model" or not layers_can_pack(self.model):
            return self.outputs(input_ids, attention_mask, host_mask=host_mask).pooled
        packing = Packing(attention_mask, host_mask)
        hidden = packing.pack(self.model.embeddings(input_ids))
        *layers, last = self.model.encoder.layers
        for layer in layers:
            hidden = layer(hidden, None, is_causal=True, packing=packing)
        states = last_clip_layer(last, packing.unpack(hidden), attention_mask.sum(1) - 1, causal=True)
        return self.model.final_layer_norm(states)

    def outputs(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        inputs_embeds: Tensor | None = None,
        patches: Tensor | None = None,
        padding: bool = False,
        host_mask: Tensor | None = None,
    ) -> EncoderOutput:
        """Run the transformer on one of three inputs: token IDs, word embeddings or patches.

        Args:
            input_ids: Token IDs, (B, L).
            attention_mask: 1 for tokens, 0 for padding, (B, L), for the first two inputs. If None, nothing is padding.
            inputs_embeds: Vectors in place of word embeddings, (B, L, d).
            patches: Vectors without a mask, (B, L, d) with d of `patch_width`. In models of the types in `STACKS` they enter
                the first layer directly, without the text's position and type embeddings, LayerNorm and dropout; in other
                models they take the place of word embeddings.
            padding: Compute the states of padding, too. Otherwise they are undefined and cost nothing (`token_states`).
            host_mask: Copy of the mask on the CPU, (B, L), which avoids a synchronisation with the GPU.

        Returns:
            Pooled states, (B, d), and token states, (B, L, d).
        """
        layers, prompt = self.pooling in AVERAGED, 0 if patches is not None else self.prompt_tokens
        if patches is not None and self.config.model_type in STACKS:
            states = [patches]
            for layer in layer_stack(self.model):
                states.append(layer(states[-1], None))
            tokens, hidden = states[-1], tuple(states)
            mask = torch.ones(patches.shape[:2], dtype=torch.long, device=patches.device)
        else:
            given = next((one for one in (patches, inputs_embeds, input_ids) if one is not None), None)
            assert given is not None  # exactly one input is given
            mask = given.new_ones(given.shape[:2], dtype=torch.long) if attention_mask is None else attention_mask
            if padding or patches is not None:
                seen = mask if patches is None else None
                if padding and can_pack(self.model) and mask.device.type != "cpu" and not self.causal:
                    # With a mask (B, L) transformers would wait for the GPU to check whether all values are 1.
                    seen = (mask != 0)[:, None, None].expand(-1, 1, mask.shape[1], -1)
                types = segment_ids(self.model, mask) if patches is None else {}
                out = self.model(**model_kwargs(given), **types, attention_mask=seen, output_hidden_states=layers)
                tokens, hidden = out.last_hidden_state, tuple(out.hidden_states or ())
            else:
                tokens, hidden = token_states(self.model, given, mask, layers, host_mask)
        return EncoderOutput(pool(tokens, hidden, without_prompt(mask, prompt), self.pooling), tokens)

    def save(self, folder: str) -> None:
        """Write a folder that `SentenceTransformer`, also version 5, and ``AutoModel.from_pretrained`` load.

        With pooling ``pooler``, the head is also saved as the model's pooler if the model type has one, as in the released
        SimCSE. Otherwise the pooler is saved as zeros.
        """
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.sentence_transformer import modules as st

        head = None if self.head_only_trains else self.head
        pooler = no_pooler(self.config)
        if head is not None and self.pooling == "pooler" and has_pooler(self.config) and is_bert_pooler(head):
            pooler = {f"pooler.dense.{name}": weight for name, weight in head.linear.state_dict().items()}
        model = merged(self.model)
        weights = {name: t.detach().cpu().contiguous() for name, t in {**model.state_dict(), **pooler}.items()}
        model.config.output_hidden_states = self.pooling in AVERAGED  # sentence-transformers reads it
        model.save_pretrained(folder, state_dict=weights)
        self.tokenizer.save_pretrained(folder)
        own = self.conventions
        modules = make_modules(self.config, self.pooling, head, self.normalise, own.include_prompt)
        whole = SentenceTransformer(modules=[st.Transformer(folder), *modules], device="cpu", **own.options)
        whole.save(folder, create_model_card=False)
        write_for_older(Path(folder))

    def card(self, folder: Path) -> CardText:
        """Return the text of the model card."""
        initialised_from = f"Trained from `{shown(self.origin or 'unknown')}`"
        if self.path is None:
            of = "" if self.origin is None else f", with the tokenizer of `{shown(self.origin)}`"
            initialised_from = f"From random weights{of}, trained"
        prompt = self.conventions.prompt
        return CardText(
            what=SENTENCES,
            initialised_from=initialised_from,
            usage=usage(),
            notes=(f"Texts follow the prompt {prompt!r}, which `SentenceTransformer` adds. " if prompt else "")
            + "`AutoModel.from_pretrained` loads the same folder and gives token states; the pooling is in "
            "`modules.json`. To continue training, start a run with `--encoder.path`.",
            bases=() if self.path is None else (self.origin,),
            languages=languages_of(self.path),
        )


def _word_mask(offsets: Tensor, spans: Sequence[tuple[int, int] | None]) -> Tensor:
    """Return a mask, (B, L) int64: 1 if the characters of a token, offsets (B, L, 2), overlap with the span of its text.

    Tokens need not be inside the span, since byte-level tokenizers may add the preceding space. Special tokens are empty.
    """
    first, last = offsets.unbind(-1)
    start, stop = torch.tensor([span or (0, 0) for span in spans], dtype=offsets.dtype).view(-1, 2, 1).unbind(1)
    return (torch.maximum(first, start) < torch.minimum(last, stop)).long()


def patch_width(config: PretrainedConfig, tokens: int = 0) -> int:
    """Return the dimension of patches for a model, or raise ValueError if it does not accept `tokens` patches."""
    if config.model_type in STACKS:
        return config.hidden_size
    kind = model_class(config)
    if kind is None or "inputs_embeds" not in inspect.signature(kind.forward).parameters:
        raise ValueError(
            f"encoder.path: a {config.model_type!r} model accepts no input embeddings (inputs_embeds), so it cannot process "
            "patches of another modality; choose a model such as BERT, RoBERTa, ELECTRA, MPNet, ModernBERT or Qwen"
        )
    if (most := positions(config)) < tokens:
        raise ValueError(
            f"encoder.path: a {config.model_type!r} model with {most} positions cannot process the {tokens} tokens of a "
            "sample; use larger patches (patch_size), or a model with more positions"
        )
    with torch.device("meta"):  # shapes only
        return kind(config).get_input_embeddings().embedding_dim


def is_bert_pooler(head: Head) -> bool:
    """Return True if a head has the form of BERT's pooler."""
    return isinstance(head.activation, nn.Tanh) and head.linear.in_features == head.linear.out_features
