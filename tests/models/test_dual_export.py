"""Exports of dual encoders, loaded by processes without this package."""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoModel, AutoProcessor, CLIPTextConfig, Dinov2Config, Dinov2Model, RobertaConfig

from multicse.data.streams.inputs import AudioInput, ImageInput
from multicse.evaluation.encoders.multimodal import load_whole
from multicse.evaluation.load import load_model
from multicse.evaluation.task import EvaluationError, Sound
from multicse.models.audio_towers import ASTTower, HTSATTower
from multicse.models.dual_encoder import DualEncoder, check_projection
from multicse.models.dual_export import form_of, save_dual
from multicse.models.hub_folders import carried_files, load_saved
from multicse.models.pooling import Pooling
from multicse.models.probes import check_folder
from multicse.models.sentence_encoder import hub_names
from multicse.models.st_modules import Conventions
from multicse.models.text_encoder import TextEncoder
from multicse.models.text_folders import new_model, text_config
from multicse.models.towers import ViTTower
from multicse.reproduction.towers import ResNetTower
from multicse.trainers.engine.export import verify_export
from tests.models import tiny_encoder

TEXTS = ["the cat sleeps", "a dog", " ".join(["red park man"] * 12), "guitar", "the small woman eats in the street"]
PROMPT = "the red "
WORDS = len(tiny_encoder.SPECIAL + tiny_encoder.WORDS)
TEXT = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": WORDS}
CLAP_INPUT = AudioInput(rate=8000, seconds=1, bins=16, n_fft=512, hop=80, high_hz=4000)
KALDI_INPUT = AudioInput(features="kaldi", rate=16000, seconds=0.5, bins=16)
Made = dict[str, tuple[DualEncoder, Path]]
NAMES = ("clip", "clap", "released-resnet", "bert-vit", "bert-dino", "bert-htsat", "roberta-ast")


def images(size: int) -> list[np.ndarray]:
    """Images of the tower's size and of one with four more pixels, which need no resizing, and images of other sizes."""
    rng = np.random.default_rng(0)
    shapes = [(size, size), (size, size + 4), (size + 4, size), (2 * size, 2 * size), (size - 3, size - 3)]
    return [rng.integers(0, 256, (*shape, 3), dtype=np.uint8) for shape in shapes]


def clips(rate: int, lengths: tuple[int, ...] = (8000, 1500, 3999, 700)) -> list[Sound]:
    """Audio clips of 16-bit samples, at most as long as a window."""
    rng = np.random.default_rng(1)
    waves = [np.clip(rng.standard_normal(n).cumsum() * 500, -32768, 32767).round() / 32768 for n in lengths]
    return [Sound(wave.astype(np.float32), rate) for wave in waves]


def text_encoder(name: str) -> TextEncoder:
    made: dict[str, tuple[Any, Pooling]] = {
        "clip": (
            CLIPTextConfig(**TEXT, max_position_embeddings=24, bos_token_id=2, eos_token_id=3, pad_token_id=0),
            "lasttoken",
        ),
        "roberta": (RobertaConfig(**TEXT, max_position_embeddings=26, pad_token_id=0, type_vocab_size=1), "pooler"),
        "bert": (tiny_encoder.bert_config(), "mean"),
    }
    return TextEncoder(new_model(made[name][0]), tiny_encoder.tokenizer(), made[name][1])


