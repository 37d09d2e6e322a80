"""Every setting of every recipe has an effect, or is refused by name if it has none.

A setting is set to other values of its type, and three steps are trained with tiny models. They must show a difference
beyond the recorded recipe, or the error must name the setting. `SHOWN` lists the settings whose effect these steps cannot
show, each with a test that shows it. Settings that many recipes share are tested in one of them, by ``make test-cluster`` in
four, and with MULTICSE_SETTINGS=all in all.

``python -m tests.trainers.test_effects FOLDER`` prints all settings with what shows their effect.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple, get_origin

import pytest

from multicse.commands.registry import NAMES, load
from multicse.trainers.engine import launch, workers
from multicse.trainers.engine.checks import check_recipe
from multicse.trainers.recipe import Recipe
from tests.conftest import ROOT
from tests.trainers.effects import Setting, observed, others, settings
from tests.worlds import recipes

SHOWN: dict[str, dict[str, str]] = {
    "examples/test_new_modality.py": {
        "NonLingSettings.modalities": "modalities_are_added_to_the_methods_with_images",
    },
    "data/streams/test_triplets.py": {
        "TripletTextStream.on_bad_sample": "sentences_without_a_candidate_are_skipped_and_counted",
        "TripletTextStream.without_candidate": "sentences_without_a_candidate_are_skipped_and_counted",
        "TripletTextStream.max_skipped_share": "the_stream_stops_if_more_than_the_allowed_share_is_skipped",
        "StreamConfig.max_skipped_share": "the_stream_stops_if_more_than_the_allowed_share_is_skipped",
        "TripletTextStream.words": "limits_of_the_number_of_words",
        "TripletTextStream.choose": "adjectives_only",
        "TripletTextStream.antonym": "the_first_antonym_or_any",
    },
    "data/streams/test_pairs.py": {
        "CaptionedStream.captions": "an_epoch_draws_one_of_the_captions_of_a_sample",
        "CaptionedStream.label": "class_templates_make_captions",
        "CaptionedStream.templates": "class_templates_make_captions",
        "CaptionedStream.classes": "class_templates_make_captions",
    },
    "data/streams/test_decode.py": {
        "LabelledStream.label": "label",
    },
    "data/streams/test_preprocess.py": {
        "AudioInput.features": "clap_log_mel_is_transformers",
        "AudioInput.n_fft": "clap_log_mel_is_transformers",
        "AudioInput.hop": "clap_log_mel_is_transformers",
        "AudioInput.low_hz": "clap_log_mel_is_transformers",
        "AudioInput.high_hz": "clap_log_mel_is_transformers",
        "AudioInput.rate": "prepare_sounds_takes_the_middle_repeats_and_resamples",
    },
    "data/test_forms.py": {
        "TextStream.keep_empty": "any_form_is_the_same_stream",
        "TextStream.columns": "any_form_is_the_same_stream",
        "LexiconTextStream.columns": "any_form_is_the_same_stream",
    },
    "data/test_shards.py": {
        "StreamConfig.shards": "expand",
    },
    "data/test_executor.py": {
        "StreamConfig.read_ahead": "readers_that_are_ahead_stop_and_cost_next_to_nothing",
    },
    "data/test_lexicon.py": {
        "LexiconTextStream.lexicon": "a_thesaurus_of_another_language_becomes_a_lexicon",
    },
    "models/test_model_folders.py": {
        "EncoderConfig.path": "a_pooling_means_the_same_in_recipes_and_evaluation",
    },
    "models/test_towers.py": {
        "ViTTower.path": "clip_and_clap_folders",
        "AudioTower.path": "ast_folder",
    },
    "models/test_word_encoder.py": {
        "WordEncoderConfig.letters": "cleaning",
        "WordEncoderConfig.unknown": "redrawn_words_differ_between_sentences_and_epochs",
    },
    "data/test_vector_files.py": {
        "WordEncoderConfig.vectors": "equal_seeds_give_bitwise_equal_vectors_in_every_process",
        "WordEncoderConfig.dim": "equal_seeds_give_bitwise_equal_vectors_in_every_process",
        "WordEncoderConfig.epochs": "equal_seeds_give_bitwise_equal_vectors_in_every_process",
    },
    "pipelines/test_pretrain.py": {
        "FreshStartConfig.fresh": "text_and_settings_decide_the_start",
    },
    "pipelines/test_clip_runs.py": {
        "Recipe.lead": "in_process",
        "CLIPConfig.nli": "in_process",
        "CLIPConfig.nli_sentences": "in_process",
    },
    "pipelines/test_recipes.py": {
        "Recipe.name": "no_two_recipes_are_the_same_experiment",
    },
    "pipelines/test_export.py": {
        "ExportConfig.whiten": "a_whitened_export_is_the_checkpoint_whitened",
        "ExportConfig.dimensions": "a_whitened_export_is_the_checkpoint_whitened",
        "RunConfig.push_to_hub": "an_export_is_uploaded_to_the_hub",
    },
    "pipelines/test_sweep.py": {
        "StreamConfig.cpus": "the_arithmetic_of_resources",
    },
    "evaluation/tasks/test_sts.py": {
        "EvaluationConfig.data": "senteval_layout_of_the_absent_sets",
    },
    "trainers/test_recipe.py": {
        "RunConfig.epochs": "steps_of_a_share_of_epochs_are_not_rounded_up",  # without run.max_steps
    },
    "trainers/test_methods.py": {
        "SimCSEConfig.supervised": "losses_are_the_formulas_of_their_views",
        "SimCSEConfig.hard_negative_log_weight": "losses_are_the_formulas_of_their_views",
        "NonLingSettings.summed": "updates",
        "MultiCSEConfig.summed": "updates",
        "ImagePatchesConfig.path": "image_patches_are_vit_embeddings",
        "AudioConfig.path": "audio_patches_from_an_ast_folder",
    },
    "trainers/test_mocoutrl.py": {
        "MoCoUTRLConfig.mean_with_padding": "disagree_6_3_released_mean_counts_padding",
    },
    "trainers/test_multicse.py": {
        "MultiCSEConfig.antonyms": "synonyms_are_positives_and_antonyms_hard_negatives",
    },
    "trainers/test_sgbert.py": {
        "SGBERTConfig.positive": "back_translation_differs_from_sg_only_in_the_positives",
    },
    "trainers/engine/test_engine.py": {
        "EvaluationConfig.patience": "early_stopping_counts_evaluations_without_a_better_score",
        "EvaluationConfig.patience_counts": "disagree_3_6_what_patience_counts_and_what_is_kept",
        "EvaluationConfig.keep": "disagree_3_6_what_patience_counts_and_what_is_kept",
        "EvaluationConfig.choose_untrained": "the_untrained_weights_can_be_excluded_from_selection",
        "RunConfig.compile": "a_compiled_encoder_has_the_same_losses",
    },
    "trainers/engine/test_features.py": {
        "StreamConfig.weights": "a_run_with_every_setting_resumes_exactly",
    },
    "trainers/engine/test_guests.py": {
        "RunConfig.callbacks": "a_callback_gets_a_copy_of_the_metrics",
    },
    "trainers/engine/test_launch.py": {
        "StreamConfig.on_bad_sample": "skipped_samples_are_in_the_summary",
        "RunConfig.threads": "threads_of_torch_spin_only_briefly",
    },
    "trainers/engine/test_output.py": {
        "RunConfig.output_dir": "two_runs_do_not_share_a_folder",
        "RunConfig.resume": "the_same_command_resumes_a_run",
        "RunConfig.overwrite": "starting_over_ends_the_dead_run",
        "RunConfig.storage": "a_storage_of_another_run_is_refused",
    },
    "trainers/engine/test_precision.py": {
        "RunConfig.tf32": "tf32_reaches_torch",
    },
    "trainers/engine/test_sharding.py": {
        "RunConfig.sharded": "losses_weights_and_resume_equal_unsharded_training",
        "RunConfig.gradient_checkpointing": "losses_weights_and_resume_equal_unsharded_training",
    },
    "trainers/engine/test_tracking.py": {
        "RunConfig.tracking_uri": "metrics_reach_the_run",
        "RunConfig.report_to": "without_mlflow_a_run_has_its_journal_and_is_sent_later",
        "RunConfig.experiment": "a_run_has_its_parameters_and_environment",
        "RunConfig.register_as": "the_folder_of_a_finished_run_can_be_sent_repeatedly",
    },
    "trainers/engine/test_watchdog.py": {
        "RunConfig.step_timeout": "a_stream_is_named_and_the_process_ends",
    },
    "trainers/test_effects.py": {
        "RunConfig.num_workers": "resources_of_a_run_reach_ray",
        "RunConfig.cpus_per_worker": "resources_of_a_run_reach_ray",
        "RunConfig.gpus_per_worker": "resources_of_a_run_reach_ray",
        "RunConfig.max_failures": "resources_of_a_run_reach_ray",
        "RunConfig.verbose": "messages_of_libraries_are_hidden",
    },
}
"""Settings whose effect is not in the steps: file and name (without `test_`) of the test that shows it."""
ELSEWHERE = {key: (file, f"test_{name}") for file, tests in SHOWN.items() for key, name in tests.items()}
WITH: dict[str, dict[str, Any]] = {
    "NegativesConfig.margin_strategy": {"margin": 0.01},
    "NegativesConfig.guide": {"margin": 0.01},
    "EncoderConfig.include_prompt": {"prompt": "a "},
    "LoRASettings.alpha": {"rank": 2},
    "LoRASettings.dropout": {"rank": 2},
    "LoRASettings.targets": {"rank": 2},
    "GCLSRConfig.noise": {"variant": "paper"},
    "GCLSRConfig.dropout": {"variant": "paper"},
    "WordEncoderConfig.max_words": {"regions": (1, 2), "streams.text.max_length": 4},
}
"""Settings that need others, which have the same parent, or a complete path."""
OTHER: dict[str, Any] = {
    "StreamConfig.first": 16,
    "TextStream.max_length": 5,
    "CaptionedStream.max_length": 5,
    "RunConfig.matryoshka": (4,),
    "LoRASettings.targets": ("query",),
    "NegativesConfig.guide": "frozen",
    "EncoderConfig.prompt": "the ",
    "EvaluationConfig.watch": ("lee-dev-geometry",),
    "EvaluationConfig.final": ("lee",),
    "ScheduleConfig.groups": {"weights": {"lr": 0.0}},
    "WordEncoderConfig.max_words": 4,
    "AudioConfig.patch_size": 8,  # with 1, a spectrogram has 4,096 patches: a minute and 6 GB
    **dict.fromkeys(("ImagePatchesConfig.image_size", "ImageStream.size"), 16),
    **dict.fromkeys(("AudioConfig.frames", "AudioStream.frames"), 64),
    **dict.fromkeys(("AudioConfig.bins", "AudioStream.bins", "AudioInput.bins"), 16),
    "AudioInput.seconds": 0.5,
    "ImageInput.size": 32,
}
"""Values of settings whose type does not tell which are possible."""
SIZES = {"image_size": "size", "frames": "frames", "bins": "bins"}
"""Settings of a method, and of its stream, that must be equal."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Recipe]:
    return recipes(tmp_path_factory.mktemp("effects"))


