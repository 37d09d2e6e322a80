"""Folders of saved models and names on the Hugging Face hub: where they lie, which are refused unread, and how an export is
loaded.
"""

from __future__ import annotations

import importlib
import inspect
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import huggingface_hub  # as a module: it imports what a name of it needs when that is asked for
import torch

if TYPE_CHECKING:  # seconds, which training does not need before an export
    from sentence_transformers import SentenceTransformer
    from transformers import PretrainedConfig

ABOUT = "config_sentence_transformers.json"
"""Settings of a whole sentence-transformers model."""
ROUTER = "router_config.json"
"""What tells a Router of sentence-transformers."""


SCALE = "logit_scale.safetensors"
"""File of a Router's folder with the logarithm of the learned scale, which sentence-transformers does not read."""


HALVES = {"clip_text_model": "CLIPTextModel", "clap_text_model": "ClapTextModel", "clap_audio_model": "ClapAudioModel"}
"""Halves of other models, which come out of a folder of the whole too; the name of each in transformers."""


def model_class(config: PretrainedConfig) -> Any:
    """The class of a text or tower model with this configuration; None where transformers has none without a task."""
    import transformers  # here: a third of a second, which --help need not wait for

    name = HALVES.get(config.model_type)
    return getattr(transformers, name) if name else transformers.MODEL_MAPPING.get(type(config), None)


def has_pooler(config: PretrainedConfig) -> bool:
    """Whether the model type comes with an optional pooler, as BERT does and DistilBERT does not."""
    kind = model_class(config)
    return kind is not None and "add_pooling_layer" in inspect.signature(kind.__init__).parameters


def route_of(folder: Path, modality: str) -> list[tuple[str, Path]]:
    """Type and folder of each module on the route of a modality, of a folder that is a Router of sentence-transformers.

    An empty list stands for every other folder, and for a modality that has no route.
    """
    file = folder / ROUTER
    saved = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {"structure": {}}
    names = saved["structure"].get(modality, ())
    if outside := [name for name in names if Path(name).name != name or name == ".."]:
        raise ValueError(f"{file} names modules outside its folder: {', '.join(outside)}")
    return [(saved["types"][name], folder / name) for name in names]


def projection_layers(route: list[tuple[str, Path]]) -> list[Path]:
    """Folders of the last Dense layers of a route, which lead into the common space: one without bias (CLIP's), or two."""
    dense = [place for kind, place in route if kind.endswith(".Dense")]
    if not dense:
        return []
    linear = not json.loads((dense[-1] / "config.json").read_text(encoding="utf-8"))["bias"]
    return dense[-1:] if linear else dense[-2:]


def half(folder: Path, modality: str) -> Path:
    """The folder of the transformer of a modality: in a Router the first of its route, else `folder` itself."""
    route = route_of(folder, modality)
    return route[0][1] if route else folder