def dino() -> DualEncoder:
    """A dual encoder with DINOv2, from a folder that is deleted afterwards."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 16, "patch_size": 8}
    with tempfile.TemporaryDirectory() as folder:
        Dinov2Model(Dinov2Config(**sizes)).save_pretrained(folder)
        return DualEncoder(text_encoder("bert"), ViTTower(input=ImageInput(size=16), path=folder), 6)


def build(name: str) -> DualEncoder:
    torch.manual_seed(0)
    vit = ViTTower(input=ImageInput(size=16, mean=(0.4, 0.5, 0.6)), patch_size=8, width=16, layers=2, heads=2)
    resnet = ResNetTower(input=ImageInput(size=32), width=4, blocks=(1, 1, 1, 2))
    htsat = HTSATTower(input=CLAP_INPUT, spec_size=64, embed=8, depths=(1, 1), heads=(2, 2), window=4)
    ast = ASTTower(input=KALDI_INPUT, patch_size=8, stride=6, width=16, layers=2, heads=2, mask_frames=4, mean=-5.0, std=3.0)
    dual = {
        "clip": lambda: DualEncoder(text_encoder("clip"), vit, 6),
        "clap": lambda: DualEncoder(text_encoder("roberta"), htsat, 6, "mlp"),
        "released-resnet": lambda: DualEncoder(text_encoder("clip"), resnet, 6, keeps_end=False),
        "bert-vit": lambda: DualEncoder(text_encoder("bert"), vit, 6, "mlp"),
        "bert-dino": dino,
        "bert-htsat": lambda: DualEncoder(text_encoder("bert"), htsat, 6),
        "roberta-ast": lambda: DualEncoder(text_encoder("roberta"), ast, 6, "mlp"),
    }[name]()
    for part, value in dual.named_parameters():
        if value.ndim > 1:  # with the initial weights all vectors would be similar
            torch.nn.init.normal_(value, std=0.2)
        elif part.endswith("bn3.weight"):
            torch.nn.init.ones_(value)
    dual.logit_scale.data.fill_(1.5)
    dual.text.conventions = Conventions({"query": PROMPT}, "query")
    return dual.eval()


def items_of(dual: DualEncoder) -> list[Any]:
    return images(dual.input.size) if isinstance(dual.input, ImageInput) else clips(dual.input.rate)


LOADER = """
import json, sys
import numpy as np, torch
assert "multicse" not in sys.modules
from PIL import Image
from sentence_transformers import SentenceTransformer
torch.set_num_threads(1)
for folder, text, code, rate in json.loads(sys.argv[1]):
    model = SentenceTransformer(folder, device="cpu", trust_remote_code=code)
    content = np.load(folder + "/../items.npz")
    items = [content[name] for name in sorted(content.files)]
    if "image" in model.modalities:
        items = [Image.fromarray(item) for item in items]
    else:
        items = [{"audio": {"array": item, "sampling_rate": rate}} for item in items]
    out = {"texts": model.encode(text), "items": model.encode(items, batch_size=2), "one": model.encode(items[1])}
    out["similarity"] = model.similarity(out["texts"], out["items"]).numpy()
    model.save(folder + "/../again")
    again = SentenceTransformer(folder + "/../again", device="cpu", trust_remote_code=code)
    out["again"] = np.concatenate([again.encode(text), again.encode(items)])
    np.savez(folder + "/../vectors.npz", **out)
