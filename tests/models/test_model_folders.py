"""Model folders of other libraries are loaded with the vectors of sentence-transformers, or refused.

All models are small and random; the folders are written by transformers and sentence-transformers.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import (
    AutoModel,
    BertConfig,
    BertModel,
    DebertaV2Config,
    DebertaV2Model,
    DistilBertConfig,
    DistilBertModel,
    ElectraConfig,
    ElectraModel,
    FunnelConfig,
    FunnelModel,
    GPT2Config,
    GPT2Model,
    LlamaConfig,
    LlamaForCausalLM,
    ModernBertConfig,
    ModernBertModel,
    MPNetConfig,
    MPNetModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaModel,
    T5Config,
    T5Model,
    XLNetConfig,
    XLNetModel,
)

from multicse.evaluation.encoders.encoder import load_encoder, without_neighbours
from multicse.evaluation.load import load_model
from multicse.evaluation.task import EvaluationError
from multicse.models import text_encoder, text_folders
from multicse.models.config import EncoderConfig
from multicse.models.pooling import Pooling
from multicse.models.probes import check_folder, check_vectors
from multicse.models.st_modules import add_whitening
from multicse.models.text_encoder import TextEncoder
from multicse.trainers.engine.checks import check_recipe
from multicse.trainers.engine.export import verify_export
from multicse.trainers.engine.launch import run_recipe
from multicse.trainers.recipe import Recipe, RecipeError
from multicse.trainers.sgbert import SelfGuidance, SGBERTConfig
from tests.models import tiny_encoder

TEXTS = ["A Dog Runs", "the cat eats in the park", "guitar", " ".join(["small man plays"] * 12)]
TEXTS += ["a dog [PAD] runs", "a zebra runs", "", "naïve 犬 🐕 ﬁ ½ dog"]
WORDS = len(tiny_encoder.SPECIAL + tiny_encoder.WORDS)
SIZES = {"vocab_size": WORDS, "hidden_size": 16, "num_attention_heads": 2, "initializer_range": 0.1}
SIZES |= {"num_hidden_layers": 2, "pad_token_id": 0}
BERT = BertConfig(**SIZES, intermediate_size=32, max_position_embeddings=24)
GPT2 = GPT2Config(vocab_size=WORDS, n_embd=16, n_head=2, n_layer=2, n_positions=24, initializer_range=0.1)
PROMPTS: dict[str, Any] = {"prompts": {"query": "the big ", "passage": "a "}, "default_prompt_name": "query"}


tokenizer = partial(tiny_encoder.tokenizer, cased=True, eos_token="[SEP]")


def plain(folder: Path, model: Any = None, words: Any = None, **options: Any) -> Path:
    """A Hugging Face folder."""
    torch.manual_seed(0)
    (model or BertModel(BERT, add_pooling_layer=False)).save_pretrained(folder, **options)
    (words or tokenizer()).save_pretrained(folder)
    return folder


def saved(
    folder: Path,
    *behind: Any,
    pooling: Any = "mean",
    include_prompt: bool = True,
    words: Any = None,
    network: Any = None,
    **options: Any,
) -> Path:
    """A sentence-transformers folder with a BERT, or another network."""
    plain(folder / "network", network, words)
    torch.manual_seed(1)
    made = [st.Transformer(str(folder / "network")), st.Pooling(16, pooling, include_prompt), *behind]
    SentenceTransformer(modules=made, device="cpu", **options).save(str(folder), create_model_card=False)
    shutil.rmtree(folder / "network")
    return folder


def change(file: Path, **changes: Any) -> Path:
    """Change settings of a JSON file and return its folder."""
    file.write_text(json.dumps({**(json.loads(file.read_text()) if file.exists() else {}), **changes}))
    return file.parent


def change_module(folder: Path, number: int, **changes: str) -> Path:
    """Change an entry of modules.json."""
    entries = json.loads((folder / "modules.json").read_text())
    entries[number].update(changes)
    (folder / "modules.json").write_text(json.dumps(entries))
    return folder


def in_subfolder(folder: Path) -> Path:
    """The layout of version 1, with the transformer and its settings in a subfolder."""
    saved(folder)
    (folder / "0_Transformer").mkdir()
    for file in [*folder.glob("*.json"), *folder.glob("*.safetensors")]:
        if file.name != "modules.json":
            file.rename(folder / "0_Transformer" / file.name)
    (folder / "0_Transformer" / "sentence_bert_config.json").unlink(missing_ok=True)
    change(folder / "0_Transformer" / "sentence_roberta_config.json", max_seq_length=8, do_lower_case=False)
    return change_module(folder, 0, path="0_Transformer")


def old_pooling(folder: Path) -> Path:
    saved(folder)
    (folder / "1_Pooling" / "config.json").unlink()
    return change(folder / "1_Pooling" / "config.json", word_embedding_dimension=16, pooling_mode_max_tokens=True).parent


def layers(folder: Path, weights: list[float]) -> Path:
    weighted = st.WeightedLayerPooling(16, 2, 0, torch.nn.Parameter(torch.tensor(weights)))
    plain(folder / "network")
    change(folder / "network" / "config.json", output_hidden_states=True)
    made = [st.Transformer(str(folder / "network")), weighted, st.Pooling(16, "mean")]
    SentenceTransformer(modules=made, device="cpu").save(str(folder), create_model_card=False)
    return folder


def roberta(folder: Path, pooler: bool = False) -> Path:
    """Positions start after the padding index, which differs from the tokenizer's padding token."""
    config = RobertaConfig(
        **{**SIZES, "pad_token_id": 1}, intermediate_size=32, max_position_embeddings=20, type_vocab_size=1
    )
    return plain(folder, RobertaModel(config, add_pooling_layer=pooler), tokenizer(None))


