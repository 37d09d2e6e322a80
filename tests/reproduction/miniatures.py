"""Miniatures of datasets in their original layouts, and the samples that are expected from each."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl

from tests.data.packing import png
from tests.evaluation.evaluation_helpers import sentence
from tests.worlds import sound

Seen = tuple[Any, str | None, bytes | None]
"""Text, captions or columns of a sample, the name of its class, and its image or audio."""
Expected = dict[str, list[Seen] | str]
"""Expected samples in the order of the download, or the text of the file, by result."""


def put(folder: Path, files: Mapping[str, str | bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def senteval(folder: Path) -> Path:
    """Write all seven datasets, small: sentences with "dog" are class 1, sentences with "cat" class 0."""
    rng = random.Random(0)

    def lines(word: str, form: str = "{}", count: int = 12) -> str:
        return "".join(form.format(f"{word} {sentence(rng, 5)} {word}") + "\n" for _ in range(count))

    def both(one: str, zero: str) -> str:
        return lines("dog", one) + lines("cat", zero)

    files: dict[str, str | bytes] = {}
    for one, zero in (
        ("MR/rt-polarity.pos", "MR/rt-polarity.neg"),
        ("CR/custrev.pos", "CR/custrev.neg"),
        ("MPQA/mpqa.pos", "MPQA/mpqa.neg"),
        ("SUBJ/subj.objective", "SUBJ/subj.subjective"),
    ):
        files |= {one: lines("dog"), zero: lines("cat")}
    for part in ("train", "dev", "test"):
        files[f"SST/binary/sentiment-{part}"] = both("{}\t1", "{}\t0")
    for name in ("train_5500", "TREC_10"):
        files[f"TREC/{name}.label"] = both("HUM:ind {}", "LOC:city {}")
    for part in ("train", "test"):
        pairs = both("1\t1\t2\tthe man runs\t{}", "0\t1\t2\tthe man runs\t{}")
        files[f"MRPC/msr_paraphrase_{part}.txt"] = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n" + pairs
    put(folder, files)
    return folder


def wav(number: int, kind: str = "wav") -> bytes:
    return sound(np.full(80, number / 100), kind=kind)


def texts(*found: Any) -> list[Seen]:
    return [(text, None, None) for text in found]


# ------------------------------------------------------------------------------------------------------------------ texts


def wiki1m(folder: Path) -> Expected:
    lines = [f"Sentence {i}  of “Wikipedia”." for i in range(10_003)]
    put(folder, {"wiki1m_for_simcse.txt": "\n".join([*lines[:9000], "", *lines[9000:]]) + "\n"})
    return {"shards/wiki1m": texts(*lines)}  # shards/wiki10k, a random sample, has a separate test


def wiki1m_de(folder: Path) -> Expected:
    put(folder, {"deu_wikipedia_2021_1M-sentences.txt": "1\tÄpfel sind Obst.\n2\tEr\tging.\n3\t \n"})
    return {"shards/wiki1m-de": texts("Äpfel sind Obst.", "Er\tging.")}


def nli(folder: Path) -> Expected:
    put(folder, {"nli_for_simcse.csv": 'sent0,sent1,hard_neg\nA man.,"He, a man.",No.\n"a ""b""",c,d\n'})
    names = ("sent0", "sent1", "hard_neg")
    rows = [("A man.", "He, a man.", "No."), ('a "b"', "c", "d")]
    return {"shards/nli": texts(*(dict(zip(names, row, strict=True)) for row in rows))}


def nli_sentences(folder: Path) -> Expected:
    def lines(*pairs: tuple[str, str]) -> str:
        rows = ({"gold_label": "neutral", "sentence1": a, "sentence2": b, "sentence1_parse": "(ROOT)"} for a, b in pairs)
        return "".join(json.dumps(row) + "\n" for row in rows)

    snli = lines(("A dog.", "An animal."), ("A dog.", "A cat."))
    put(folder, {"snli_1.0/snli_1.0_train.jsonl": snli, "multinli_1.0/multinli_1.0_train.jsonl": lines(("A cat.", "Yes. "))})
    return {"shards/nli-sentences": texts("A dog.", "An animal.", "A cat.", "Yes.")}


