"""The data sets that recipes and tables name: what each is, where it is had, and what `prepare.py` makes of it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from multicse.data.errors import command
from multicse.reproduction.sources import pictures, sheets, sounds, texts
from multicse.reproduction.sources.source import Result, Source

SIMCSE = "https://huggingface.co/datasets/princeton-nlp/datasets-for-simcse"
NLI_TERMS = "SNLI: CC-BY-SA-4.0; MultiNLI: OANC and others, by genre"
STSB_TERMS = "scores CC-BY-SA-4.0, texts by their sources (its LICENSE.txt)"
KAGGLE = "https://www.kaggle.com/c/imagenet-object-localization-challenge"
YOUTUBE = "the sounds, ten seconds each, are YouTube's and are fetched by their ids; those that are gone are left out"
TRANSLATE = (
    command("translate", "reproduction") + " --there DIR --back DIR --text shards/{0} --out downloads/{1}/translated.tsv"
)
LEIPZIG = {  # Wikipedia in other languages: code -> what the million sentences are called
    "de": "deu_wikipedia_2021_1M",
    "zh": "zho_wikipedia_2018_1M",
    "fr": "fra_wikipedia_2021_1M",
    "ru": "rus_wikipedia_2021_1M",
}
CLOTHO = partial(sounds.manifest, file="file_name", captions=tuple(f"caption_{i}" for i in range(1, 6)))
AUDIOCAPS = partial(sounds.manifest, file="{youtube_id}.wav", captions=("caption",), missing="skip")
MUSICCAPS = partial(sounds.manifest, file="{ytid}.wav", captions=("caption",), missing="skip")
TRIPLE = ("sent0", "sent1", "hard_neg")
PAIR = ("original", "translation")
GLUE = {  # folder of a set -> its label and sentences, and what stands in the columns of a file without names
    "QNLI": (("label", "question", "sentence"), ()),
    "SST-2": (("label", "sentence"), ()),
    "CoLA": (("label", "sentence"), ("source", "label", "judgement", "sentence")),
    "MRPC": (("Quality", "#1 String", "#2 String"), ()),
    "RTE": (("label", "sentence1", "sentence2"), ()),
}
SENTEVAL = ("STS/", "SICK/", "MR/", "CR/", "SUBJ/", "MPQA/", "SST/", "TREC/", "MRPC/")
NLI = ("snli_1.0/snli_1.0_train.jsonl", "multinli_1.0/multinli_1.0_train.jsonl")
SEMEVAL = (
    *(f"STS.{kind}.track{track}.txt" for track in ("1.ar-ar", "3.es-es", "5.en-en") for kind in ("input", "gs")),
    "es2014/",
)
ESC50 = partial(sounds.manifest, file="filename", label="category", where={"fold": "1"})
US8K = partial(sounds.manifest, file="fold{fold}/{slice_file_name}", label="class")
IMAGENET_VAL = ("LOC_val_solution.csv", "ILSVRC/Data/CLS-LOC/val/")
CIFAR100 = partial(pictures.cifar, labels=2)
PROMPTS = "notebooks/Prompt_Engineering_for_ImageNet.ipynb"


def _translated(name: str, sentences: str, licence: str) -> Source:
    read = partial(texts.columns, names=PAIR)
    return Source(
        title=f"Back-translations of shards/{sentences}",
        home=f"made here: {command('translate', 'reproduction')}",
        licence=licence,
        results=(Result(f"shards/{name}", ("translated.tsv",), read),),
        hint=TRANSLATE.format(sentences, name),
    )


def _folders(title: str, name: str, folder: str, home: str, licence: str, described: bool = False) -> Source:
    read = pictures.described_folders if described else pictures.class_folders
    return Source(title, home, licence, (Result(f"shards/{name}", (folder,), read, "test"),))


TEXTS: dict[str, Source] = {
    "wiki1m": Source(
        title="A million sentences of English Wikipedia (SimCSE's), and 10,000 of them",
        home=SIMCSE,
        licence="CC-BY-SA-3.0 (Wikipedia)",
        results=(
            Result("shards/wiki1m", ("wiki1m_for_simcse.txt",), texts.lines),
            Result("shards/wiki10k", ("wiki1m_for_simcse.txt",), partial(texts.some_lines, count=10_000)),
        ),
    ),
    **{
        f"wiki1m-{code}": Source(
            title=f"A million sentences of Wikipedia, language {code} (Leipzig Corpora Collection)",
            home="https://wortschatz.uni-leipzig.de/en/download",
            licence="CC-BY-SA (Wikipedia); the collection's own terms are on its page",
            results=(Result(f"shards/wiki1m-{code}", (f"{name}-sentences.txt",), texts.numbered_lines),),
        )
        for code, name in LEIPZIG.items()
    },
    "nli": Source(
        title="275,601 triples of SNLI and MultiNLI (SimCSE's): premise, entailment, contradiction",
        home=SIMCSE,
        licence=NLI_TERMS,
        results=(Result("shards/nli", ("nli_for_simcse.csv",), partial(texts.columns, names=TRIPLE, keep_empty=True)),),
    ),
    "nli-sentences": Source(
        title="Premises and hypotheses of SNLI and MultiNLI (train), each distinct one once",
        home="https://nlp.stanford.edu/projects/snli/ and https://cims.nyu.edu/~sbowman/multinli/",
        licence=NLI_TERMS,
        results=(Result("shards/nli-sentences", NLI, texts.distinct_sentences),),
    ),
    "stsb-sentences": Source(
        title="All 17,256 sentences of STS-B, without ratings",
        home="https://ixa2.si.ehu.eus/stswiki/index.php/STSbenchmark",
        licence=STSB_TERMS,
        results=(Result("shards/stsb-sentences", ("sts-train.csv", "sts-dev.csv", "sts-test.csv"), texts.stsb_sentences),),
    ),
    "stsb-translated": _translated("stsb-translated", "stsb-sentences", STSB_TERMS),
    "wiki10k-translated": _translated("wiki10k-translated", "wiki10k", "CC-BY-SA-3.0 (Wikipedia)"),
    "bookcorpus": Source(
        title="BookCorpus: 74 million sentences of novels",
        home="https://huggingface.co/datasets/bookcorpus/bookcorpus",
        licence="unknown: the books' own terms",
        results=(Result("shards/bookcorpus", ("books_large_p1.txt", "books_large_p2.txt"), texts.lines),),
        hint="its makers no longer distribute it; this is the copy that others use",
    ),
    "wos": Source(
        title="Web of Science (WOS-46985): abstracts of 7 fields and 134 areas, 80, 10 and 10 % in the order of the file",
        home="https://data.mendeley.com/datasets/9rw3vkcfy4/6",
        licence="CC-BY-4.0",
        results=tuple(
            Result(f"wos/{name}.tsv", ("Meta-data/Data.xlsx",), partial(sheets.web_of_science, label=label))
            for name, label in (("wos7", "Y1"), ("wos134", "Y"))
        ),
    ),
    "glue": Source(
        title="Five sets of GLUE; the first tenth of the dev part is dev, the rest test",
        home="https://gluebenchmark.com/tasks",
        licence="by set",
        results=tuple(
            Result(
                f"glue/{name.replace('-', '').lower()}.tsv",
                (f"{name}/train.tsv", f"{name}/dev.tsv"),
                partial(texts.glue, columns=columns, header=header),
            )
            for name, (columns, header) in GLUE.items()
        ),
    ),
    "senteval": Source(
        title="STS12-16, STS-B, SICK and the seven transfer tasks, as SentEval lays them out",
        home=SIMCSE,
        licence="by set",
        results=(Result("SentEval/data/downstream", SENTEVAL),),
        hint="senteval.tar",
    ),
    "semeval": Source(
        title="SemEval 2017 task 1, tracks 1, 3 and 5, and 2014 task 10, Spanish",
        home="https://alt.qcri.org/semeval2017/task1/ and https://alt.qcri.org/semeval2014/task10/",
        licence="by source of the texts",
        results=(Result("semeval", SEMEVAL),),
        hint="es2014 holds STS.input.news.txt, STS.gs.news.txt and the same of wikipedia",
    ),
    "vectors": Source(
        title="word2vec: 3 million words of Google News",
        home="https://code.google.com/archive/p/word2vec/",
        licence="Apache-2.0",
        results=(Result("vectors", ("GoogleNews-vectors-negative300.bin.gz",)),),
    ),
}

PICTURES: dict[str, Source] = {
    "imagenet": Source(
        title="ImageNet: 60 classes x 500 pictures to train on (VisualCSE's list), and the 50,000 of validation",
        home=KAGGLE,
        licence="ImageNet's terms: non-commercial research and education",
        results=(
            Result("shards/imagenet60", ("sampled-Imagenet.txt", "ILSVRC/Data/CLS-LOC/train/"), pictures.listed),
            Result("shards/imagenet", IMAGENET_VAL, pictures.imagenet_validation, "val"),
        ),
        hint="the list is VisualCSE/sampled-Imagenet.txt of https://github.com/yiren-jian/NonLing-CSE",
    ),
    "imagenet-v2": _folders(
        "ImageNetV2, matched frequency: 10,000 pictures",
        "imagenet-v2",
        "imagenetv2-matched-frequency-format-val/",
        "https://huggingface.co/datasets/vaishaal/ImageNetV2",
        "MIT",
    ),
    "imagenet-sketch": _folders(
        "ImageNet-Sketch: 50,889 drawings",
        "imagenet-sketch",
        "sketch/",
        "https://github.com/HaohanWang/ImageNet-Sketch",
        "unknown",
    ),
    **{
        f"imagenet-{letter}": _folders(
            title, f"imagenet-{letter}", f"imagenet-{letter}/", f"https://github.com/hendrycks/{home}", "MIT", described=True
        )
        for letter, title, home in (
            ("a", "ImageNet-A: 7,500 pictures of 200 classes", "natural-adv-examples"),
            ("o", "ImageNet-O: 2,000 pictures of 200 classes", "natural-adv-examples"),
            ("r", "ImageNet-R: 30,000 renditions of 200 classes", "imagenet-r"),
        )
    },
    "cifar10": Source(
        title="CIFAR-10, binary version: 50,000 pictures to train on, 10,000 of test",
        home="https://www.cs.toronto.edu/~kriz/cifar.html",
        licence="none stated",
        results=(
            Result("shards/cifar", ("batches.meta.txt", *(f"data_batch_{i}.bin" for i in range(1, 6))), pictures.cifar),
            Result("shards/cifar10", ("batches.meta.txt", "test_batch.bin"), pictures.cifar, "test"),
        ),
    ),
    "cifar100": Source(
        title="CIFAR-100, binary version: 10,000 pictures of test",
        home="https://www.cs.toronto.edu/~kriz/cifar.html",
        licence="none stated",
        results=(Result("shards/cifar100", ("fine_label_names.txt", "test.bin"), CIFAR100, "test"),),
    ),
    "cc3m": Source(
        title="Conceptual Captions: 3 million pictures to train on, 15,000 of validation",
        home="https://ai.google.com/research/ConceptualCaptions",
        licence="captions free for any purpose; pictures are their owners'",
        results=(
            Result("shards/cc3m", ("train/",), pictures.crawled),
            Result("shards/cc3m-val", ("val/",), pictures.crawled, "val"),
        ),
        hint="write the line 'caption<tab>url' above Train_GCC-training.tsv, then: img2dataset --input_format tsv "
        "--url_list Train_GCC-training.tsv --url_col url --caption_col caption --output_format files --image_size 256 "
        "--output_folder downloads/cc3m/train; likewise Validation_GCC-1.1.0-Validation.tsv into val",
    ),
    "coco": Source(
        title="COCO, Karpathy's test split: 5,000 pictures x 5 captions",
        home="https://cocodataset.org",
        licence="captions CC-BY-4.0; pictures have Flickr licences",
        results=(Result("shards/coco", ("dataset_coco.json", "val2014/"), pictures.karpathy, "test"),),
        hint="the list is in https://cs.stanford.edu/people/karpathy/deepimagesent/caption_datasets.zip",
    ),
    "flickr30k": Source(
        title="Flickr30K, Karpathy's splits: 29,000 pictures x 5 captions of train, 1,000 of test",
        home="https://shannon.cs.illinois.edu/DenotationGraph/",
        licence="non-commercial research",
        results=tuple(
            Result(path, ("dataset_flickr30k.json", "flickr30k-images/"), partial(pictures.karpathy, split=split), split)
            for path, split in (("shards/flickr30k", "test"), ("shards/flickr30k-train", "train"))
        ),
        hint="the list is in https://cs.stanford.edu/people/karpathy/deepimagesent/caption_datasets.zip",
    ),
    "prompts": Source(
        title="ImageNet's 1,000 class names and 80 templates of CLIP",
        home="https://github.com/openai/CLIP",
        licence="MIT",
        results=(Result("prompts/imagenet.json", (PROMPTS,), sheets.imagenet_prompts),),
    ),
}

SOUNDS: dict[str, Source] = {
    "librispeech": Source(
        title="LibriSpeech train-clean-100: the 50 speakers with the most utterances, with transcripts",
        home="https://www.openslr.org/12",
        licence="CC-BY-4.0",
        results=(Result("shards/librispeech50", ("train-clean-100/",), partial(sounds.librispeech, speakers=50)),),
    ),
    "clotho": Source(
        title="Clotho 2.1: 3,839, 1,045 and 1,045 sounds x 5 captions",
        home="https://zenodo.org/records/4783391",
        licence="captions: Tampere University's, non-commercial; sounds: Freesound's CC licences",
        results=tuple(
            Result(f"shards/clotho-{split}", (f"clotho_captions_{part}.csv", f"{part}/"), CLOTHO, split)
            for split, part in (("train", "development"), ("val", "validation"), ("test", "evaluation"))
        ),
    ),
    "audiocaps": Source(
        title="AudioCaps: 49,838 sounds with a caption; 495 and 975 with five",
        home="https://github.com/cdjkim/audiocaps",
        licence="captions MIT, academic use; sounds are YouTube's",
        results=tuple(
            Result(
                f"shards/audiocaps-{split}",
                (f"dataset/{split}.csv", "wav/"),
                AUDIOCAPS if split == "train" else partial(AUDIOCAPS, group=True),
                split,
            )
            for split in ("train", "val", "test")
        ),
        hint=f"wav/YOUTUBE_ID.wav: {YOUTUBE}",
    ),
    "musiccaps": Source(
        title="MusicCaps: 2,858 pieces of AudioSet's evaluation part to train on, 2,663 of its training part to measure",
        home="https://www.kaggle.com/datasets/googleai/musiccaps",
        licence="captions CC-BY-SA-4.0; sounds are YouTube's",
        results=tuple(
            Result(
                f"shards/musiccaps-{split}",
                ("musiccaps-public.csv", "wav/"),
                partial(MUSICCAPS, where={"is_audioset_eval": evaluation}),
                split,
            )
            for split, evaluation in (("train", "True"), ("val", "False"))
        ),
        hint=f"wav/YTID.wav: {YOUTUBE}",
    ),
    "esc50": Source(
        title="ESC-50, first fold: 400 sounds of 50 classes",
        home="https://github.com/karolpiczak/ESC-50",
        licence="CC-BY-NC-3.0",
        results=(Result("shards/esc50-fold1", ("meta/esc50.csv", "audio/"), ESC50, "test"),),
    ),
    "us8k": Source(
        title="UrbanSound8K: 8,732 sounds of 10 classes",
        home="https://urbansounddataset.weebly.com/urbansound8k.html",
        licence="CC-BY-NC-3.0",
        results=(Result("shards/us8k", ("metadata/UrbanSound8K.csv", "audio/"), US8K, "test"),),
    ),
}

SOURCES: dict[str, Source] = TEXTS | PICTURES | SOUNDS


def maker(place: str) -> str | None:
    """The name in `SOURCES` of what makes a place that a recipe names: ``shards/clotho-val`` is made by ``clotho``.

    None for a place that nothing here makes. What is used as it is counts with all that lies in it. A place of the current
    folder may be absolute.
    """
    place = place.removeprefix(f"{Path.cwd()}/")
    for name, source in SOURCES.items():
        for result in source.results:
            if place == result.path or (result.read is None and place.startswith(f"{result.path}/")):
                return name
    return None