@dataclass(frozen=True)
class PretrainedRef:
    """A setting that names a saved model; errors begin with `setting`."""

    setting: str
    tokenizer: bool
    """The model takes texts, so a tokenizer belongs to its folder."""
    kind: str = "AutoModel"
    """What loads all of its weights in transformers."""

    def folder(self, path: str, weights: bool = True) -> Path:
        """`path` if it is a folder, else what the hub (or its cache) has under that name; never pickled weights.

        Raises ValueError when there is neither.
        """
        if Path(path).is_dir():
            return Path(path)
        tokenizer = ["*.txt", "*.model", "*.spm"] if self.tokenizer else []
        tensors = ["*.safetensors"] if weights else []
        wanted = ["*.json", "README.md", *tokenizer, *tensors]
        try:
            return Path(huggingface_hub.snapshot_download(path, allow_patterns=wanted))
        except (OSError, ValueError) as error:  # ValueError: what is no name of the hub
            raise self.cannot_load(path, error) from error

    def cannot_load(self, path: str, error: Exception) -> ValueError:
        """The error to raise where `path` cannot be loaded because of `error`."""
        parts = "config.json, model.safetensors and a tokenizer" if self.tokenizer else "config.json and model.safetensors"
        return ValueError(
            f"{self.setting}: {path!r} cannot be loaded. Give a folder with {parts}, or the name of such a model on the "
            f"Hugging Face hub. ({error})"
        )

    def load(
        self, kind: Any, path: str, folder: Path, config: PretrainedConfig, optional: str = "", **options: Any
    ) -> tuple[Any, list[str]]:
        """A transformers model of class `kind` in float32, from the safetensors in `folder`, which `path` stands for.

        Also names of weights that are missing: they begin with `optional`. Raises ValueError when others are missing, or the
        folder is damaged.
        """
        try:
            model, report = kind.from_pretrained(
                folder, config=config, use_safetensors=True, dtype=torch.float32, output_loading_info=True, **options
            )
        except Exception as error:  # the libraries raise a dozen kinds for a broken folder
            raise self.cannot_load(path, error) from error
        return model, self._missing(path, config, report, optional)

    def _missing(self, path: str, config: PretrainedConfig, report: dict[str, Any], optional: str) -> list[str]:
        missing = sorted(report["missing_keys"])
        if other := [name for name in missing if not (optional and name.startswith(optional))]:
            raise ValueError(
                f"{self.setting}: {path!r} lacks {len(other)} weights of a {config.model_type!r} model, such as "
                f"{other[0]!r}; they would be random. Is config.json that of these weights?"
            )
        return missing

    def refuse_random(self, path: str, folder: Path, model: Any, tokenizer: Any) -> None:
        """Raise ValueError where `model`, which a library has loaded from `folder`, has weights (other than a pooler's) that
        are not there, so that they are random, or its `tokenizer`, if it takes texts, fails `check_tokenizer`. It is loaded
        once more, for the report."""
        _, report = type(model).from_pretrained(folder, config=model.config, output_loading_info=True)
        self._missing(path, model.config, report, "pooler.")
        if tokenizer is not None:
            self.check_tokenizer(path, tokenizer, model.config)

    def check_tokenizer(self, path: str, tokenizer: Any, config: PretrainedConfig) -> None:
        """Compare the tokenizer of a model with its configuration, and give it a padding token if it has none.

        The padding token is then the one of the configuration's ``pad_token_id``, otherwise the one that ends a text.
        Padding is masked, so that any token will do.

        Raises:
            ValueError: If the tokenizer knows no words, as the one that transformers makes up for a folder without; if it
                has tokens for which the model has no embedding; or if no padding token is found.
        """
        if len(tokenizer) <= len(set(tokenizer.all_special_tokens)):
            raise ValueError(
                f"{self.setting}: {path!r} has no tokenizer, so all words would be the same unknown one; put the model's "
                "tokenizer.json and tokenizer_config.json beside its weights"
            )
        ids, rows = tokenizer.get_vocab(), getattr(config.get_text_config(), "vocab_size", None)
        if rows is not None and (beyond := sorted((i, token) for token, i in ids.items() if i >= rows)):
            raise ValueError(
                f"{self.setting}: the tokenizer of {path!r} has {len(tokenizer):,} tokens, the model {rows:,} embeddings; "
                f"{beyond[0][1]!r} (id {beyond[0][0]}) has none. Call model.resize_token_embeddings(len(tokenizer)) and "
                "save both, or take the tokenizer of this model"
            )
        if tokenizer.pad_token is None:
            names = {i: token for token, i in ids.items()}
            ends = (getattr(config.get_text_config(), "pad_token_id", None), tokenizer.eos_token_id, tokenizer.sep_token_id)
            if (token := next((names[i] for i in ends if i in names), None)) is not None:
                tokenizer.add_special_tokens({"pad_token": token})
        if tokenizer.pad_token is None:
            raise ValueError(
                f"{self.setting}: the tokenizer of {path!r} has no padding token, and none that ends a text; name one as "
                '"pad_token" in its tokenizer_config.json'
            )

    def refuse_unreadable(self, path: str, folder: Path, weights: bool = True) -> None:
        """Refuse a folder that is no model whose weights can be read, before anything is loaded.

        Args:
            path: Name that the user gave.
            folder: Folder of the transformer that `path` stands for.
            weights: The weights should be there.

        Raises:
            ValueError: If the folder has weights, but no safetensors; if it is an adapter without its model; or if its
                architecture is Python code of its own.
        """
        if not folder.is_dir():
            return
        tensors = [file for file in folder.rglob("*.safetensors") if not file.name.startswith("adapter_")]
        whole = self is EVALUATED and (tensors or (folder / "modules.json").is_file())  # sentence-transformers adds the two
        if (folder / "adapter_config.json").is_file() and not whole:
            raise ValueError(
                f"{self.setting}: {path!r} holds an adapter (adapter_config.json). Merge it into its model once: "
                "peft.AutoPeftModelForFeatureExtraction.from_pretrained(path).merge_and_unload().save_pretrained(new_path), "
                "and save the tokenizer there"
            )
        if weights and not tensors and list(folder.glob("*.bin")):
            likewise = ", likewise the tokenizer" if self.tokenizer else ""
            raise ValueError(
                f"{self.setting}: {path!r} has only pickled weights (pytorch_model.bin), which can run code when loaded. If "
                "you trust them, convert them once where they came from: "
                f"{self.kind}.from_pretrained(path, use_safetensors=False).save_pretrained(new_path){likewise}."
            )
        other = next((kind for end, kind in CONVERTED.items() if next(folder.rglob(end), None)), None)
        if weights and not tensors and other:
            raise ValueError(
                f"{self.setting}: {path!r} has weights of {other} only, and no safetensors; give the folder of the model "
                "that they were converted from"
            )
        file = folder / "config.json"
        about = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        if about.get("auto_map") and about.get("model_type") not in _known_types():
            raise ValueError(
                f"{self.setting}: {path!r} is a model of type {about.get('model_type')!r} with Python code of its own "
                "(auto_map in config.json), and the code of a model is not run; choose a type that transformers has"
            )