def stsb_sentences(folder: Path) -> Expected:
    def row(*sentences: str) -> str:
        return "\t".join(["main-captions", "MSRvid", "2012test", "0001", "5.000", *sentences]) + "\n"

    put(
        folder,
        {
            "sts-train.csv": row("A plane.", 'An "air plane.') + row("A plane.", "A boat.", "licence", "column 9"),
            "sts-dev.csv": row("One.", "Two."),
            "sts-test.csv": row("Three.", "Four."),
        },
    )
    return {
        "shards/stsb-sentences": texts(
            "A plane.", 'An "air plane.', "A plane.", "A boat.", "One.", "Two.", "Three.", "Four."
        )
    }


def translated(folder: Path, result: str) -> Expected:
    put(folder, {"translated.tsv": 'original\ttranslation\nA "dog.\tOne dog.\nlost\t\n'})
    return {result: texts({"original": 'A "dog.', "translation": "One dog."})}


def bookcorpus(folder: Path) -> Expected:
    put(folder, {"books_large_p1.txt": "usually , he would\nbut just\n", "books_large_p2.txt": "the end .\n"})
    return {"shards/bookcorpus": texts("usually , he would", "but just", "the end .")}


def wos(folder: Path) -> Expected:
    """Write a spreadsheet with numbers, multi-line texts, and empty cells."""
    book = openpyxl.Workbook()
    sheet = book.active
    sheet.append(["Y1", "Y2", "Y", "Domain", "area", "keywords", "Abstract"])
    for i in range(10):
        sheet.append([i % 7, None, 100 + i, None, None, None, "One &\ntwo." if i < 8 else f"A\t{i}"])
    (folder / "Meta-data").mkdir(parents=True)
    book.save(folder / "Meta-data" / "Data.xlsx")
    cells = [("One & two." if i < 8 else f"A {i}", "train" if i < 8 else "dev" if i < 9 else "test") for i in range(10)]
    return {
        f"wos/{name}.tsv": "label\ttext\tsplit\n" + "".join(f"{label(i)}\t{t}\t{s}\n" for i, (t, s) in enumerate(cells))
        for name, label in (("wos7", lambda i: i % 7), ("wos134", lambda i: 100 + i))
    }


def glue(folder: Path) -> Expected:
    """Write the layout of each archive; files of CoLA have no header, files of MRPC start with a byte order mark."""
    sets = {
        "QNLI": ("index\tquestion\tsentence\tlabel\n", '{}\tWho "is?\t{}.\tentailment\n', 'entailment\tWho "is?\t{}.'),
        "SST-2": ("sentence\tlabel\n", "a {} . \t1\n", "1\ta {} . "),
        "CoLA": ("", "gj04\t{}\t*\tThey {} it.\n", "{}\tThey {} it."),
        "MRPC": ("\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n", "1\t7\t8\tA {}\tB {}\n", "1\tA {}\tB {}"),
        "RTE": ("index\tsentence1\tsentence2\tlabel\n", "{}\tYes.\tNo.\tnot_entailment\n", "not_entailment\tYes.\tNo."),
    }
    expected: Expected = {}
    for name, (head, line, wanted) in sets.items():
        lines = [line.format(i, i) for i in range(23)]
        put(folder, {f"{name}/train.tsv": head + "".join(lines[:3]), f"{name}/dev.tsv": head + "".join(lines[3:])})
        parts = ["train"] * 3 + ["dev"] * 2 + ["test"] * 18
        rows = "".join(f"{wanted.format(i, i)}\t{part}\n" for i, part in enumerate(parts))
        sentences = "sentence" if wanted.count("\t") == 1 else "sentence1\tsentence2"
        expected[f"glue/{name.replace('-', '').lower()}.tsv"] = f"label\t{sentences}\tsplit\n{rows}"
    return expected


# ----------------------------------------------------------------------------------------------------------------- images


