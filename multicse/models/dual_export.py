"""Export of a dual encoder to a folder that other libraries load.

CLIP and CLAP architectures are saved as in transformers: `CLIPModel` or `ClapModel`, `AutoProcessor` and
`SentenceTransformer` load the folder. Other architectures are saved as a `Router` of sentence-transformers with a route for
texts and a route for images or audio. Networks that transformers lacks need code, which is saved with the model
(`Tower.module`).
"""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import Any, Protocol

from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Router
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from torch import nn
from transformers import (
    ASTFeatureExtractor,
    ClapConfig,
    ClapFeatureExtractor,
    ClapModel,
    ClapProcessor,
    ClapTextConfig,
    CLIPConfig,
    CLIPModel,
    CLIPProcessor,
    CLIPTextModel,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from multicse.data.streams.inputs import AudioInput, ImageInput
from multicse.models.adapters import merged
from multicse.models.audio_towers import AST, HTSAT
from multicse.models.hub_folders import SCALE
from multicse.models.text_encoder import TextEncoder, is_bert_pooler
from multicse.models.text_folders import no_pooler
from multicse.models.tower import Projection, Tower
from multicse.models.towers import CLIPVision

ROBERTAS = ("roberta", "xlm-roberta", "camembert", "clap_text_model")
"""Model types with the same weights as the text transformer of CLAP."""


class Dual(Protocol):
    """The parts of a `DualEncoder` that are saved."""

    text: TextEncoder
    tower: Tower
    text_projection: nn.Module
    tower_projection: nn.Module
    logit_scale: nn.Parameter
    input: ImageInput | AudioInput
    projection: Projection
    embed_dim: int
    modalities: tuple[str, ...]


def save_dual(dual: Dual, folder: str) -> None:
    """Save a dual encoder to a folder in the form of `form_of`.

    Truncated texts keep their end token, even if training removed it (variant `released`).
    """
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    {"clip": _save_clip, "clap": _save_clap, "router": _save_router}[form_of(dual)](dual, place)


def form_of(dual: Dual) -> str:
    """Return the form in which `dual` is saved: ``clip``, ``clap`` or ``router``."""
    return "clip" if _is_clip(dual) else "clap" if _is_clap(dual) else "router"


# ---- CLIP ------------------------------------------------------------------------------------------------------------


def _is_clip(dual: Dual) -> bool:
    """Return True for CLIP's text and image transformers, each with a linear projection."""
    text = dual.text
    return (
        isinstance(text.model, CLIPTextModel)
        and text.pooling == "lasttoken"
        and text.head is None
        and _end(text) not in (None, 2)  # transformers treats 2 as the largest ID
        and isinstance(dual.tower, CLIPVision)
        and dual.projection == "linear"
    )


def _end(text: TextEncoder) -> int | None:
    """Return the ID of the token that ends every text; None if texts end differently."""
    ends = {text.tokenizer(sample)["input_ids"][-1] for sample in ("a", "the dog", "")}
    return ends.pop() if len(ends) == 1 and ends <= set(text.tokenizer.all_special_ids) else None


def _save_clip(dual: Dual, folder: Path) -> None:
    tower: Any = dual.tower
    config = CLIPConfig(
        text_config={**dual.text.config.to_dict(), "eos_token_id": _end(dual.text), "projection_dim": dual.embed_dim},
        vision_config={**tower.model.config.to_dict(), "projection_dim": dual.embed_dim},
        projection_dim=dual.embed_dim,
        logit_scale_init_value=dual.logit_scale.item(),
    )
    model: Any = CLIPModel(config)
    model.text_model.load_state_dict(merged(dual.text.model).state_dict())
    model.vision_model.load_state_dict(tower.model.state_dict())
    model.text_projection.load_state_dict(dual.text_projection.state_dict())
    model.visual_projection.load_state_dict(dual.tower_projection.state_dict())
    model.logit_scale.data.copy_(dual.logit_scale.detach())
    images = image_processor(dual.input)
    _save_native(dual, folder, model, CLIPProcessor(images, _unused(dual.text.tokenizer)), [Normalize()])
    images.save_pretrained(folder)  # for versions before transformers 5


def _save_native(dual: Dual, folder: Path, model: Any, processor: Any, modules: list[nn.Module]) -> None:
    """Save a model of transformers with its processor, and as a SentenceTransformer with further modules."""
    _clear_name_or_path(model.config)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    saved = SentenceTransformer(str(folder), device="cpu", local_files_only=True, **_options(dual))
    saved.extend(modules)
    saved.save(str(folder), create_model_card=False)


def _options(dual: Dual) -> dict[str, Any]:
    """Return the text model's conventions with cosine similarity, since vectors have unit length."""
    return {**dual.text.conventions.options, "similarity_fn_name": "cosine"}


def image_processor(made: Any) -> CLIPImageProcessorPil:
    """Return the preprocessing of images in transformers."""
    return CLIPImageProcessorPil(
        size={"shortest_edge": made.size},
        crop_size={"height": made.size, "width": made.size},
        image_mean=list(made.mean),
        image_std=list(made.std),
    )


def _clear_name_or_path(config: Any) -> None:
    """Remove the paths of the initial weights, which reveal local folders."""
    for part in (config, *(getattr(config, name, None) for name in ("text_config", "vision_config", "audio_config"))):
        if part is not None:
            part._name_or_path = ""


LAST_CALL = ("max_length", "padding", "pad_to_multiple_of", "stride", "truncation", "truncation_strategy")


def _unused(tokenizer: Any) -> Any:
    """Return a copy of the tokenizer without padding and truncation of its last call, which it would save as settings.

    A processor would pass such a `max_length` to the feature extractor, which interprets it as a number of samples.
    """
    fresh = copy.deepcopy(tokenizer)
    if (backend := getattr(fresh, "backend_tokenizer", None)) is not None:
        backend.no_truncation()
        backend.no_padding()
    for name in LAST_CALL:
        fresh.init_kwargs.pop(name, None)
    return fresh


# ---- CLAP ------------------------------------------------------------------------------------------------------------


def _is_clap(dual: Dual) -> bool:
    """Return True for HTSAT, a RoBERTa with a pooler, and CLAP's projections."""
    text, tower = dual.text, dual.tower
    return (
        text.config.model_type in ROBERTAS
        and text.pooling == "pooler"
        and text.head is not None
        and is_bert_pooler(text.head)
        and isinstance(tower, HTSAT)
        and tower.model.config.hidden_size == tower.width  # the input of the projection
        and dual.projection == "mlp"
    )


def _save_clap(dual: Dual, folder: Path) -> None:
    tower: Any = dual.tower
    head: Any = dual.text.head
    known = ClapTextConfig().to_dict()
    same = {name: value for name, value in dual.text.config.to_dict().items() if name in known}
    config = ClapConfig(
        text_config={**same, "model_type": "clap_text_model", "projection_dim": dual.embed_dim},
        audio_config={**tower.model.config.to_dict(), "projection_dim": dual.embed_dim},
        projection_dim=dual.embed_dim,
        projection_hidden_act="relu",
    )
    model: Any = ClapModel(config)
    text = {name: value for name, value in merged(dual.text.model).state_dict().items() if not name.startswith("pooler.")}
    text |= {f"pooler.dense.{name}": value for name, value in head.linear.state_dict().items()}
    buffers = {name: value for name, value in model.text_model.named_buffers() if name not in text}
    model.text_model.load_state_dict({**text, **buffers})
    model.audio_model.load_state_dict(tower.model.state_dict())
    for ours, theirs in ((dual.text_projection, model.text_projection), (dual.tower_projection, model.audio_projection)):
        parts = {"0": "linear1", "2": "linear2"}
        theirs.load_state_dict({parts[key[0]] + key[1:]: value for key, value in ours.state_dict().items()})
    model.logit_scale_a.data.copy_(dual.logit_scale.detach())
    model.logit_scale_t.data.copy_(dual.logit_scale.detach())
    audio = _clap_features(dual.input)
    _save_native(dual, folder, model, ClapProcessor(audio, _unused(dual.text.tokenizer)), [])
    audio.save_pretrained(folder)


def _clap_features(made: Any) -> ClapFeatureExtractor:
    return ClapFeatureExtractor(
        feature_size=made.bins,
        sampling_rate=made.rate,
        hop_length=made.hop,
        max_length_s=int(made.seconds),
        fft_window_size=made.n_fft,
        frequency_min=made.low_hz,
        frequency_max=made.high_hz,
        truncation="rand_trunc",
        padding="repeatpad",
    )


# ---- Router ----------------------------------------------------------------------------------------------------------

NO_TEXT = {
    "vocab_size": 1,
    "hidden_size": 1,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "intermediate_size": 1,
    "max_position_embeddings": 1,
    "pad_token_id": 0,
}
"""Configuration of the unused text transformer of a CLAP model that only encodes audio."""


def _save_router(dual: Dual, folder: Path) -> None:
    with tempfile.TemporaryDirectory() as place:
        dual.text.save(f"{place}/text")
        texts = SentenceTransformer(f"{place}/text", device="cpu", local_files_only=True)
        items = _item_modules(dual, f"{place}/tower")
        router = Router(
            {
                "text": [*texts, *_dense(dual.text_projection)],
                dual.modalities[1]: [*items, *_dense(dual.tower_projection)],
            }
        )
        SentenceTransformer(modules=[router, Normalize()], device="cpu", **_options(dual)).save(
            str(folder), create_model_card=False
        )
    save_file({"logit_scale": dual.logit_scale.detach().cpu().clone()}, folder / SCALE)


def _item_modules(dual: Dual, place: str) -> list[nn.Module]:
    """Return the modules that encode images or audio, before the projection. `place` is a folder for their files."""
    tower, model = dual.tower, dual.tower.model
    made: Any = dual.input
    if (own := tower.module(made)) is not None:
        return [own]
    if isinstance(tower, HTSAT):  # AutoModel supports only complete CLAP models
        clap = ClapModel(ClapConfig(text_config=NO_TEXT, audio_config=model.config.to_dict(), projection_dim=1))
        clap.audio_model.load_state_dict(model.state_dict())
        _clear_name_or_path(clap.config)
        # Without a tokenizer in the folder, transformers would create one without vocabulary and limit.
        processor = ClapProcessor(_clap_features(made), _unused(dual.text.tokenizer))
        states = _transformer(clap, processor, place, "audio", "get_audio_features", "last_hidden_state")
        return [states, Pooling(tower.width, "mean")]
    if isinstance(tower, AST):
        extractor = ASTFeatureExtractor(
            sampling_rate=made.rate,
            num_mel_bins=made.bins,
            max_length=tower.frames,
            mean=tower.mean,
            std=tower.std,
        )
        return [_transformer(model, extractor, place, "audio", "forward", "pooler_output")]
    images = image_processor(made)
    if isinstance(tower, CLIPVision):
        return [_transformer(model, images, place, "image", "forward", "pooler_output")]
    return [_transformer(model, images, place, "image", "forward", "last_hidden_state"), Pooling(tower.width, "cls")]


def _transformer(model: Any, processor: Any, place: str, modality: Any, method: str, output: str) -> Transformer:
    """Return a module that calls `method` of a transformers model and keeps its `output`: states, or one vector per item."""
    pooler = no_pooler(model.config) if modality == "image" else {}
    model.save_pretrained(place, state_dict={**model.state_dict(), **pooler})
    processor.save_pretrained(place)
    name = "sentence_embedding" if output == "pooler_output" else "token_embeddings"
    config: Any = {modality: {"method": method, "method_output_name": output}}
    return Transformer(place, modality_config=config, module_output_name=name)


def _dense(projection: nn.Module) -> list[Dense]:
    """Return a projection as Dense modules of sentence-transformers; empty without a projection."""
    linears = [part for part in projection.modules() if isinstance(part, nn.Linear)]
    made = []
    for number, linear in enumerate(linears, 1):
        activation = nn.Identity() if number == len(linears) else nn.ReLU()
        dense = Dense(linear.in_features, linear.out_features, linear.bias is not None, activation)
        dense.linear.load_state_dict({name: value.detach().cpu() for name, value in linear.state_dict().items()})
        made.append(dense)
    return made