def _values(setting: Setting) -> list[Any]:
    return [OTHER[setting.key]] if setting.key in OTHER else others(setting.annotation, setting.value)


def _is_constant(setting: Setting) -> bool:
    """Whether the type has one value only, as the name of a method."""
    return setting.annotation is type(None) or (get_origin(setting.annotation) is Literal and not _values(setting))


def _base(recipe: Recipe, setting: Setting) -> Recipe:
    """The recipe with the settings that this one needs."""
    parent = setting.path.rpartition(".")[0]
    changes = {name if "." in name else f"{parent}.{name}": value for name, value in WITH.get(setting.key, {}).items()}
    return recipe.changed({path: value for path, value in changes.items() if path in recipe.flat()})


def _twins(recipe: Recipe, path: str) -> list[str]:
    """The path of a setting, and of the one that must be equal to it."""
    names, known = [path], recipe.flat()
    for one, other in (("method.tower.input.", "streams.pairs.input."), ("streams.pairs.input.", "method.tower.input.")):
        names += [path.replace(one, other)] * path.startswith(one)
    kind = next((kind for kind in ("image", "audio") if f".{kind}." in path), "")
    for ours, theirs in SIZES.items():
        pair = (f"method.{kind}.{ours}", f"streams.{kind}.{theirs}")
        names += [name for name in pair if path in pair and name != path]
    return [name for name in names if name in known]