def imagenet(folder: Path) -> Expected:
    names = ["n01871265/n01871265_7110.JPEG", "n01871265/n01871265_3107.JPEG", "n01530575/n01530575_10.JPEG"]
    data = "ILSVRC/Data/CLS-LOC"
    put(folder, {f"{data}/train/{name}": png(i) for i, name in enumerate([*names, "n01530575/n01530575_9.JPEG"])})
    put(folder, {f"{data}/val/ILSVRC2012_val_0000000{i}.JPEG": png(10 + i) for i in (1, 2)})
    put(
        folder,
        {
            "sampled-Imagenet.txt": "".join(f"/datasets/sampled-Imagenet/{name}\n" for name in names),
            "LOC_val_solution.csv": "ImageId,PredictionString\n"
            "ILSVRC2012_val_00000002,n01440764 1 2 3 4 n01440764 5 6 7 8 \n"
            "ILSVRC2012_val_00000001,n01751748 111 108 379 326 \n",
        },
    )
    return {
        "shards/imagenet60": [(None, name.split("/")[0], png(i)) for i, name in enumerate(names)],
        "shards/imagenet": [(None, "n01440764", png(12)), (None, "n01751748", png(11))],
    }


def imagenet_v2(folder: Path) -> Expected:
    top = folder / "imagenetv2-matched-frequency-format-val"
    put(top, {f"{number}/ab{number}.jpeg": png(number) for number in (0, 10, 2)})
    found: list[Seen] = [(None, str(number), png(number)) for number in (0, 10, 2)]  # as files are sorted
    return {"shards/imagenet-v2": found}


def imagenet_sketch(folder: Path) -> Expected:
    put(folder / "sketch", {"n01440764/sketch_0.JPEG": png(1), "n01443537/sketch_3.JPEG": png(2)})
    return {"shards/imagenet-sketch": [(None, "n01440764", png(1)), (None, "n01443537", png(2))]}


def described(folder: Path, name: str) -> Expected:
    readme = "The dataset ...\n\n@article{a2019,\n}\n\nn01498041 stingray\nn02233338 cockroach bug\n"
    put(
        folder / name,
        {"README.txt": readme, "n02233338/0.00_x y_0.99.jpg": png(1), "n01498041/0.01_z_0.5.JPEG": png(2)},
    )
    return {f"shards/{name}": [(None, "stingray", png(2)), (None, "cockroach bug", png(1))]}


def cifar_record(labels: tuple[int, ...], seed: int) -> bytes:
    return bytes(labels) + np.random.default_rng(seed).integers(0, 256, 3072, np.uint8).tobytes()


def cifar10(folder: Path) -> Expected:
    put(folder, {"batches.meta.txt": "airplane\nautomobile\nbird\n\n", "test_batch.bin": cifar_record((1,), 9)})
    put(folder, {f"data_batch_{i}.bin": cifar_record((2,), i) + cifar_record((0,), 10 + i) for i in range(1, 6)})
    train: list[Seen] = [
        (None, name, cifar_record((), k)) for i in range(1, 6) for name, k in (("bird", i), ("airplane", 10 + i))
    ]
    return {"shards/cifar": train, "shards/cifar10": [(None, "automobile", cifar_record((), 9))]}


def cifar100(folder: Path) -> Expected:
    put(folder, {"fine_label_names.txt": "apple\naquarium_fish\n", "test.bin": cifar_record((0, 1), 3)})
    return {"shards/cifar100": [(None, "aquarium_fish", cifar_record((), 3))]}


def cc3m(folder: Path) -> Expected:
    for part, first in (("train", 1), ("val", 5)):
        for i in range(first, first + 2):
            name = f"{part}/0000{i}/0000{i}0000"
            put(folder, {f"{name}.jpg": png(i), f"{name}.txt": f"caption\u2028 {i}", f"{name}.json": "{}"})
        put(folder, {f"{part}/00001.parquet": b"", f"{part}/00001_stats.json": "{}"})
    return {
        "shards/cc3m": [(f"caption {i}", None, png(i)) for i in (1, 2)],
        "shards/cc3m-val": [(f"caption {i}", None, png(i)) for i in (5, 6)],
    }


