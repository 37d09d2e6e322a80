"""Loading of pretrained models from a folder or the Hugging Face Hub, from safetensors and without running their code."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import huggingface_hub  # as a module: it imports what a name of it needs when that name is used
import torch

from multicse.models.hub_folders import model_class, read_json
from multicse.models.packing import DECODERS
from multicse.models.segments import segments_of, takes

if TYPE_CHECKING:
    from transformers import PretrainedConfig


@dataclass(frozen=True)
class PretrainedRef:
    """Setting that names a pretrained model; all errors start with `setting`.

    Methods take `path`, the model as the user specified it, for errors, and `folder`, which contains its files.
    """

    setting: str
    tokenizer: bool
    """The model encodes texts, so its folder must contain a tokenizer."""
    kind: str = "AutoModel"
    """Class of transformers that loads all weights of the model."""
    adapters: bool = False
    """The library that opens the folder loads an adapter together with its model."""

    def folder(self, path: str, weights: bool = True) -> Path:
        """Return the folder of a model; a model of the Hugging Face Hub is downloaded, with or without its safetensors."""
        if Path(path).is_dir():
            return Path(path)
        tokenizer = ["*.txt", "*.model", "*.spm"] if self.tokenizer else []
        tensors = ["*.safetensors"] if weights else ["*_Dense/*.safetensors", "*_WeightedLayerPooling/*.safetensors"]
        wanted = ["*.json", "README.md", *tokenizer, *tensors]
        try:
            return Path(huggingface_hub.snapshot_download(path, allow_patterns=wanted))
        except (OSError, ValueError) as error:  # ValueError: not a valid model ID
            raise self.cannot_load(path, error) from error

    def cannot_load(self, path: str, error: Exception) -> ValueError:
        """Return the error to raise if `path` cannot be loaded because of `error`."""
        parts = "config.json, model.safetensors and a tokenizer" if self.tokenizer else "config.json and model.safetensors"
        return ValueError(
            f"{self.setting}: {path!r} cannot be loaded. Specify a folder with {parts}, or the ID of such a model on the "
            f"Hugging Face Hub. ({error})"
        )

    def load(
        self, kind: Any, path: str, folder: Path, config: PretrainedConfig, optional: str = "", **options: Any
    ) -> tuple[Any, list[str]]:
        """Load a transformers model in float32 from safetensors, and return it with the names of missing weights.

        Raises ValueError if weights without the prefix `optional` are missing.
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
                f"{other[0]!r}; they would be random. Check that config.json belongs to these weights"
            )
        return missing

    def refuse_random(self, path: str, folder: Path, model: Any, tokenizer: Any) -> None:
        """Raise ValueError if a model that a library has loaded has random weights or an invalid tokenizer (if any).

        The model is loaded once more to find the missing weights. The weights of a pooler may be missing. The weights of an
        adapter's folder are not checked.
        """
        if not (folder / ADAPTER).is_file():
            _, report = type(model).from_pretrained(folder, config=model.config, output_loading_info=True)
            self._missing(path, model.config, report, "pooler.")
        if tokenizer is not None:
            self.check_tokenizer(path, tokenizer, model.config)

    def check_tokenizer(self, path: str, tokenizer: Any, config: PretrainedConfig) -> None:
        """Check a tokenizer against its model's configuration, and add a padding token if it has none.

        The added padding token is the token of the configuration's ``pad_token_id``, otherwise the token that ends a text.
        Padding is masked, so any token works. Raises ValueError if the tokenizer has no vocabulary, as when transformers
        creates one for a folder without a tokenizer, or tokens without an embedding, or no padding token is found.
        """
        if len(tokenizer) <= len(set(tokenizer.all_special_tokens)):
            raise ValueError(
                f"{self.setting}: {path!r} has no tokenizer, so all words would become the same unknown token; put the "
                "model's tokenizer.json and tokenizer_config.json next to its weights"
            )
        ids, rows = tokenizer.get_vocab(), getattr(config.get_text_config(), "vocab_size", None)
        if rows is not None and (beyond := sorted((i, token) for token, i in ids.items() if i >= rows)):
            raise ValueError(
                f"{self.setting}: the tokenizer of {path!r} has {len(tokenizer):,} tokens, the model {rows:,} embeddings; "
                f"{beyond[0][1]!r} (id {beyond[0][0]}) has none. Call model.resize_token_embeddings(len(tokenizer)) and "
                "save both, or use the tokenizer of this model"
            )
        if tokenizer.pad_token is None:
            names = {i: token for token, i in ids.items()}
            ends = (getattr(config.get_text_config(), "pad_token_id", None), tokenizer.eos_token_id, tokenizer.sep_token_id)
            if (token := next((names[i] for i in ends if i in names), None)) is not None:
                tokenizer.add_special_tokens({"pad_token": token})
        if tokenizer.pad_token is None:
            raise ValueError(
                f"{self.setting}: the tokenizer of {path!r} has no padding token, and no token that ends a text; specify "
                'a "pad_token" in its tokenizer_config.json'
            )
        pad_and_mask(tokenizer, config)
        try:
            segments = segments_of(tokenizer, model_class(config))
        except ValueError as error:
            raise ValueError(
                f'{self.setting}: {path!r} has {error}; remove "token_type_ids" from model_input_names in its '
                "tokenizer_config.json"
            ) from None
        kinds = getattr(config, "type_vocab_size", None)
        if kinds and segments is not None and (most := max(*segments.first, segments.text, *segments.last)) >= kinds:
            raise ValueError(
                f"{self.setting}: the tokenizer of {path!r} gives tokens the type {most} (template in tokenizer.json), but "
                f"the model has {kinds} types (type_vocab_size in config.json); change the template, or remove "
                '"token_type_ids" from model_input_names in tokenizer_config.json'
            )

    def refuse_unreadable(self, path: str, folder: Path, weights: bool = True) -> None:
        """Raise ValueError, before anything is loaded, if a folder that exists contains a model that cannot be read.

        It may have no safetensors (if it should contain `weights`), be an adapter without its model, or need Python code.
        """
        from transformers import CONFIG_MAPPING

        if not folder.is_dir():
            return
        tensors = [file for file in folder.rglob("*.safetensors") if not file.name.startswith("adapter_")]
        complete = self.adapters and (tensors or (folder / "modules.json").is_file())
        adapter = (folder / ADAPTER).is_file()
        if adapter and not complete:
            raise ValueError(
                f"{self.setting}: {path!r} contains an adapter (adapter_config.json). Merge it into its model once: "
                f"{merging(folder)}.save_pretrained(new_path), and save the tokenizer there"
            )
        if weights and not tensors and list(folder.glob("*.bin")):
            also = ", and save the tokenizer the same way" if self.tokenizer else ""
            raise ValueError(
                f"{self.setting}: {path!r} has only pickled weights (pytorch_model.bin), which can run code when loaded. If "
                "you trust their source, convert them once: "
                f"{self.kind}.from_pretrained(path, use_safetensors=False).save_pretrained(new_path){also}."
            )
        file = folder / "config.json"
        if weights and not (tensors or adapter) and file.is_file():
            raise ValueError(
                f"{self.setting}: {path!r} has no safetensors; specify a folder with model.safetensors. Weights in other "
                "formats, such as ONNX or GGUF, were converted from such a folder"
            )
        about = read_json(file) if file.is_file() else {}
        if about.get("auto_map") and about.get("model_type") not in CONFIG_MAPPING:
            raise ValueError(
                f"{self.setting}: {path!r} is a model of type {about.get('model_type')!r} with custom Python code "
                "(auto_map in config.json), which is not run; choose a model type that transformers supports"
            )


