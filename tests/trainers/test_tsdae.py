"""TSDAE: loss against transformers' BERT decoder and a loop in float64, and deleted words against a loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertLMHeadModel,
    DistilBertConfig,
    RobertaConfig,
    RobertaForMaskedLM,
)

from tests.models import tiny_encoder
from tests.worlds import example

tsdae = example("tsdae")
TSDAEConfig, continuations, delete_words = tsdae.TSDAEConfig, tsdae.continuations, tsdae.delete_words


def made(deletion: float = 0.0, dropout: float = 0.0) -> Any:
    encoder = tiny_encoder.encoder(config=tiny_encoder.bert_config(dropout))
    return TSDAEConfig(deletion=deletion).build(encoder).double()


def decoder_of(method: Any) -> BertLMHeadModel:
    """Return transformers' decoder with the method's weights, and with random queries and keys of the cross-attention."""
    torch.manual_seed(3)
    own = BertConfig(**{**method.sentence_encoder.config.to_dict(), "is_decoder": True, "add_cross_attention": True})
    decoder: Any = BertLMHeadModel(own).double().eval()
    decoder.bert.load_state_dict(method.sentence_encoder.model.state_dict(), strict=False)
    head = decoder.cls.predictions
    memories: Any = method.memories
    for layer, memory in zip(decoder.bert.encoder.layer, memories, strict=True):
        layer.crossattention.self.value.load_state_dict(memory.value.state_dict())
        layer.crossattention.output.dense.load_state_dict(memory.dense.state_dict())
        layer.crossattention.output.LayerNorm.load_state_dict(memory.norm.state_dict())
    head.transform.dense.load_state_dict(method.transform[0].state_dict())
    head.transform.LayerNorm.load_state_dict(method.transform[2].state_dict())
    head.transform.LayerNorm.eps = method.transform[2].eps
    head.decoder.bias.data = method.bias.data
    return decoder


def in_loops(method: Any, ids: Tensor, mask: Tensor) -> float:
    """Return the mean of -log P(x_t | s, x_1 ... x_t-1), one sentence and one token at a time."""
    decoder, total, count = decoder_of(method), 0.0, 0
    for row, length in zip(ids, mask.sum(1), strict=True):
        one = row[None, :length]
        s = method.sentence_encoder({"input_ids": one, "attention_mask": torch.ones_like(one)})
        for t in range(1, int(length)):
            logits = decoder(one[:, :t], encoder_hidden_states=s[:, None]).logits[0, -1]
            total -= (logits[row[t]] - logits.exp().sum().log()).item()
            count += 1
    return total / count


def test_the_loss_is_transformers_tied_decoder_in_loops() -> None:
    """Before and after a step that changes all weights, so encoder and decoder stay tied."""
    method, batch = made().eval(), tiny_encoder.text_batch(5, length=7)
    for parameter in (*method.memories.parameters(), *method.transform.parameters(), method.bias):
        torch.nn.init.normal_(parameter, std=0.3)
    optimizer = torch.optim.SGD(method.parameters(), lr=0.1)
    for _ in range(2):
        loss = method({"text": batch}).losses["reconstruction"]
        assert loss.item() == pytest.approx(in_loops(method, batch["input_ids"][:, 0], batch["attention_mask"][:, 0]))
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is not None and p.grad.any() for n, p in method.named_parameters() if "key.bias" not in n)
        optimizer.step()


def test_deleted_words_in_a_loop() -> None:
    """Pieces of a word share a random number; the word with the largest one stays, as do [CLS] and [SEP]."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 30, (50, 12), generator=generator)
    lengths = torch.randint(2, 13, (50,), generator=generator)
    mask = (torch.arange(12) < lengths[:, None]).long()
    continues = torch.rand(30, generator=generator) < 0.4
    torch.manual_seed(1)
    found, kept = delete_words(ids, mask, continues, 0.6, 0)
    torch.manual_seed(1)
    draws = torch.rand(50, 12)
    for row, length in enumerate(lengths.tolist()):
        words: list[list[int]] = []
        for token in ids[row, 1 : length - 1].tolist():
            if words and continues[token]:
                words[-1].append(token)
            else:
                words.append([token])
        numbers = draws[row, 1 : len(words) + 1].tolist()
        stays = [token for word, n in zip(words, numbers, strict=True) if n >= 0.6 or n == max(numbers) for token in word]
        wanted = [int(ids[row, 0]), *stays, int(ids[row, length - 1])]
        assert found[row].tolist() == wanted + [0] * (12 - len(wanted))
        assert kept[row].tolist() == [1] * len(wanted) + [0] * (12 - len(wanted))


