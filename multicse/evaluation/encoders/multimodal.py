"""Encoders of texts and images or audio: CLIP-like and CLAP folders of Hugging Face or sentence-transformers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import soxr
import torch
from safetensors.torch import load_file
from torch import Tensor

from multicse import plugins
from multicse.evaluation.encoders.encoder import (
    Features,
    FolderEncoder,
    loading,
    on_device,
    refuse_random,
    usable_device,
    without_neighbours,
)
from multicse.evaluation.task import EvaluationError, Sound
from multicse.models.hub_folders import OWN, SCALE, load_saved, module_types, own_type, read_json

MULTIMODAL = ("clip", "siglip", "siglip2", "clap", "align", "chinese_clip")  # model_type in config.json


class MultimodalEncoder(FolderEncoder):
    """Encoder of a model for texts and images or audio, created by `load_whole`.

    Vectors are the projected features of transformers' `get_text_features`, `get_image_features` and `get_audio_features`.
    They do not depend on the other items: random crops of long clips (CLAP) use the same seed for each clip.
    """

    def __init__(self, model: Any, path: Path, batch_size: int, seed: int) -> None:
        super().__init__(model, path, "own", batch_size)
        self.items_at_once, self.seed = batch_size, seed
        self.modalities = ("text", *(name for name in ("image", "audio") if name in model.modalities))
        makers: dict[str, Callable[[list[Any]], Features]] = {"image": self._images, "audio": self._clips}
        self.others = {name: partial(self._vectors, make) for name, make in makers.items() if name in self.modalities}
        scale = _scale(model[0], path)
        self._logit_scale = None if scale is None else lambda: scale
        if str(getattr(getattr(model[0], "config", None), "model_type", "")).startswith("siglip"):
            self._pad_to_limit()

    @property
    def protocol(self) -> dict[str, Any]:
        """Return how items are encoded, for reports."""
        return {**super().protocol, **({"sound_seed": self.seed} if "audio" in self.modalities else {})}

    def _pad_to_limit(self) -> None:
        """Pad texts to the limit without a mask, as in SigLIP's training; otherwise vectors would differ."""
        module, limit = self.model[0], self.model[0].config.text_config.max_position_embeddings
        module.processing_kwargs = {
            **(module.processing_kwargs or {}),
            "text": {"padding": "max_length", "max_length": limit},
        }
        self.limit = limit
        with_mask = self.tokenize
        self.tokenize = lambda texts: {n: v for n, v in with_mask(texts).items() if n != "attention_mask"}

    def _vectors(self, prepare: Callable[[list[Any]], Features], items: list[Any]) -> Tensor:
        return self.forward(on_device(prepare(items), self.device))

    def _images(self, images: list[np.ndarray]) -> Features:
        from PIL import Image

        return dict(self.model.preprocess([Image.fromarray(image) for image in images]))

    def _clips(self, clips: list[Sound]) -> Features:
        prepared = [self._clip(clip) for clip in clips]
        return {
            name: torch.cat([one[name] for one in prepared]) if isinstance(value, Tensor) else value
            for name, value in prepared[0].items()
        }

    def _clip(self, clip: Sound) -> Features:
        """Prepare a single clip, so that random crops do not depend on the batch."""
        routes = getattr(self.model[0], "sub_modules", {})
        processor = (routes["audio"] if routes else self.model)[0].processor
        rate = getattr(processor, "feature_extractor", processor).sampling_rate
        wave = np.asarray(clip.samples, dtype=np.float32)
        if clip.rate != rate:
            wave = soxr.resample(wave, clip.rate, rate)
        state = np.random.get_state()  # of the random generator that processors use
        np.random.seed(self.seed)
        try:
            features = dict(self.model.preprocess([{"audio": {"array": wave, "sampling_rate": rate}}]))
        finally:
            np.random.set_state(state)
        mel = features.get("input_features")
        if "is_longer" in features and isinstance(mel, Tensor) and mel.shape[1] == 4:
            # CLAP's fusion marks one clip of every batch as long if none is, so vectors would depend on the batch. The four
            # spectrograms of a clip that is not long are equal.
            features["is_longer"] = (mel[:, :1] != mel[:, 1:]).flatten(1).any(1, keepdim=True)
        return features


def has_own_pooling(folder: Path) -> bool:
    """Return True for CLIP, CLAP, and folders with a Router or with code of this package."""
    configs = [file for name in ("", "0_CLIPModel") if (file := folder / name / "config.json").is_file()]
    try:
        return any(kind.startswith(OWN) or kind.endswith(".Router") for kind in module_types(folder)) or any(
            read_json(file).get("model_type") in MULTIMODAL for file in configs
        )
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise EvaluationError(f"modules.json, router_config.json or config.json of {folder} is damaged: {error}") from error


def load_whole(folder: str | Path, device: str | None = None, batch_size: int = 64, seed: int = 0) -> FolderEncoder:
    """Load a model with built-in pooling: CLIP, SigLIP, CLAP, exports of this package, other sentence-transformers models.

    Only local files and safetensors are read, and no code of the folder is run; see `load_saved`.

    Args:
        folder: Folder of the model.
        device: Device. If None, the first GPU, otherwise the CPU.
        batch_size: Texts of 32 tokens, images or audio clips per batch.
        seed: Random seed of the crops of long audio clips.

    Raises:
        EvaluationError: If the folder does not exist or cannot be loaded, or the model does not encode texts.
    """
    path = Path(folder).expanduser()
    with loading(path):
        if (own := own_type(path)) and own not in plugins.every("module"):
            raise EvaluationError(f"{path} has a module {own}, which this version does not support: export the run again")
        model = load_saved(path, usable_device(device))
        refuse_random(model, path)
        modalities = set(model.modalities)
    if "text" not in modalities:
        raise EvaluationError(f"{path} encodes only {', '.join(map(str, modalities))}; specify a model that encodes texts")
    if modalities & {"image", "audio"}:
        return without_neighbours(MultimodalEncoder(model, path, batch_size, seed))
    return without_neighbours(FolderEncoder(model, path, "own", batch_size))


def _scale(module: Any, folder: Path) -> float | None:
    """Return the factor on cosine similarities of CLIP, CLAP (for audio) and exports of this package, otherwise None."""
    if (folder / SCALE).is_file():
        return float(load_file(folder / SCALE)["logit_scale"].exp())
    model = getattr(module, "auto_model", None)
    for name in ("logit_scale", "logit_scale_a"):
        if isinstance(value := getattr(model, name, None), Tensor) and value.numel() == 1:
            return float(value.detach().exp())
    return None