class Effects(NamedTuple):
    """Values of a setting with an effect, those that are refused by its name, and those with neither."""

    some: list[Any]
    refused: list[str]
    none: list[Any]


def effects(recipe: Recipe, setting: Setting, before: dict[str, str]) -> Effects:
    """Try other values of a setting until one has an effect; `before` keeps what recipes show without the change."""
    found, recipe = Effects([], [], []), _base(recipe, setting)
    for value in _values(setting):
        try:
            changed = recipe.changed(dict.fromkeys(_twins(recipe, setting.path), value))
            check_recipe(changed)
        except ValueError as error:
            (found.refused if setting.path.rpartition(".")[2] in str(error) else found.none).append(f"{value!r}: {error}")
            continue
        if (key := recipe.to_json()) not in before:
            before[key] = observed(recipe)
        if observed(changed) != before[key]:
            found.some.append(value)
            break
        found.none.append(value)
    return found


def test_every_setting_has_an_effect(world: dict[str, Recipe]) -> None:
    """In the first recipe that has it and can show the effect."""
    left, before = dict[str, list[str]](), dict[str, str]()
    seen = set[str]()
    for paper, recipe in world.items():
        for setting in settings(recipe):
            if setting.key in seen or setting.key in ELSEWHERE or _is_constant(setting):
                continue
            found = effects(recipe, setting, before)
            if found.some:
                seen.add(setting.key)
            left.setdefault(setting.key, []).append(
                f"{paper} {setting.path}: {found.refused or found.none or 'no other value'}"
            )
    assert not {key: tried for key, tried in left.items() if key not in seen}