ADAPTER = "adapter_config.json"
"""File that identifies an adapter, whose folder contains neither the configuration nor the weights of its model."""


def merging(folder: Path) -> str:
    """Return Python code that merges the adapter in a folder into its model."""
    base = read_json(folder / ADAPTER).get("base_model_name_or_path") or "the model of the adapter"
    return f"peft.PeftModel.from_pretrained(AutoModel.from_pretrained({base!r}), path).merge_and_unload()"


def pad_and_mask(tokenizer: Any, config: PretrainedConfig) -> None:
    """Let a tokenizer pad and mask so that the vector of a text does not depend on the other texts of its batch.

    Padding is on the right, except for decoders with rotary positions: absolute positions would depend on the longest text.
    The attention mask is returned, and token types only if the model has them; saved tokenizers keep these settings.
    """
    if config.model_type not in DECODERS:
        tokenizer.padding_side = "right"
    names = [name for name in tokenizer.model_input_names if name != "token_type_ids" or takes(model_class(config), name)]
    if "attention_mask" not in names:
        names.append("attention_mask")
    if names != tokenizer.model_input_names:
        tokenizer.model_input_names = tokenizer.init_kwargs["model_input_names"] = names


EVALUATED = PretrainedRef("model", tokenizer=True, adapters=True)
ENCODER = PretrainedRef("encoder.path", tokenizer=True)
TOWER = PretrainedRef("method.tower.path", tokenizer=False)