@pytest.mark.parametrize(
    ("pieces", "wanted"),
    [
        (["[CLS]", "dog", "##s", "▁"], [False, False, True, False]),
        (["<s>", "▁a", "▁b", "s", "##"], [True, False, False, True, False]),
        (["Ġa", "n", ".", "?!", "'s", "Ġ,"], [False, True, False, False, True, False]),
    ],
)
def test_pieces_that_continue_a_word(pieces: list[str], wanted: list[bool]) -> None:
    class Vocabulary(list[str]):
        def convert_ids_to_tokens(self, ids: range) -> list[str]:
            return [self[i] for i in ids]

    assert continuations(Vocabulary(pieces)).tolist() == wanted


def test_layers_of_roberta_decode() -> None:
    config = RobertaConfig(**{**tiny_encoder.bert_config(0.0).to_dict(), "model_type": "roberta", "pad_token_id": 0})
    method = TSDAEConfig(deletion=0.0).build(tiny_encoder.encoder(config=config)).double().eval()
    batch = tiny_encoder.text_batch(4, length=8)
    whole = method.encode("text", batch)["loss"]
    alone = torch.cat([method.encode("text", batch.rows(i, i + 1))["loss"] for i in range(4)])
    torch.testing.assert_close(whole, alone)
    shorter = batch.replace(**{name: tensor[..., :5] for name, tensor in batch.tensors.items()})
    assert not torch.allclose(whole, method.encode("text", shorter)["loss"])


@pytest.mark.parametrize(
    ("kind", "config"), [(BertForMaskedLM, BertConfig), (RobertaForMaskedLM, RobertaConfig)], ids=["bert", "roberta"]
)
@pytest.mark.parametrize("old", [False, True])
def test_the_head_of_a_masked_language_model_is_loaded(kind: Any, config: Any, old: bool, tmp_path: Path) -> None:
    """With a checkpoint's head, the method's logits of states are the model's; old files call the norm's weight gamma."""
    encoder = tiny_encoder.encoder(config=config(**{**tiny_encoder.bert_config(0.0).to_dict(), "hidden_act": "gelu"}))
    torch.manual_seed(5)
    model = kind(encoder.config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    if old:
        renamed = {name.replace("LayerNorm.weight", "LayerNorm.gamma"): tensor for name, tensor in load_file(file).items()}
        save_file(renamed, file)
    encoder.path = str(tmp_path)
    encoder.model.load_state_dict(model.base_model.state_dict(), strict=False)
    method, states = TSDAEConfig().build(encoder).eval(), torch.randn(3, 16)
    logits = method.transform(states) @ encoder.model.get_input_embeddings().weight.T + method.bias
    head = model.cls if kind is BertForMaskedLM else model.lm_head
    torch.testing.assert_close(logits, head(states))
    encoder.path = str(tmp_path / "no-weights")
    assert not TSDAEConfig().build(encoder).bias.any()


def test_other_models_are_refused() -> None:
    with pytest.raises(ValueError, match=r"encoder\.path.*distilbert.*bert, camembert"):
        TSDAEConfig().check(tsdae.demo(), DistilBertConfig())