assert "multicse" not in sys.modules
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Every kind of dual encoder with its folder; another process has written its vectors next to the folder."""
    place = tmp_path_factory.mktemp("exports")
    duals = {name: build(name) for name in NAMES}
    jobs = []
    for name, dual in duals.items():
        folder = place / name / "model"
        dual.tokenize(TEXTS)  # tokenizers store their last call, and must not save it
        save_dual(dual, str(folder))
        arrays: list[Any] = [item.samples if isinstance(item, Sound) else item for item in items_of(dual)]
        content: dict[str, Any] = {f"{i}": array for i, array in enumerate(arrays)}
        np.savez(place / name / "items.npz", **content)
        jobs.append((str(folder), TEXTS, name == "released-resnet", getattr(dual.input, "rate", 0)))
        dual.keeps_end = True  # exports keep the end of truncated texts
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"HF_MODULES_CACHE": str(place / "cache")}
    command = [sys.executable, "-P", "-c", LOADER, json.dumps(jobs)]
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return {name: (dual, place / name / "model") for name, dual in duals.items()}


@pytest.mark.parametrize("name", NAMES)
def test_another_process_computes_the_same_vectors(made: Made, name: str) -> None:
    dual, folder = made[name]
    assert form_of(dual) == (name if name in ("clip", "clap") else "router")
    assert carried_files(folder) == (["multicse_resnet.py", "resnet.py"] if name == "released-resnet" else [])
    assert not [file for file in folder.rglob("*") if file.suffix in (".bin", ".pt", ".pkl", ".pickle")]
    with torch.no_grad():
        texts, items = dual(dual.tokenize(TEXTS)).numpy(), dual.encode_items(items_of(dual)).numpy()
    for vectors in (texts, items):  # vectors differ between items
        assert np.abs(vectors[:, None] - vectors).max(-1)[~np.eye(len(vectors), dtype=bool)].min() > 1e-3
    found = np.load(folder.parent / "vectors.npz")
    np.testing.assert_allclose(found["texts"], texts, atol=1e-4)
    np.testing.assert_allclose(found["items"], items, atol=1e-4)
    np.testing.assert_allclose(found["one"], items[1], atol=1e-4)
    np.testing.assert_allclose(found["similarity"], texts @ items.T, atol=1e-4)
    if name != "clap":  # its saved processor uses the limit of texts as a number of samples
        np.testing.assert_allclose(found["again"], np.concatenate([texts, items]), atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_evaluation_computes_the_same_vectors(made: Made, name: str) -> None:
    """For AST also with audio clips that are longer or shorter than a window, which are cropped as in evaluation."""
    dual, folder = made[name]
    encoder: Any = load_model(str(folder), device="cpu")
    items, modality = items_of(dual), dual.modalities[1]
    if name == "roberta-ast":
        items += clips(16000, (30000, 420))
    with torch.no_grad():
        np.testing.assert_allclose(encoder.encode(TEXTS), dual(dual.tokenize(TEXTS)).numpy(), atol=1e-4)
        np.testing.assert_allclose(encoder.encode(items, modality), dual.encode_items(items).numpy(), atol=1e-4)
    assert encoder.logit_scale == pytest.approx(float(np.exp(1.5)))
    assert encoder.modalities == ("text", modality)
    with pytest.raises(EvaluationError, match=r"needs modality '(audio|image)'"):
        encoder.encode([], "audio" if modality == "image" else "image")


@pytest.mark.parametrize("name", ["clip", "clap"])
def test_transformers_loads_its_own_architectures(made: Made, name: str) -> None:
    """RoBERTa's weights and pooler become the text transformer of CLAP."""
    dual, folder = made[name]
    model: Any = AutoModel.from_pretrained(folder).eval()
    processor = AutoProcessor.from_pretrained(folder)
    items, modality = items_of(dual), dual.modalities[1]
    given: dict[str, Any] = {"images": [Image.fromarray(item) for item in items]} if name == "clip" else {}
    given = given or {"audio": [clip.samples for clip in items], "sampling_rate": 8000}
    prompted = [PROMPT + text for text in TEXTS]
    texts = processor(text=prompted, return_tensors="pt", padding=True, truncation=True)
    with torch.no_grad():
        out = model(**texts, **processor(**given, return_tensors="pt"))
        want, vectors = dual(dual.tokenize(TEXTS)), dual.encode_items(items)
    torch.testing.assert_close(out.text_embeds, want, atol=1e-5, rtol=0)
    torch.testing.assert_close(out[f"{modality}_embeds"], vectors, atol=1e-4, rtol=0)
    torch.testing.assert_close(out[f"logits_per_{modality}"], dual.scale.detach() * vectors @ want.T, atol=1e-3, rtol=0)


AST = ASTTower(input=KALDI_INPUT, patch_size=8, stride=6, mask_frames=4)


@pytest.mark.parametrize(
    ("tower", "change"),
    [
        (HTSATTower(), {"seconds": 0.5}),
        (HTSATTower(), {"features": "kaldi"}),
        (AST, {"features": "clap"}),
        (AST, {"rate": 8000}),
    ],
)
def test_inputs_without_a_feature_extractor_are_refused(tower: Any, change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"method\.tower\.input: an export .* streams\.pairs\.input"):
        tower.model_copy(update={"input": tower.input.model_copy(update=change)}).check()