def karpathy(folder: Path, data: str, images: str, more: Mapping[str, str]) -> list[Seen]:
    """Write images 1 and 2 of test and image 3 of train; return the samples of all three."""
    captions = {number: [f"Caption {i} of {number}." for i in range(5)] for number in (3, 1, 2)}

    def image(number: int, split: str, count: int) -> dict[str, Any]:
        sentences = [{"tokens": ["a"], "raw": f" Caption {i} of {number}.\n", "imgid": 0, "sentid": i} for i in range(count)]
        return {**more, "filename": f"{number}.jpg", "split": split, "sentences": sentences, "imgid": number}

    listed = [image(3, "train", 5), image(1, "test", 5), image(2, "test", 7)]
    put(folder, {f"dataset_{data}.json": json.dumps({"images": listed, "dataset": data})})
    put(folder, {f"{images}/{number}.jpg": png(number) for number in captions})
    return [(texts, None, png(number)) for number, texts in captions.items()]


def coco(folder: Path) -> Expected:
    return {"shards/coco": karpathy(folder, "coco", "val2014", {"filepath": "val2014"})[1:]}


def flickr30k(folder: Path) -> Expected:
    found = karpathy(folder, "flickr30k", "flickr30k-images", {})
    return {"shards/flickr30k": found[1:], "shards/flickr30k-train": found[:1]}


def prompts(folder: Path) -> Expected:
    cells = [
        {"cell_type": "markdown", "source": ["imagenet_classes = [1]"]},
        {"cell_type": "code", "source": ["! pip install x\n"]},
        {"cell_type": "code", "source": ['imagenet_classes = ["tench", "crane [bird]"]']},
        {
            "cell_type": "code",
            "source": ["imagenet_templates = [\n", "    'a {}.',\n", "]\n", "\n", "print(imagenet_classes)"],
        },
    ]
    put(folder, {"notebooks/Prompt_Engineering_for_ImageNet.ipynb": json.dumps({"cells": cells, "nbformat": 4})})
    return {"prompts/imagenet.json": '{\n"classes": [\n"tench",\n"crane [bird]"\n],\n"templates": [\n"a {}."\n]\n}\n'}


# ------------------------------------------------------------------------------------------------------------------ audio