KINDS = ("simcse", "audiocse", "cyclip", "gclsr")
"""Recipes with all kinds of encoders and one of each shape of streams. The others take ten more minutes:
MULTICSE_SETTINGS=all."""


@pytest.mark.cluster
@pytest.mark.parametrize(
    "paper",
    [n for n in NAMES if "smoke" in load(n).RECIPES and (n in KINDS or os.environ.get("MULTICSE_SETTINGS") == "all")],
)
def test_every_setting_of_every_recipe(paper: str, world: dict[str, Recipe]) -> None:
    """It has an effect, or all values are refused by its name."""
    recipe, before = world[paper], dict[str, str]()
    paths = [one for one in settings(recipe) if one.key not in ELSEWHERE and not _is_constant(one)]
    tried = {setting.path: effects(recipe, setting, before) for setting in paths}
    assert not {path: found.none for path, found in tried.items() if not found.some and (found.none or not found.refused)}


def test_the_tests_of_other_settings_exist(world: dict[str, Recipe]) -> None:
    keys = {setting.key for recipe in world.values() for setting in settings(recipe)}
    assert set(ELSEWHERE) | set(WITH) | set(OTHER) <= keys
    for key, (file, name) in ELSEWHERE.items():
        assert re.search(rf"^def {name}\(", (ROOT / "tests" / file).read_text(), re.M), f"{key}: no {name} in {file}"


def test_resources_of_a_run_reach_ray(world: dict[str, Recipe], monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    class Trainer:
        def __init__(self, worker: Any, **settings: Any) -> None:
            given.update(settings)

        def fit(self) -> Any:
            return SimpleNamespace(return_value={})

    monkeypatch.setattr("ray.train.torch.TorchTrainer", Trainer)
    monkeypatch.setattr("ray.put", lambda value: value)
    monkeypatch.setattr(workers, "Board", lambda: SimpleNamespace(clear=lambda: None))
    run = {"num_workers": 2, "cpus_per_worker": 3.0, "gpus_per_worker": 0.5, "max_failures": 4}
    recipe = world["simcse"].changed({f"run.{name}": value for name, value in run.items()})
    handle: Any = SimpleNamespace(uri="", run_id="")
    store: Any = SimpleNamespace(place="", run="")
    stop: Any = SimpleNamespace(main=False)
    workers.in_workers(recipe, store, handle, stop)
    scaling = given["scaling_config"]
    assert (scaling.num_workers, scaling.use_gpu, scaling.resources_per_worker) == (2, True, {"CPU": 3, "GPU": 0.5})
    assert given["run_config"].failure_config.max_failures == 4


@pytest.mark.parametrize("verbose", [True, False])
def test_messages_of_libraries_are_hidden(verbose: bool, world: dict[str, Recipe], monkeypatch: pytest.MonkeyPatch) -> None:
    hidden: list[bool] = []
    monkeypatch.setattr(launch, "quiet", lambda: hidden.append(True))
    monkeypatch.setattr(launch, "resolve", lambda recipe: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        launch.run_recipe(world["simcse"].replace("run.verbose", verbose))
    assert bool(hidden) is not verbose


def main(folder: Path) -> None:
    """Print every setting with what shows its effect."""
    made = recipes(folder)
    shown = {key: f"{file}::{name}" for key, (file, name) in ELSEWHERE.items()}
    before = dict[str, str]()
    for paper, recipe in made.items():
        for setting in settings(recipe):
            if setting.key not in shown:
                found = None if _is_constant(setting) else effects(recipe, setting, before)
                if found is None or found.some:
                    value = "constant" if found is None else f"{setting.path}={found.some[0]!r} in {paper}/smoke"
                    shown[setting.key] = value
    for key, value in sorted(shown.items()):
        print(f"{key:45} {value}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