def words(template: str = "[CLS] $A [SEP]", **options: Any) -> Any:
    """A tokenizer with another template; `inputs` are its model inputs."""
    inputs = options.pop("inputs", None)
    made = tokenizer(**options)
    ids = made.get_vocab()
    special = [(name, ids[name]) for name in tiny_encoder.SPECIAL if name in template]
    single: Any = template.split()
    made.backend_tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=special)
    if inputs is not None:
        made.model_input_names = made.init_kwargs["model_input_names"] = inputs
    return made


ALL, NO_MASK = ["input_ids", "token_type_ids", "attention_mask"], ["input_ids"]
SIDES: dict[str, Any] = {"padding_side": "left", "truncation_side": "left"}
XLNET = XLNetConfig(vocab_size=WORDS, d_model=16, n_layer=2, n_head=2, d_inner=32, pad_token_id=0, initializer_range=0.3)
LLAMA = LlamaConfig(**SIZES, intermediate_size=32, max_position_embeddings=24)
DISTILBERT = DistilBertConfig(vocab_size=WORDS, dim=16, n_heads=2, n_layers=2, hidden_dim=32, max_position_embeddings=24)
ELECTRA = ElectraConfig(**SIZES, embedding_size=8, intermediate_size=32, max_position_embeddings=24)
DEBERTA = DebertaV2Config(
    **SIZES, intermediate_size=32, max_position_embeddings=24, relative_attention=True, pos_att_type=["p2c", "c2p"]
)
MODERN = ModernBertConfig(**SIZES, intermediate_size=32, max_position_embeddings=24, cls_token_id=2, sep_token_id=3)
FUNNEL_SIZES: dict[str, Any] = {"d_model": 16, "n_head": 2, "d_head": 8, "d_inner": 32, "num_decoder_layers": 1}
FUNNEL = FunnelConfig(vocab_size=WORDS, block_sizes=[1, 1], truncate_seq=False, **FUNNEL_SIZES)


def stored_padding(folder: Path) -> Path:
    """tokenizer.json with the padding and the truncation of a former call."""
    made = tokenizer()
    made.backend_tokenizer.enable_padding(direction="left", length=20, pad_id=0, pad_token="[PAD]", pad_type_id=1)
    made.backend_tokenizer.enable_truncation(5, direction="left")
    return plain(folder, words=made)


