"""Back-translation with tiny random models: content of the file, resumption, and refused models."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    MarianConfig,
    MarianMTModel,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from multicse.commands import pack
from multicse.reproduction import translate

WORDS = ["<pad>", "</s>", "<unk>", "the", "a", "cat", "dog", "sees", "likes", "one", "two", "red", "blue", "bird"]
SENTENCES = [
    "the cat sees a dog",
    "a red bird",
    "two blue",
    "the dog likes the bird",
    "one cat",
    "a bird sees\tone cat",
    "the",
]
SHAPE = {"vocab_size": len(WORDS), "d_model": 16, "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}


def tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, "<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")


def marian() -> PreTrainedModel:
    sides = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in (("layers", 1), ("attention_heads", 2))}
    return MarianMTModel(MarianConfig(**SHAPE, **sides, encoder_ffn_dim=32, decoder_ffn_dim=32, init_std=1.0))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    made = {}
    for seed, name in enumerate(("there", "back")):
        torch.manual_seed(seed)
        made[name] = folder / name
        marian().save_pretrained(made[name])
        tokenizer().save_pretrained(made[name])
    return made


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("\n\n".join(SENTENCES))
    return tmp_path


def run(folders: dict[str, Path], *more: object) -> int:
    given = {f"--{name}": folder for name, folder in folders.items()} | dict(zip(more[::2], more[1::2], strict=True))
    words = [word for option in given.items() for word in option]
    settings = ["--text", "text.txt", "--out", "out.tsv", "--batch", 2, "--max-length", 12, "--device", "cpu"]
    return translate.main([str(word) for word in [*settings, *words]])


def rows() -> list[tuple[str, str]]:
    header, *lines = Path("out.tsv").read_text().splitlines()
    assert header == "original\ttranslation"
    return [tuple(line.split("\t")) for line in lines]  # type: ignore[misc]


def alone(folder: Path, sentence: str) -> str:
    """Translate one sentence, without batches and padding."""
    model = MarianMTModel.from_pretrained(folder).eval()
    tokens = model.generate(**tokenizer()(sentence, return_tensors="pt"), max_new_tokens=12, num_beams=3, do_sample=False)
    return " ".join(tokenizer().decode(tokens[0], skip_special_tokens=True).split())


def test_a_row_is_the_translation_of_each_sentence_alone(place: Path, folders: dict[str, Path]) -> None:
    assert run(folders, "--beams", 3) == 0
    originals = [" ".join(sentence.split()) for sentence in SENTENCES]
    assert rows() == [(text, alone(folders["back"], alone(folders["there"], text))) for text in originals]
    assert len({translation for _, translation in rows()}) > 1
    assert pack.main(["table", "out.tsv", "--columns", "original", "translation", "--out", "shards"]) == 0


def test_an_interrupted_run_resumes_with_identical_bytes(
    place: Path, folders: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folders) == 0
    whole = Path("out.tsv").read_bytes()
    lines = whole.splitlines(keepends=True)
    Path("out.tsv").write_bytes(b"".join(lines[:6]) + lines[6][:4])  # five rows; the last one is the first of a batch
    capsys.readouterr()
    assert run(folders) == 0 and Path("out.tsv").read_bytes() == whole
    assert "7 rows, 3 of them new" in capsys.readouterr().out
    assert run(folders) == 0 and "0 of them new" in capsys.readouterr().out
    Path("text.txt").write_text("another sentence")
    assert run(folders) == 2 and "other sentences" in capsys.readouterr().err


def test_pickled_weights_are_refused(place: Path, folders: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    Path("pickled").mkdir()
    Path("pickled/pytorch_model.bin").write_bytes(b"")
    assert run(folders, "--back", "pickled") == 2
    assert "AutoModelForSeq2SeqLM.from_pretrained(path, use_safetensors=False)" in capsys.readouterr().err