def librispeech(folder: Path) -> Expected:
    """Write 52 speakers: 100 has one utterance, 101 and 102 have two, and the others three."""
    expected: list[Seen] = []
    for speaker in range(100, 152):
        names = [f"{speaker}-{7 + i // 2}-000{i}" for i in range({100: 1, 101: 2, 102: 2}.get(speaker, 3))]
        for i, name in enumerate(names):
            put(folder, {f"train-clean-100/{speaker}/{7 + i // 2}/{name}.flac": wav(i, "FLAC")})
            if speaker not in (100, 102):
                expected.append((f"SAID {speaker} {i}", str(speaker), wav(i, "FLAC")))
        for chapter in {7 + i // 2 for i in range(len(names))}:
            spoken = "".join(f"{name} SAID {speaker} {i}\n" for i, name in enumerate(names) if 7 + i // 2 == chapter)
            put(folder, {f"train-clean-100/{speaker}/{chapter}/{speaker}-{chapter}.trans.txt": spoken})
    return {"shards/librispeech50": expected}


def clotho(folder: Path) -> Expected:
    head = "file_name,caption_1,caption_2,caption_3,caption_4,caption_5\n"
    expected: Expected = {}
    for number, (split, part) in enumerate((("train", "development"), ("val", "validation"), ("test", "evaluation"))):
        row = f'"a, {part} (1).wav",Rain.,"Rain, falls.",c,d,e\n'
        put(folder, {f"clotho_captions_{part}.csv": head + row, f"{part}/a, {part} (1).wav": wav(number)})
        expected[f"shards/clotho-{split}"] = [(["Rain.", "Rain, falls.", "c", "d", "e"], None, wav(number))]
    return expected


def audiocaps(folder: Path) -> Expected:
    head = "audiocap_id,youtube_id,start_time,caption\n"
    rows = "1,-aB_,30,Rain falls\n2,gone,10,Lost\n3,c_D,0,A dog\n4,-aB_,30,Drops\n"
    put(folder, {f"dataset/{split}.csv": head + rows for split in ("train", "val", "test")})
    put(folder, {"wav/-aB_.wav": wav(1), "wav/c_D.wav": wav(2)})
    single: list[Seen] = [("Rain falls", None, wav(1)), ("A dog", None, wav(2)), ("Drops", None, wav(1))]
    grouped: list[Seen] = [(["Rain falls", "Drops"], None, wav(1)), (["A dog"], None, wav(2))]
    return {"shards/audiocaps-train": single, "shards/audiocaps-val": grouped, "shards/audiocaps-test": grouped}


def musiccaps(folder: Path) -> Expected:
    head = "ytid,start_s,end_s,audioset_positive_labels,aspect_list,caption,author_id,is_balanced_subset,is_audioset_eval\n"
    rows = "".join(
        f'{name},30,40,"/m/0140xf,/m/02cjck","[\'low, slow\', \'sad\']","Slow, {name}.",4,False,{evaluation}\n'
        for name, evaluation in (("-0Gj8", "True"), ("-0SdA", "False"), ("gone", "True"))
    )
    put(folder, {"musiccaps-public.csv": head + rows, "wav/-0Gj8.wav": wav(1), "wav/-0SdA.wav": wav(2)})
    return {
        "shards/musiccaps-train": [("Slow, -0Gj8.", None, wav(1))],
        "shards/musiccaps-val": [("Slow, -0SdA.", None, wav(2))],
    }


def esc50(folder: Path) -> Expected:
    rows = "1-1-A-0.wav,1,0,dog,True,1,A\n2-1-A-1.wav,2,1,rooster,False,1,A\n1-2-A-36.wav,1,36,vacuum_cleaner,False,2,A\n"
    put(folder, {"meta/esc50.csv": "filename,fold,target,category,esc10,src_file,take\n" + rows})
    put(folder, {f"audio/{row.split(',')[0]}": wav(i) for i, row in enumerate(rows.splitlines())})
    return {"shards/esc50-fold1": [(None, "dog", wav(0)), (None, "vacuum_cleaner", wav(2))]}


def us8k(folder: Path) -> Expected:
    head = "slice_file_name,fsID,start,end,salience,fold,classID,class\n"
    put(folder, {"metadata/UrbanSound8K.csv": head + "1-3-0-0.wav,1,0,0.3,1,5,3,dog_bark\n2-2-0-7.wav,2,5,6,1,10,2,siren\n"})
    put(folder, {"audio/fold5/1-3-0-0.wav": wav(1), "audio/fold10/2-2-0-7.wav": wav(2)})
    return {"shards/us8k": [(None, "dog_bark", wav(1)), (None, "siren", wav(2))]}


DOWNLOADS: dict[str, Callable[[Path], Expected]] = {
    "wiki1m": wiki1m,
    "wiki1m-de": wiki1m_de,
    "nli": nli,
    "nli-sentences": nli_sentences,
    "stsb-sentences": stsb_sentences,
    "stsb-translated": lambda folder: translated(folder, "shards/stsb-translated"),
    "wiki10k-translated": lambda folder: translated(folder, "shards/wiki10k-translated"),
    "bookcorpus": bookcorpus,
    "wos": wos,
    "glue": glue,
    "imagenet": imagenet,
    "imagenet-v2": imagenet_v2,
    "imagenet-sketch": imagenet_sketch,
    "imagenet-a": lambda folder: described(folder, "imagenet-a"),
    "imagenet-o": lambda folder: described(folder, "imagenet-o"),
    "imagenet-r": lambda folder: described(folder, "imagenet-r"),
    "cifar10": cifar10,
    "cifar100": cifar100,
    "cc3m": cc3m,
    "coco": coco,
    "flickr30k": flickr30k,
    "prompts": prompts,
    "librispeech": librispeech,
    "clotho": clotho,
    "audiocaps": audiocaps,
    "musiccaps": musiccaps,
    "esc50": esc50,
    "us8k": us8k,
}
"""Function that writes a miniature, by dataset; wiki1m-zh, -fr and -ru equal -de."""
