"""Encoders of texts and pictures or sounds: CLIP-like and CLAP folders of Hugging Face or sentence-transformers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import soxr
import torch
from safetensors.torch import load_file
from torch import Tensor

from multicse.evaluation.encoders.encoder import Features, FolderEncoder, on_device, usable_device
from multicse.evaluation.encoders.folders import OWN, own_module, refuse_random
from multicse.evaluation.task import EvaluationError, Sound
from multicse.models.hub_folders import CARRIED, SCALE, load_saved


class MultimodalEncoder(FolderEncoder):
    """A folder whose model takes texts and pictures or sounds; made by `load_whole`.

    Vectors are the model's projected features, as its `get_text_features`, `get_image_features` and `get_audio_features`
    give them: CLAP's have unit length, CLIP's do not (those of this project's exports do). They depend neither on the batch
    nor on the order of the items. Sounds are resampled to the model's rate; where a model takes a random cut of a long one
    (CLAP), the cut is drawn anew from `seed` for each.
    """

    def __init__(self, model: Any, path: Path, batch_size: int, seed: int) -> None:
        super().__init__(model, path, "own", batch_size)
        self.items_at_once, self.seed = batch_size, seed
        self.modalities = ("text", *(name for name in ("image", "audio") if name in model.modalities))
        makers: dict[str, Callable[[list[Any]], Features]] = {"image": self._pictures, "audio": self._sounds}
        self.others = {name: partial(self._vectors, make) for name, make in makers.items() if name in self.modalities}
        scale = _scale(model[0], path)
        self._logit_scale = None if scale is None else lambda: scale
        routes = getattr(model[0], "sub_modules", {})
        if routes:  # a sentence that is the address of a picture is a sentence
            self.tokenize = lambda texts: dict(model[0].preprocess(texts, modality="text"))
        elif str(getattr(model[0].config, "model_type", "")).startswith("siglip"):
            self._pad_to_limit()

    @property
    def protocol(self) -> dict[str, Any]:
        """How items become vectors, for a report."""
        return {**super().protocol, **({"sound_seed": self.seed} if "audio" in self.modalities else {})}

    def _pad_to_limit(self) -> None:
        """SigLIP learned from texts padded to its limit, without a mask; shorter rows would give other vectors."""
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

    def _pictures(self, pictures: list[np.ndarray]) -> Features:
        from PIL import Image

        return dict(self.model.preprocess([Image.fromarray(picture) for picture in pictures]))

    def _sounds(self, sounds: list[Sound]) -> Features:
        prepared = [self._sound(sound) for sound in sounds]
        return {
            name: torch.cat([one[name] for one in prepared]) if isinstance(value, Tensor) else value
            for name, value in prepared[0].items()
        }

    def _sound(self, sound: Sound) -> Features:
        """One sound at a time: what the processor draws at random must not depend on its neighbours."""
        routes = getattr(self.model[0], "sub_modules", {})
        processor = (routes["audio"] if routes else self.model)[0].processor
        rate = getattr(processor, "feature_extractor", processor).sampling_rate
        wave = np.asarray(sound.samples, dtype=np.float32)
        if sound.rate != rate:
            wave = soxr.resample(wave, sound.rate, rate)
        with _drawn_from(self.seed):
            features = dict(self.model.preprocess([{"audio": {"array": wave, "sampling_rate": rate}}]))
        mel = features.get("input_features")
        if "is_longer" in features and isinstance(mel, Tensor) and mel.shape[1] == 4:
            # CLAP's fusion flags one sound of every batch as long when none is, so vectors would depend on the batch; a
            # sound that is not long comes as four copies of itself.
            features["is_longer"] = (mel[:, :1] != mel[:, 1:]).flatten(1).any(1, keepdim=True)
        return features


def load_whole(folder: str | Path, device: str | None = None, batch_size: int = 64, seed: int = 0) -> FolderEncoder:
    """An encoder from a folder that has its own way to a vector: CLIP, SigLIP, CLAP, this project's exports and whatever
    else sentence-transformers recognises. Only local files and only safetensors weights are read, and no code of the folder
    is run: of an export that carries its own, this project's copy is taken.

    `device` is the first CUDA device if there is one, else the CPU. `seed` is for models that take a random part of a
    sound longer than their window: vary it to see how much the result owes to it.

    Raises EvaluationError when the folder is missing, does not load, or holds a model without texts.
    """
    path = Path(folder).expanduser()
    if not any((path / name).is_file() for name in ("config.json", "modules.json")):
        raise EvaluationError(f"no model in {path}: it has neither config.json nor modules.json; give a CLIP or CLAP folder")
    if (own := own_module(path)) and own.startswith(OWN) and own not in CARRIED:
        raise EvaluationError(f"{path} has a module {own}, which this version does not know: export the run again")
    where = usable_device(device)
    try:
        model = load_saved(path, where)
        refuse_random(model, path)
        modalities = set(model.modalities)
    except Exception as error:  # the libraries raise a dozen kinds for a broken folder
        raise EvaluationError(f"the model folder {path} does not load: {error}") from error
    if "text" not in modalities:
        raise EvaluationError(f"{path} encodes {', '.join(map(str, modalities))}; a sentence encoder takes texts")
    if modalities & {"image", "audio"}:
        return MultimodalEncoder(model, path, batch_size, seed)
    return FolderEncoder(model, path, "own", batch_size)


def _scale(module: Any, folder: Path) -> float | None:
    """exp of the logarithm that CLIP, CLAP (that of its sounds) and this project's exports keep."""
    if (folder / SCALE).is_file():
        return float(load_file(folder / SCALE)["logit_scale"].exp())
    model = getattr(module, "auto_model", None)
    for name in ("logit_scale", "logit_scale_a"):
        if isinstance(value := getattr(model, name, None), Tensor) and value.numel() == 1:
            return float(value.detach().exp())
    return None


@contextlib.contextmanager
def _drawn_from(seed: int) -> Iterator[None]:
    """NumPy's global generator, which processors draw from, at `seed` inside and undisturbed afterwards."""
    state = np.random.get_state()
    np.random.seed(seed)
    try:
        yield
    finally:
        np.random.set_state(state)