CONVERTED = {"*.onnx": "ONNX", "openvino_*.xml": "OpenVINO", "*.gguf": "GGUF", "*.h5": "TensorFlow", "*.msgpack": "Flax"}
"""Files that a folder may have in place of safetensors, and what they are."""


def _known_types() -> Any:
    from transformers import CONFIG_MAPPING

    return CONFIG_MAPPING


EVALUATED = PretrainedRef("model", tokenizer=True)
ENCODER = PretrainedRef("encoder.path", tokenizer=True)
TOWER = PretrainedRef("method.tower.path", tokenizer=False)


def languages_of(folder: str | None) -> tuple[str, ...]:
    """Codes of the languages that the card of a model's folder names; none without a card."""
    card = Path(folder or "") / "README.md"
    found = (huggingface_hub.metadata_load(card) or {}).get("language") if card.is_file() else None
    return (found,) if isinstance(found, str) else tuple(found or ())


# ---- exports ---------------------------------------------------------------------------------------------------------


class ExportError(ValueError):
    """A checkpoint that cannot be exported, or a place where it may not go."""


RESNET, WORDS = "multicse_resnet.ResNetModule", "multicse_words.WordModule"
"""What a folder calls these classes: the copy of a file in it, and a class in that."""
CARRIED = {RESNET: "resnet_module", WORDS: "word_module"}
"""Modules of this package that hold them. Each class copies its files to the folders that it is saved to."""


def module_types(folder: Path) -> list[str]:
    """Types of the modules of a sentence-transformers folder, a Router's included; none for other folders."""
    modules, router = folder / "modules.json", folder / ROUTER
    types = [entry["type"] for entry in json.loads(modules.read_text(encoding="utf-8"))] if modules.is_file() else []
    return [*types, *(json.loads(router.read_text(encoding="utf-8"))["types"].values() if router.is_file() else ())]


def carried_files(folder: Path) -> list[str]:
    """Names of the folder's files of Python, which `trust_remote_code` runs; none where it needs no code."""
    return sorted(file.name for file in folder.glob("*.py")) if CARRIED.keys() & {*module_types(folder)} else []


WEIGHTS = {"use_safetensors": True, "dtype": torch.float32}
"""How sentence-transformers loads weights here: as training does, whatever numbers the file has."""


def load_saved(folder: Path, device: str = "cpu") -> SentenceTransformer:
    """The model of an export, or of any other sentence-transformers or CLIP-like folder, from local safetensors.

    No code of the folder is run: of one that brings its own, this project's copy is taken, whatever the folder's says.
    """
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Normalize, Router

    options: dict[str, Any] = {"local_files_only": True, "model_kwargs": WEIGHTS}
    own = next((kind for kind in CARRIED if kind in module_types(folder)), None)
    if own is None:
        return SentenceTransformer(str(folder), device=device, **options)
    module = getattr(importlib.import_module(f".{CARRIED[own]}", __package__), own.partition(".")[2])
    if own == WORDS:
        return SentenceTransformer(modules=[module.load(str(folder), local_files_only=True)], device=device)
    router = Router.load(str(folder), module_classes={own: module}, **options)
    about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    prompts = {name: about[name] for name in ("prompts", "default_prompt_name")}
    return SentenceTransformer(modules=[router, Normalize()], device=device, **prompts)