def byte_level(folder: Path) -> Path:
    """A RoBERTa with a byte-level tokenizer that puts a blank before texts."""
    core = Tokenizer(models.BPE(unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    letters = trainers.BpeTrainer(special_tokens=tiny_encoder.SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    core.train_from_iterator(TEXTS, letters)
    single: Any = ["[CLS]", "$A", "[SEP]"]
    core.post_processor = processors.TemplateProcessing(single=single, special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    made = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]", **SIDES)
    sizes = {**SIZES, "vocab_size": len(made), "pad_token_id": 0}
    config = RobertaConfig(**sizes, intermediate_size=32, max_position_embeddings=19, type_vocab_size=1)
    return plain(folder, RobertaModel(config, add_pooling_layer=False), made)


def from_vocabulary(folder: Path) -> Path:
    """BERT's own tokenizer with vocab.txt and without tokenizer.json, lower-cased by its settings."""
    plain(folder)
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").write_text("\n".join(tiny_encoder.SPECIAL + tiny_encoder.WORDS))
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": 512, **SIDES}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


TOKENIZERS: dict[str, Callable[[Path], Path]] = {
    "padding on the left": lambda folder: plain(folder, words=words(padding_side="left")),
    "truncation on the left": lambda folder: plain(folder, words=words(truncation_side="left")),
    "both on the left, with a prompt": lambda folder: saved(folder, words=words(**SIDES), include_prompt=False, **PROMPTS),
    "first token, padding on the left": lambda folder: saved(folder, pooling="cls", words=words(**SIDES)),
    "last token, padding on the left": lambda folder: saved(folder, pooling="lasttoken", words=words(**SIDES)),
    "no mask among the inputs": lambda folder: plain(folder, words=words(inputs=NO_MASK, padding_side="left")),
    "no types among the inputs": lambda folder: plain(
        folder, words=words("[CLS]:0 $A:1 [SEP]:1", inputs=["input_ids", "attention_mask"])
    ),
    "types that the model lacks": lambda folder: plain(
        folder, DistilBertModel(DISTILBERT), words("[CLS]:0 $A:1 [SEP]:1", inputs=ALL, **SIDES)
    ),
    "a text of type 1": lambda folder: plain(folder, words=words("[CLS]:0 $A:1 [SEP]:0", inputs=ALL)),
    "a text of type 1, both on the left": lambda folder: saved(
        folder, words=words("[CLS]:1 $A:1 [SEP]:0", inputs=ALL, **SIDES), include_prompt=False, **PROMPTS
    ),
    "types of two layers": lambda folder: plain(
        folder, ElectraModel(ELECTRA), words("[CLS]:0 $A:0 [SEP]:1", inputs=ALL, padding_side="left")
    ),
    "deberta": lambda folder: plain(
        folder, DebertaV2Model(DEBERTA), words("[CLS]:0 $A:1 [SEP]:1", inputs=ALL, padding_side="left")
    ),
    "xlnet with its types": lambda folder: plain(
        folder, XLNetModel(XLNET), words("$A:0 [SEP]:0 [CLS]:2", inputs=ALL, padding_side="left")
    ),
    "xlnet, last token": lambda folder: saved(
        folder, pooling="lasttoken", network=XLNetModel(XLNET), words=words("$A:0 [SEP]:0 [CLS]:2", inputs=ALL, **SIDES)
    ),
    "gpt2, padding on the left": lambda folder: plain(folder, GPT2Model(GPT2), words("$A [SEP]", padding_side="left")),
    "llama, padding on the left": lambda folder: plain(
        folder, LlamaForCausalLM(LLAMA), words("[CLS] $A [SEP]", inputs=ALL, padding_side="left")
    ),
    "modernbert": lambda folder: plain(folder, ModernBertModel(MODERN), words(inputs=NO_MASK, **SIDES)),
    "three tokens before a text": lambda folder: plain(
        folder, words=words("[CLS]:1 [MASK]:0 [CLS]:0 $A:1", sep_token=None, inputs=ALL)
    ),
    "padding of a former call": stored_padding,
    "a byte-level tokenizer": byte_level,
    "a vocabulary in a text file": from_vocabulary,
}

READ: dict[str, Callable[[Path], Path]] = {
    "hugging face": plain,
    "sharded": lambda folder: plain(folder, max_shard_size="4KB"),
    "bfloat16": lambda folder: plain(folder, BertModel(BERT, add_pooling_layer=False).bfloat16()),
    "roberta": roberta,
    "mpnet": lambda folder: plain(
        folder, MPNetModel(MPNetConfig(**SIZES, intermediate_size=32, max_position_embeddings=20)), tokenizer(None)
    ),
    "xlnet": lambda folder: plain(
        folder, XLNetModel(XLNetConfig(vocab_size=WORDS, d_model=16, n_layer=2, n_head=2, d_inner=32, pad_token_id=0))
    ),
    "causal": lambda folder: plain(folder, LlamaForCausalLM(LlamaConfig(**SIZES, intermediate_size=32))),
    "mean": saved,
    "cls": lambda folder: saved(folder, pooling="cls"),
    "max": lambda folder: saved(folder, pooling="max"),
    "last token": lambda folder: saved(folder, pooling="lasttoken"),
    "first and last layer": lambda folder: layers(folder, [1.0, 0.0, 1.0]),
    "last two layers": lambda folder: layers(folder, [0.0, 1.0, 1.0]),
    "dense": lambda folder: saved(folder, st.Dense(16, 12)),
    "dense without bias": lambda folder: saved(folder, st.Dense(16, 12, bias=False)),
    "normalised, compared by dot": lambda folder: saved(folder, st.Normalize(), similarity_fn_name="dot"),
    "prompt": lambda folder: saved(folder, **PROMPTS),
    "prompt not counted": lambda folder: saved(folder, include_prompt=False, **PROMPTS),
    "prompt not counted, max": lambda folder: saved(folder, pooling="max", include_prompt=False, **PROMPTS),
    "prompts without a default": lambda folder: saved(folder, prompts=PROMPTS["prompts"]),
    "lower case": lambda folder: change(saved(folder) / "sentence_bert_config.json", do_lower_case=True),
    "shorter": lambda folder: change(saved(folder) / "sentence_bert_config.json", max_seq_length=6),
    "longer than the tokenizer says": lambda folder: change(
        saved(folder, words=tokenizer(8)) / "sentence_bert_config.json", max_seq_length=20
    ),
    "subfolder": in_subfolder,
    "old pooling": old_pooling,
    "a router": lambda folder: in_router(folder, st.Dense(16, 12), st.Normalize()),
    "a dense layer on the route": lambda folder: in_router(folder, st.Normalize(), dense=[st.Dense(16, 12)]),
    **TOKENIZERS,
}
NO_PADDING: dict[str, Any] = {"pad_token": None, "cls_token": None, "sep_token": None}
PADDED: dict[str, Callable[[Path], Path]] = {
    "the model's own": lambda folder: plain(folder, words=tokenizer(pad_token=None)),
    "end of text": lambda folder: plain(folder, GPT2Model(GPT2), tokenizer(**NO_PADDING)),
}


def vectors_of_sentence_transformers(folder: Path, texts: list[str] = TEXTS, pad: str | None = None) -> np.ndarray:
    """One text at a time, since padding changes vectors if the tokenizer puts it on the left or masks nothing."""
    model = SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": torch.float32})
    network = model[0].sub_modules["text"][0] if isinstance(model[0], st.Router) else model[0]
    most = {"roberta": 18, "mpnet": 18}.get(network.config.model_type, 24)  # the library exceeds the positions
    model.max_seq_length = min(model.max_seq_length, most)
    model.tokenizer.pad_token = pad or model.tokenizer.pad_token
    return model.encode(texts, batch_size=1)


@torch.no_grad()
def vectors_in_training(encoder: TextEncoder, texts: list[str] = TEXTS) -> np.ndarray:
    return encoder.eval()(encoder.tokenize(texts)).numpy()


def about(folder: Path) -> tuple[Any, ...]:
    """Settings of sentence-transformers that an export must keep."""
    model = SentenceTransformer(str(folder), device="cpu")
    counted = [module.include_prompt for module in model if isinstance(module, st.Pooling)]
    return model.prompts, model.default_prompt_name, model.similarity_fn_name, counted or [True]


@pytest.mark.parametrize("name", READ)
def test_training_evaluation_and_export_give_the_vectors_of_sentence_transformers(name: str, tmp_path: Path) -> None:
    folder = READ[name](tmp_path / "model")
    want = vectors_of_sentence_transformers(folder)
    encoder = TextEncoder.from_pretrained(str(folder))
    assert np.abs(vectors_in_training(encoder) - want).max() < 2e-6
    encoder.save(str(tmp_path / "out"))
    assert np.abs(SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(TEXTS) - want).max() < 2e-6
    for place, batch_size in ((folder, 32), (tmp_path / "out", 1)):
        assert np.abs(load_model(str(place), batch_size=batch_size).encode(TEXTS) - want).max() < 2e-6
    check_folder(str(folder))
    check_vectors(encoder, str(folder))
    assert about(tmp_path / "out") == about(folder)
    assert TextEncoder.from_pretrained(str(tmp_path / "out")).limit == encoder.limit
    verify_export(encoder, tmp_path / "out")


POOLED: dict[str, Callable[[Path], Path]] = {
    "a pooler": lambda folder: plain(folder, BertModel(BERT)),
    "a head": lambda folder: saved(folder, st.Dense(16, 16), pooling="cls"),
    "a norm and a prompt": lambda folder: saved(folder, st.Normalize(), include_prompt=False, **PROMPTS),
    "two layers": lambda folder: layers(folder, [0.0, 1.0, 1.0]),
    "a roberta with a pooler": lambda folder: roberta(folder, pooler=True),
}


@pytest.mark.parametrize("pooling", get_args(Pooling))
@pytest.mark.parametrize("name", POOLED)
def test_a_pooling_means_the_same_in_recipes_and_evaluation(name: str, pooling: Any, tmp_path: Path) -> None:
    folder = POOLED[name](tmp_path / "model")
    encoder = TextEncoder.from_pretrained(str(folder), pooling)
    want = vectors_in_training(encoder)
    found = load_model(f"{folder}@{pooling}")
    assert np.abs(found.encode(TEXTS) - want).max() < 2e-6
    assert found.protocol["pooling"] == pooling
    encoder.save(str(tmp_path / "out"))
    assert np.abs(load_encoder(tmp_path / "out").encode(TEXTS) - want).max() < 2e-6
    model, report = AutoModel.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    if pooling not in ("pooler", "cls"):
        assert not model.pooler.dense.weight.any()  # not trained, so zeros and not random
    if pooling == "pooler" and name.endswith("a pooler"):
        assert np.abs(model(**encoder.tokenize(TEXTS)).pooler_output.detach().numpy() - want).max() < 2e-6


def test_a_pooler_that_the_folder_lacks_is_not_made_up(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="has no pooler; choose @cls"):
        load_encoder(plain(tmp_path / "model"), "pooler")


@pytest.mark.parametrize("pooling", ["mean", "lasttoken"])
def test_a_text_without_tokens_is_encoded_as_in_a_batch(pooling: str, tmp_path: Path) -> None:
    """Some tokenizers add no special tokens, such as Qwen's, so an empty text has no token."""
    folder = saved(tmp_path / "model", pooling=pooling, words=words("$A"))
    want = vectors_in_training(TextEncoder.from_pretrained(str(folder)))
    known = [text for text in TEXTS if text]
    theirs = SentenceTransformer(str(folder), device="cpu").encode(known, batch_size=1)
    assert np.abs(want[[bool(text) for text in TEXTS]] - theirs).max() < 2e-6
    for batch_size in (1, 32):
        assert np.abs(load_encoder(folder, batch_size=batch_size).encode(TEXTS) - want).max() < 2e-6
    assert np.abs(load_encoder(folder).encode([""]) - want[TEXTS.index("")]).max() < 2e-6


@pytest.mark.parametrize("name", PADDED)
def test_a_padding_token_is_added_if_the_tokenizer_has_none(name: str, tmp_path: Path) -> None:
    folder = PADDED[name](tmp_path / "model")
    encoder = TextEncoder.from_pretrained(str(folder))
    got = vectors_in_training(encoder)
    want = vectors_of_sentence_transformers(folder, pad="a")  # any token, since it is masked
    known = [row for row, text in enumerate(TEXTS) if "[PAD]" not in text]  # a special token now
    assert np.abs(got - want)[known].max() < 2e-6
    assert np.abs(load_encoder(folder).encode(TEXTS) - got).max() < 2e-6
    encoder.save(str(tmp_path / "out"))
    assert np.abs(SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(TEXTS) - got).max() < 2e-6


def funnel(folder: Path) -> Path:
    """A model that pools neighbouring tokens, padding among them."""
    return plain(folder, FunnelModel(FUNNEL), words("[CLS]:2 $A:0 [SEP]:0", inputs=ALL, padding_side="left"))


def test_a_model_whose_vectors_depend_on_the_batch_is_refused_before_the_run_starts(tmp_path: Path, recipe: Recipe) -> None:
    folder = funnel(tmp_path / "model")
    changes = {"encoder.path": str(folder), "streams.text.max_length": 24, "run.output_dir": str(tmp_path / "run")}
    recipe = recipe.changed(changes)
    with pytest.raises(RecipeError, match=r"^encoder.path: .*other texts of a batch.*'funnel'"):
        run_recipe(recipe)
    assert not (tmp_path / "run").exists()


def test_evaluation_encodes_one_by_one_if_vectors_depend_on_the_batch(tmp_path: Path) -> None:
    folder, texts = funnel(tmp_path / "model"), [text for text in TEXTS if text]
    want = vectors_of_sentence_transformers(folder, texts)
    assert np.abs(load_encoder(folder).encode(texts) - want).max() < 2e-6


def test_vectors_whose_size_depends_on_the_text_are_refused() -> None:
    encoder: Any = SimpleNamespace(path="folder", encode=lambda texts: np.zeros((len(texts), len(texts[0]))))
    with pytest.raises(EvaluationError, match="folder gives vectors of different sizes"):
        without_neighbours(encoder)


def lose_types(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(text_encoder, "segments_of", lambda *_: None)


def pool_the_prompt(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(text_encoder, "without_prompt", lambda mask, _: mask)


def lower_case(patch: pytest.MonkeyPatch) -> None:
    read = text_folders.read_modules
    patch.setattr(text_folders, "read_modules", lambda folder: read(folder)._replace(lower_case=True))


@pytest.mark.parametrize("fault", [lose_types, pool_the_prompt, lower_case])
def test_a_setting_that_is_read_in_another_way_is_found_by_the_vectors(
    fault: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if a version of a library, or of this package, read a setting of the folder in another way."""
    folder = saved(tmp_path / "model", words=words("[CLS]:0 $A:1 [SEP]:0", inputs=ALL), include_prompt=False, **PROMPTS)
    fault(monkeypatch)
    with pytest.raises(ValueError, match=r"^encoder.path: .*not start with the vectors of sentence-transformers"):
        check_folder(str(folder))


def test_an_export_with_other_vectors_is_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", include_prompt=False, **PROMPTS)
    encoder = TextEncoder.from_pretrained(str(folder))
    check_vectors(encoder, str(folder))
    encoder.prompt_tokens = 0
    with pytest.raises(ValueError, match=r"^encoder.path: .*SentenceTransformer does not reproduce the vectors"):
        check_vectors(encoder, str(folder))


def test_another_pooling_leaves_out_the_whitening_of_the_first(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", st.Normalize(), pooling="cls")
    want = load_encoder(folder, "mean").encode(TEXTS)
    add_whitening(folder, np.zeros(16), np.eye(16)[:, :4])
    assert np.abs(load_encoder(folder, "mean").encode(TEXTS) - want).max() < 2e-6
    assert load_encoder(folder, "cls").encode(TEXTS).shape[1] == load_encoder(folder).encode(TEXTS).shape[1] == 4


def no_tokenizer(folder: Path) -> Path:
    plain(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    return folder


def renamed(folder: Path, name: str, into: str) -> Path:
    (folder / into).parent.mkdir(exist_ok=True)
    (folder / name).rename(folder / into)
    return folder


def more_words(folder: Path) -> Path:
    words = tokenizer()
    words.add_tokens(["police", "officer"])
    return plain(folder, words=words)


def static(folder: Path) -> Path:
    embedding = st.StaticEmbedding(tokenizer().backend_tokenizer, embedding_dim=16)
    SentenceTransformer(modules=[embedding], device="cpu").save(str(folder), create_model_card=False)
    return folder


def routed(folder: Path) -> Path:
    """One network for questions and one for documents."""
    plain(folder / "network")
    routes = {name: [st.Transformer(str(folder / "network")), st.Pooling(16)] for name in ("query", "document")}
    SentenceTransformer(modules=[st.Router(routes)], device="cpu").save(str(folder), create_model_card=False)
    return folder


def adapter(folder: Path) -> Path:
    from peft import LoraConfig, get_peft_model

    plain(folder.parent / "base")
    get_peft_model(AutoModel.from_pretrained(folder.parent / "base"), LoraConfig(r=2)).save_pretrained(str(folder))
    return folder


def adapter_with_modules(folder: Path) -> Path:
    from peft import LoraConfig

    saved(folder.parent / "whole", st.Dense(16, 12), pooling="cls", **PROMPTS)
    model = SentenceTransformer(str(folder.parent / "whole"), device="cpu")
    model.add_adapter(LoraConfig(r=2, target_modules=["query"], init_lora_weights=False))
    model.save(str(folder), create_model_card=False)
    return folder


def test_the_named_remedy_merges_an_adapter_and_keeps_the_modules(tmp_path: Path) -> None:
    folder = adapter_with_modules(tmp_path / "adapter")
    with pytest.raises(ValueError, match="adapter") as error:
        EncoderConfig(path=str(folder)).read()
    import peft

    code = str(error.value).partition("further modules: ")[2]
    given: dict[str, Any] = {"path": str(folder), "new_path": str(tmp_path / "merged"), "peft": peft}
    exec(code, {"SentenceTransformer": SentenceTransformer, "AutoModel": AutoModel, **given})
    want = SentenceTransformer(str(folder), device="cpu").encode(TEXTS, batch_size=1)
    assert np.abs(load_encoder(folder).encode(TEXTS) - want).max() < 2e-6
    assert np.abs(vectors_in_training(TextEncoder.from_pretrained(given["new_path"])) - want).max() < 2e-6


def in_router(folder: Path, *behind: Any, dense: Any = ()) -> Path:
    """A text model as the only route of a Router, with modules on the route and behind the Router."""
    plain(folder / "network")
    torch.manual_seed(1)
    router = st.Router({"text": [st.Transformer(str(folder / "network")), st.Pooling(16), *dense]})
    SentenceTransformer(modules=[router, *behind], device="cpu").save(str(folder), create_model_card=False)
    return folder


ABOUT, TRANSFORMER = "config_sentence_transformers.json", "sentence_bert_config.json"

REFUSED: dict[str, tuple[Callable[[Path], Path], str]] = {
    "tokens without embeddings": (
        more_words,
        r"27 tokens, the model 25 embeddings.*'police' \(id 25\).*resize_token_embeddings",
    ),
    "no padding token": (
        lambda folder: plain(folder, GPT2Model(GPT2), tokenizer(**NO_PADDING, eos_token=None)),
        "no padding token.*tokenizer_config.json",
    ),
    "no tokenizer": (no_tokenizer, "no tokenizer"),
    "a prompt that is too long": (
        lambda folder: change(saved(folder, **PROMPTS) / TRANSFORMER, max_seq_length=4),
        "at most 4 tokens.*prompt take 4",
    ),
    "an unknown default prompt": (
        lambda folder: change(saved(folder) / ABOUT, default_prompt_name="title"),
        "default_prompt_name is 'title'",
    ),
    "dot products": (lambda folder: saved(folder, similarity_fn_name="dot"), "'dot'.*similarity_fn_name.*cosine"),
    "a norm at the end": (lambda folder: saved(folder, st.LayerNorm(16)), "LayerNorm. Training supports"),
    "two layers at the end": (lambda folder: saved(folder, st.Dense(16, 16), st.Dense(16, 16)), "Dense, .*Dense. Training"),
    "two poolings": (lambda folder: saved(folder, pooling=("cls", "mean")), "pools by"),
    "the mean of all layers": (lambda folder: layers(folder, [1.0, 1.0, 1.0]), "pools by the mean of its layers"),
    "tokens": (
        lambda folder: change_module(saved(folder), 1, type="sentence_transformers.models.Normalize", path="none"),
        "with a Transformer and a Pooling",
    ),
    "word vectors": (static, "StaticEmbedding"),
    "routes": (routed, "Router"),
    "code of a module": (
        lambda folder: change_module(saved(folder), 0, type="custom_st.Transformer"),
        "consists of custom_st.Transformer",
    ),
    "code of a model": (
        lambda folder: change(plain(folder) / "config.json", model_type="own", auto_map={"AutoModel": "own.Own"}),
        "custom Python code",
    ),
    "encoder and decoder": (
        lambda folder: plain(
            folder, T5Model(T5Config(vocab_size=WORDS, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2))
        ),
        "encoder and a decoder",
    ),
    "an adapter": (adapter, "adapter.*merge_and_unload"),
    "an adapter with modules": (adapter_with_modules, "adapter.*keep pooling, prompts.*merge_and_unload"),
    "token types without an embedding": (
        lambda folder: plain(folder, words=words("[CLS]:0 $A:2 [SEP]:2", inputs=ALL)),
        "the type 2.*2 types.*type_vocab_size.*model_input_names",
    ),
    "quantised": (
        lambda folder: change(plain(folder) / "config.json", quantization_config={"quant_method": "bitsandbytes"}),
        "quantised",
    ),
    "pickled": (
        lambda folder: renamed(plain(folder), "model.safetensors", "pytorch_model.bin"),
        "pickled.*use_safetensors=False",
    ),
    "ONNX": (lambda folder: renamed(plain(folder), "model.safetensors", "onnx/model.onnx"), "no safetensors.*ONNX"),
}


EVALUATED = ["word vectors", "routes", "a norm at the end", "two poolings", "dot products", "cut vectors"]
"""Folders that training refuses and evaluation reads."""
UNREADABLE = ["tokens without embeddings", "no padding token", "no tokenizer", "code of a model", "an adapter"]
UNREADABLE += ["pickled", "ONNX", "code of a module"]


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_folders_are_refused_before_loading_weights(name: str, tmp_path: Path) -> None:
    """By evaluation, too, if sentence-transformers cannot read them without running code or making up parts."""
    make, message = REFUSED[name]
    folder = str(make(tmp_path / "model"))
    with pytest.raises(ValueError, match=f"^encoder.path: (?s:.*){message}"):
        EncoderConfig(path=folder).read()
    with pytest.raises(ValueError, match=message):
        TextEncoder.from_pretrained(folder)
    if name in UNREADABLE:
        with pytest.raises(EvaluationError, match="custom_st" if name == "code of a module" else message):
            load_encoder(folder).encode(TEXTS)


def chat_template(folder: Path) -> Path:
    return change(plain(folder) / "tokenizer_config.json", chat_template="{{ messages[0]['content'] }} dog")


DIFFERENT: dict[str, Callable[[Path], Path]] = {
    "cut vectors": lambda folder: saved(folder, truncate_dim=8),
    "a residual layer": lambda folder: saved(folder, st.Dense(16, 16, use_residual=True)),
    "a maximum over two layers": lambda folder: (
        change(layers(folder, [1.0, 0.0, 1.0]) / "2_Pooling" / "config.json", pooling_mode="max").parent
    ),
    "unequal layers": lambda folder: layers(folder, [1.0, 0.0, 2.0]),
    "a chat template": chat_template,
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_settings_that_training_does_not_have_are_found_by_their_vectors(name: str, tmp_path: Path) -> None:
    folder = DIFFERENT[name](tmp_path / "model")
    with pytest.raises(ValueError, match=r"^encoder.path: .*not start with the vectors(?s:.*)Pooling"):
        EncoderConfig(path=str(folder), pooling="mean").check_vectors()


@pytest.mark.parametrize("name", EVALUATED)
def test_evaluation_supports_folders_that_training_does_not(name: str, tmp_path: Path) -> None:
    folder = (DIFFERENT[name] if name in DIFFERENT else REFUSED[name][0])(tmp_path / "model")
    want = SentenceTransformer(str(folder), device="cpu").encode(TEXTS, batch_size=3)
    assert np.abs(load_encoder(folder).encode(TEXTS) - want).max() < 2e-6


def foreign_names(folder: Path) -> Path:
    weights = load_file(folder / "model.safetensors")
    save_file({f"student.{name}": one for name, one in weights.items()}, folder / "model.safetensors", {"format": "pt"})
    return folder


def cut_short(folder: Path) -> Path:
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:5000])
    return folder


def without_a_shard(folder: Path) -> Path:
    plain(folder, max_shard_size="4KB")
    next(folder.glob("model-00002*")).unlink()
    return folder


LACKING: dict[str, tuple[Callable[[Path], Path], str]] = {
    "foreign names": (lambda folder: foreign_names(plain(folder)), "lacks 37 weights"),
    "foreign names, saved": (lambda folder: foreign_names(saved(folder)), "lacks 37 weights"),
    "a layer more": (lambda folder: change(plain(folder) / "config.json", num_hidden_layers=3), r"encoder\.layer\.2"),
    "a layer more, saved": (lambda folder: change(saved(folder) / "config.json", num_hidden_layers=3), r"encoder\.layer\.2"),
    "cut short": (lambda folder: cut_short(plain(folder)), "cannot be loaded"),
    "without a shard": (without_a_shard, "model-00002"),
    "nothing": (lambda folder: folder, "model"),
}


@pytest.mark.parametrize("name", LACKING)
def test_no_part_of_a_model_is_made_up(name: str, tmp_path: Path) -> None:
    """Where a library would create missing parts at random, training and evaluation refuse the folder."""
    make, message = LACKING[name]
    folder = make(tmp_path / "model")
    with pytest.raises(ValueError, match=rf"encoder\.path: (?s:.*){message}"):
        TextEncoder.from_pretrained(str(folder), "mean")
    with pytest.raises(EvaluationError, match="model"):
        load_encoder(folder, device="cpu")


def test_words_are_found_after_a_prompt(tmp_path: Path) -> None:
    encoder = TextEncoder.from_pretrained(str(saved(tmp_path / "model", **PROMPTS)))
    text = "a dog runs"
    tokens = encoder.tokenize([text], spans=[(text.index("dog"), text.index("dog") + 3)])
    found = encoder.tokenizer.convert_ids_to_tokens(tokens["input_ids"][tokens["word_mask"].bool()].tolist())
    assert found == ["dog"]


@pytest.mark.parametrize(("length", "message"), [(25, "25 exceeds the 24 tokens"), (4, "prompt.*take 4 tokens")])
def test_the_length_of_a_stream_fits_the_encoder(length: int, message: str, tmp_path: Path, recipe: Recipe) -> None:
    folder = saved(tmp_path / "model", **PROMPTS)
    recipe = recipe.changed({"encoder.path": str(folder), "streams.text.max_length": length})
    with pytest.raises(RecipeError, match=f"streams.text.max_length={length}|{message}"):
        check_recipe(recipe)
    check_recipe(recipe.replace("streams.text.max_length", 24))


def test_training_ignores_the_whitening_of_an_export(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", st.Normalize())
    want = vectors_in_training(TextEncoder.from_pretrained(str(folder)))
    add_whitening(folder, np.zeros(16), np.eye(16)[:, :4])
    assert np.array_equal(vectors_in_training(TextEncoder.from_pretrained(str(folder))), want)
    check_folder(str(folder))


def test_the_teacher_of_sg_bert_excludes_a_prompt_that_is_not_pooled(tmp_path: Path) -> None:
    options: dict[str, Any] = {"pooling": "max", "include_prompt": False, **PROMPTS}
    encoder = TextEncoder.from_pretrained(str(saved(tmp_path / "model", **options)))
    guide = SelfGuidance(encoder, SGBERTConfig(loss="opt3")).eval()
    tokens = encoder.tokenize(["a dog runs", "guitar"])
    mask = tokens["attention_mask"]
    layers = guide.views(torch.zeros(2, 16), tokens["input_ids"], mask, mask)[:, 1:]
    states = guide.teacher(**tokens, output_hidden_states=True).hidden_states
    last = 3  # [CLS], "the" and "big" are not pooled
    want = [state[1, last : int(tokens["attention_mask"][1].sum())].max(0).values for state in states]
    torch.testing.assert_close(layers[1], torch.stack(want[guide.config.first_layer :]))
