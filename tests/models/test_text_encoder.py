"""Text encoder: pooling, patches, loading and saving."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import get_args

import pytest
import torch
from sentence_transformers import SentenceTransformer
from torch import nn
from transformers import (
    BertModel,
    DistilBertConfig,
    ModernBertConfig,
    MPNetConfig,
    PretrainedConfig,
    RobertaConfig,
    XLMRobertaConfig,
)

from multicse.models.adapters import frozen
from multicse.models.packing import drop
from multicse.models.pooling import Pooling
from multicse.models.text_encoder import TextEncoder
from multicse.models.text_folders import positions, set_dropouts
from tests.models import tiny_encoder

TEXTS = ["the dog runs", "a happy woman plays the guitar in the park", "cat"]
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
VOCABULARY = {"vocab_size": 40, "max_position_embeddings": 26, "pad_token_id": 0}
CONFIGS: dict[str, PretrainedConfig] = {
    "bert": tiny_encoder.bert_config(),
    "roberta": RobertaConfig(**SIZES, **VOCABULARY),
    "xlm-roberta": XLMRobertaConfig(**SIZES, **VOCABULARY),
    "distilbert": DistilBertConfig(vocab_size=40, dim=16, n_layers=2, n_heads=2, hidden_dim=32),
}


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=1e-5)


@torch.no_grad()
def vectors(encoder: TextEncoder) -> torch.Tensor:
    return encoder.eval()(encoder.tokenize(TEXTS))


def test_pooling_against_loops() -> None:
    encoder = tiny_encoder.encoder().eval()
    batch = encoder.tokenize(TEXTS)
    states = encoder.model(**batch, output_hidden_states=True).hidden_states
    assert len(states) == 3

    def mean(i: int, *layers: int) -> torch.Tensor:
        n = int(batch["attention_mask"][i].sum())
        return torch.stack([states[layer][i, :n] for layer in layers]).mean(dim=(0, 1))

    expected: dict[Pooling, Callable[[int], torch.Tensor]] = {
        "pooler": lambda i: states[-1][i, 0],
        "cls": lambda i: states[-1][i, 0],
        "mean": lambda i: mean(i, -1),
        "max": lambda i: states[-1][i, : int(batch["attention_mask"][i].sum())].max(0).values,
        "lasttoken": lambda i: states[-1][i, int(batch["attention_mask"][i].sum()) - 1],
        "last2": lambda i: mean(i, -1, -2),
        "first-last": lambda i: mean(i, 0, -1),
    }
    assert set(expected) == set(get_args(Pooling))
    for pooling, one in expected.items():
        encoder.pooling = pooling
        close(vectors(encoder), torch.stack([one(i) for i in range(3)]))


@pytest.mark.parametrize("kind", CONFIGS)
def test_patches_pass_through_the_layers_only(kind: str) -> None:
    """Without positions, token types, LayerNorm and dropout of the text embeddings, and without mask."""
    encoder = tiny_encoder.encoder(config=CONFIGS[kind]).eval()
    patches = torch.randn(2, 7, 16)
    out = encoder.outputs(patches=patches)
    # the complete model gives the same output if its embedding module returns the patches unchanged
    model = copy.deepcopy(encoder.model)
    model.embeddings.forward = lambda *args, **kwargs: patches
    close(out.tokens, model(inputs_embeds=torch.zeros(2, 7, 16)).last_hidden_state)
    # without positions the order of the other patches does not matter
    shuffled = encoder.outputs(patches=patches[:, [0, 3, 1, 2, 6, 5, 4]]).pooled
    close(out.pooled, shuffled)


def test_roberta_has_fewer_positions_than_configured() -> None:
    config = RobertaConfig(**SIZES, vocab_size=40, max_position_embeddings=14, pad_token_id=1)
    encoder = tiny_encoder.encoder(config=config)
    assert encoder.limit == positions(config) == 12
    assert positions(MPNetConfig(max_position_embeddings=14)) == 12 and positions(CONFIGS["bert"]) == 24
    assert vectors(encoder).shape == (3, 16)
    assert encoder.tokenize([" ".join(["dog"] * 100)])["input_ids"].shape == (1, 12)


def test_folders_have_the_format_of_version_5(tmp_path: Path) -> None:
    """The exact files that tests/interop loads with that version."""
    encoder = tiny_encoder.encoder("first-last")
    encoder.add_head(only_trains=False)
    encoder.save(str(tmp_path))
    entries = json.loads((tmp_path / "modules.json").read_text())
    assert [entry["type"] for entry in entries] == [
        f"sentence_transformers.models.{name}" for name in ("Transformer", "WeightedLayerPooling", "Pooling", "Dense")
    ]
    layers, pooling, dense = (json.loads((tmp_path / entry["path"] / "config.json").read_text()) for entry in entries[1:])
    assert layers == {"word_embedding_dimension": 16, "layer_start": 0, "num_hidden_layers": 2}
    assert pooling["word_embedding_dimension"] == 16 and [name for name, on in pooling.items() if on is True] == [
        "pooling_mode_mean_tokens"
    ]
    assert set(dense) == {"in_features", "out_features", "bias", "activation_function"}
    limit = json.loads((tmp_path / "sentence_bert_config.json").read_text())
    assert limit == {"max_seq_length": 24, "do_lower_case": False}
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["tokenizer_class"] == "PreTrainedTokenizerFast"


def test_head_that_only_trains_is_neither_evaluated_nor_saved(tmp_path: Path) -> None:
    encoder = tiny_encoder.encoder()
    before = vectors(encoder)
    encoder.add_head(only_trains=True)
    close(vectors(encoder), before)
    encoder.save(str(tmp_path))
    close(torch.from_numpy(SentenceTransformer(str(tmp_path), device="cpu").encode(TEXTS)), before)
    assert TextEncoder.from_pretrained(str(tmp_path)).head is None


def test_a_pretrained_pooler_is_replaced_by_a_training_head(tmp_path: Path) -> None:
    bert = BertModel(tiny_encoder.bert_config())
    bert.save_pretrained(tmp_path)
    tiny_encoder.tokenizer().save_pretrained(tmp_path)
    loaded = TextEncoder.from_pretrained(str(tmp_path), pooling="pooler")
    loaded.add_head(only_trains=True)  # SimCSE drops the pretrained pooler
    assert loaded.head is not None
    assert not torch.allclose(loaded.head.linear.weight, bert.pooler.dense.weight)


def test_dropout_overrides(tmp_path: Path) -> None:
    for kind, config in CONFIGS.items():
        folder = str(tmp_path / kind)
        tiny_encoder.encoder("mean", config).save(folder)
        encoder = TextEncoder.from_pretrained(folder, hidden_dropout=0.0, attention_dropout=0.0).train()
        batch = encoder.tokenize(TEXTS)
        close(encoder(batch), encoder(batch))
    folder = str(tmp_path / "bert")
    encoder = TextEncoder.from_pretrained(folder, hidden_dropout=0.3)
    assert {m.p for m in encoder.modules() if isinstance(m, nn.Dropout)} == {0.3, 0.1}


def test_unknown_dropouts_are_refused() -> None:
    with pytest.raises(ValueError, match=r"encoder\.hidden_dropout"):
        set_dropouts(ModernBertConfig(), 0.1, None)


@pytest.mark.parametrize("p", [0.1, 0.9])
def test_fast_dropout_has_the_probability_and_drops_independently(p: float) -> None:
    torch.manual_seed(0)
    count = 1_000_003  # not a multiple of the four elements per draw
    dropped = drop(torch.ones(count, dtype=torch.float64), p)
    zero = (dropped == 0).double()
    deviation = (p * (1 - p) / count) ** 0.5
    assert zero.mean().item() == pytest.approx(p, abs=5 * deviation)
    assert dropped.mean().item() == pytest.approx(1, abs=5 * deviation / (1 - p))
    assert dropped.unique().tolist() == [0, pytest.approx(1 / (1 - p), rel=1e-4 / (1 - p))]
    for distance in range(1, 9):  # neighbours share a draw
        together = ((zero[distance:] - p) * (zero[:-distance] - p)).mean().item()
        assert together == pytest.approx(0, abs=5 * p * (1 - p) / count**0.5), distance


def test_frozen_modules_stay_in_evaluation_mode_and_out_of_checkpoints() -> None:
    class Pupil(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own = nn.Linear(2, 2)
            self.teacher = frozen(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout()), checkpoint=False)
            self.target = frozen(nn.Linear(2, 2))
            self.teacher.register_buffer("positions", torch.arange(2), persistent=False)  # as in BERT's embeddings

        @property
        def taught(self) -> torch.Tensor:
            return self.teacher.get_parameter("0.weight")

    pupil = Pupil().train()
    assert pupil.training and not any(m.training for m in (*pupil.teacher.modules(), pupil.target))
    assert [name for name, p in pupil.named_parameters() if p.requires_grad] == ["own.weight", "own.bias"]
    assert set(pupil.state_dict()) == {"own.weight", "own.bias", "target.weight", "target.bias"}
    other = Pupil()
    kept = other.taught.clone()
    other.load_state_dict(pupil.state_dict())
    assert torch.equal(other.taught, kept) and torch.equal(other.own.weight, pupil.own.weight)
    assert not copy.deepcopy(pupil).train().teacher.training


def test_threads_share_a_tokenizer_without_changing_each_others_lengths() -> None:
    """Every stream tokenises in its own thread, and evaluation in another; the tokenizer has one state."""
    encoder = tiny_encoder.encoder()
    texts = ["a dog runs in the park on the street " * 3] * 20

    def width(length: int) -> int:
        return encoder.tokenize(texts, max_length=length)["input_ids"].shape[1]

    lengths = [6, 12, 24] * 200
    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(width, lengths)) == lengths