@pytest.mark.parametrize("name", ["clip", "clap", "bert-vit", "bert-htsat", "roberta-ast"])
def test_training_continues_from_both_encoders_of_an_export(made: Made, name: str, tmp_path: Path) -> None:
    """The new export contains no local paths."""
    dual, folder = made[name]
    kinds: dict[str, Any] = {"AST": ASTTower, "HTSAT": HTSATTower}
    kind = kinds.get(type(dual.tower).__name__, ViTTower)
    masks = {"mask_frames": 4, "mean": -5.0, "std": 3.0} if kind is ASTTower else {}
    config = kind(input=dual.input, path=str(folder), **masks)
    config.check()
    other = {"mean": (0.1, 0.2, 0.3)} if dual.modalities[1] == "image" else {"seconds": 9.0}
    with pytest.raises(ValueError, match=r"^method\.tower"):  # differs from the preprocessor of the folder
        config.model_copy(update={"input": dual.input.model_copy(update=other)}).check()
    for modality in dual.modalities:
        check_projection("encoder.path", str(folder), modality, dual.projection, 6)
        with pytest.raises(ValueError, match=rf"method\.projection={dual.projection!r}, method\.embed_dim=7"):
            check_projection("encoder.path", str(folder), modality, dual.projection, 7)
    check_folder(str(folder))
    text = TextEncoder.from_pretrained(str(folder))
    assert text.projected == (form_of(dual) == "router") and text.hidden_size == text_config(str(folder)).hidden_size
    again = DualEncoder(text, config, 6, dual.projection).eval()
    items = items_of(dual)
    with torch.no_grad():
        torch.testing.assert_close(again.encode_items(items), dual.encode_items(items), atol=1e-5, rtol=0)
        torch.testing.assert_close(again(again.tokenize(TEXTS)), dual(dual.tokenize(TEXTS)), atol=1e-5, rtol=0)
        assert again.scale.item() == pytest.approx(float(np.exp(1.5)))
        save_dual(again, str(tmp_path / "again"))
        configs = [file.read_text() for file in (tmp_path / "again").rglob("*.json")]
        assert len(configs) > 5 and not any(str(folder.parent) in content for content in configs)


def test_no_code_of_a_folder_is_run(made: Made, tmp_path: Path) -> None:
    """Code is not run from copies of our files or through `auto_map`, and other classes are refused."""
    dual, folder = made["released-resnet"]
    evil = tmp_path / "evil"
    shutil.copytree(folder, evil)
    trace = f"open({str(tmp_path / 'ran')!r}, 'w').write('x')\n"
    text = evil / "text_0_Transformer"
    for file in (evil / "multicse_resnet.py", evil / "resnet.py", evil / "modeling.py", text / "modeling.py"):
        file.write_text((file.read_text() if file.is_file() else "") + trace)
    content = json.loads((text / "config.json").read_text())
    auto = {"auto_map": {"AutoConfig": "modeling.C", "AutoModel": "modeling.M"}}
    (text / "config.json").write_text(json.dumps({**content, **auto}))
    with torch.no_grad():
        np.testing.assert_allclose(load_model(str(evil)).encode(TEXTS), dual(dual.tokenize(TEXTS)), atol=1e-4)
    verify_export(dual, evil)
    router = (evil / "router_config.json").read_text()
    (evil / "router_config.json").write_text(router.replace("multicse_resnet.ResNetModule", "modeling.Module"))
    for load in (load_saved, lambda place: load_model(str(place))):
        with pytest.raises(ValueError, match="trust_remote_code"):
            load(evil)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("kind", ["multicse_new.Thing", "multicse_dual.DualEncoder"])
def test_exports_of_other_versions_are_refused(tmp_path: Path, kind: str) -> None:
    (tmp_path / "modules.json").write_text(json.dumps([{"idx": 0, "name": "0", "path": "", "type": kind}]))
    with pytest.raises(EvaluationError, match=rf"{kind}.*export the run again"):
        load_whole(tmp_path)


HUB, TOWER = "google-bert/bert-base-uncased", "some/tower"


@pytest.mark.parametrize(
    ("scratch", "tower", "bases"),
    [(False, HUB, [HUB]), (False, TOWER, [HUB, TOWER]), (False, "/home/someone/tower", [HUB]), (True, None, [])],
)
def test_the_card_lists_the_initial_weights(made: Made, scratch: bool, tower: str | None, bases: list[str]) -> None:
    dual, folder = made["bert-vit"]
    dual = copy.deepcopy(dual)
    dual.text.origin, dual.text.path, dual.tower_path = HUB, None if scratch else "/cache/folder", tower
    text = dual.card(folder)
    compile("\n".join(text.usage), "snippet", "exec")
    assert "/home" not in text.initialised_from and hub_names(text.bases) == bases
