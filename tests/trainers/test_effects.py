"""Every setting of every recipe has an effect, or is refused by name if it has none.

A setting is set to other values of its type, and three steps are trained with tiny models. They must show a difference
beyond the recorded recipe, or the error must name the setting. `SHOWN` lists the settings whose effect these steps cannot
show, each with a test that shows it. Settings that many recipes share are tested in one of them, by ``make test-cluster`` in
four, and with MULTICSE_SETTINGS=all in all.
"""

from __future__ import annotations

import os
import re
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

SHOWN = """
examples/test_new_modality.py modalities_are_added_to_the_methods_with_images: NonLingSettings.modalities
data/streams/test_triplets.py sentences_without_a_candidate_are_skipped_and_counted: TripletTextStream.on_bad_sample
data/streams/test_triplets.py sentences_without_a_candidate_are_skipped_and_counted: TripletTextStream.without_candidate
data/streams/test_triplets.py the_stream_stops_if_more_than_the_allowed_share_is_skipped: TripletTextStream.max_skipped_share
data/streams/test_triplets.py the_stream_stops_if_more_than_the_allowed_share_is_skipped: StreamConfig.max_skipped_share
data/streams/test_triplets.py limits_of_the_number_of_words: TripletTextStream.words
data/streams/test_triplets.py adjectives_only: TripletTextStream.choose
data/streams/test_triplets.py the_first_antonym_or_any: TripletTextStream.antonym
data/streams/test_pairs.py an_epoch_draws_one_of_the_captions_of_a_sample: CaptionedStream.captions
data/streams/test_pairs.py class_templates_make_captions: CaptionedStream.label CaptionedStream.templates
data/streams/test_pairs.py class_templates_make_captions: CaptionedStream.classes
data/test_forms.py any_position_of_any_form: LabelledStream.label
data/streams/test_preprocess.py clap_log_mel_is_transformers: AudioInput.features AudioInput.n_fft AudioInput.hop
data/streams/test_preprocess.py clap_log_mel_is_transformers: AudioInput.low_hz AudioInput.high_hz
data/streams/test_preprocess.py prepare_sounds_takes_the_middle_repeats_and_resamples: AudioInput.rate
data/test_forms.py any_form_is_the_same_stream: TextStream.keep_empty TextStream.columns LexiconTextStream.columns
data/test_shards.py expand: StreamConfig.shards
data/test_executor.py readers_that_are_ahead_stop_and_cost_next_to_nothing: StreamConfig.read_ahead
data/test_lexicon.py a_thesaurus_of_another_language_becomes_a_lexicon: LexiconTextStream.lexicon
models/test_model_folders.py a_pooling_means_the_same_in_recipes_and_evaluation: EncoderConfig.path
models/test_towers.py clip_and_clap_folders: ViTTower.path
models/test_towers.py ast_folder: AudioTower.path
models/test_word_encoder.py cleaning: WordEncoderConfig.letters
models/test_word_encoder.py redrawn_words_differ_between_sentences_and_epochs: WordEncoderConfig.unknown
data/test_vector_files.py equal_seeds_give_bitwise_equal_vectors_in_every_process: WordEncoderConfig.vectors
data/test_vector_files.py equal_seeds_give_bitwise_equal_vectors_in_every_process: WordEncoderConfig.dim
data/test_vector_files.py equal_seeds_give_bitwise_equal_vectors_in_every_process: WordEncoderConfig.epochs
pipelines/test_pretrain.py text_and_settings_decide_the_start: FreshStartConfig.fresh
pipelines/test_clip_runs.py in_process: Recipe.lead CLIPConfig.nli CLIPConfig.nli_sentences
pipelines/test_recipes.py no_two_recipes_are_the_same_experiment: Recipe.name
pipelines/test_export.py a_whitened_export_is_the_checkpoint_whitened: ExportConfig.whiten ExportConfig.dimensions
pipelines/test_export.py an_export_is_uploaded_to_the_hub: RunConfig.push_to_hub
pipelines/test_sweep.py the_arithmetic_of_resources: StreamConfig.cpus
evaluation/tasks/test_sts.py senteval_layout_of_the_absent_sets: EvaluationConfig.data
trainers/test_recipe.py steps_of_a_share_of_epochs_are_not_rounded_up: RunConfig.epochs
trainers/test_methods.py losses_are_the_formulas_of_their_views: SimCSEConfig.supervised
trainers/test_methods.py losses_are_the_formulas_of_their_views: SimCSEConfig.hard_negative_log_weight
trainers/test_methods.py updates: NonLingSettings.summed MultiCSEConfig.summed
trainers/test_methods.py image_patches_are_vit_embeddings: ImagePatchesConfig.path
trainers/test_methods.py audio_patches_from_an_ast_folder: AudioConfig.path
trainers/test_mocoutrl.py disagree_6_3_released_mean_counts_padding: MoCoUTRLConfig.mean_with_padding
trainers/test_multicse.py synonyms_are_positives_and_antonyms_hard_negatives: MultiCSEConfig.antonyms
trainers/test_sgbert.py back_translation_differs_from_sg_only_in_the_positives: SGBERTConfig.positive
trainers/engine/test_engine.py early_stopping_counts_evaluations_without_a_better_score: EvaluationConfig.patience
trainers/engine/test_engine.py disagree_3_6_what_patience_counts_and_what_is_kept: EvaluationConfig.patience_counts
trainers/engine/test_engine.py disagree_3_6_what_patience_counts_and_what_is_kept: EvaluationConfig.keep
trainers/engine/test_engine.py the_untrained_weights_can_be_excluded_from_selection: EvaluationConfig.choose_untrained
trainers/engine/test_engine.py a_compiled_encoder_has_the_same_losses: RunConfig.compile
trainers/engine/test_features.py a_run_with_every_setting_resumes_exactly: StreamConfig.weights
trainers/engine/test_guests.py a_callback_gets_a_copy_of_the_metrics: RunConfig.callbacks
trainers/engine/test_launch.py skipped_samples_are_in_the_summary: StreamConfig.on_bad_sample
trainers/engine/test_launch.py threads_of_torch_spin_only_briefly: RunConfig.threads
trainers/engine/test_output.py a_refused_command_changes_no_file: RunConfig.output_dir
trainers/engine/test_output.py a_storage_of_another_run_is_refused: RunConfig.storage
trainers/engine/test_output.py the_same_command_resumes_a_run: RunConfig.resume
trainers/engine/test_output.py starting_over_ends_the_dead_run: RunConfig.overwrite
trainers/engine/test_precision.py tf32_reaches_torch: RunConfig.tf32
trainers/engine/test_sharding.py losses_weights_and_resume_equal_unsharded_training: RunConfig.sharded
trainers/engine/test_sharding.py losses_weights_and_resume_equal_unsharded_training: RunConfig.gradient_checkpointing
trainers/engine/test_tracking.py metrics_reach_the_run: RunConfig.tracking_uri
trainers/engine/test_tracking.py without_mlflow_a_run_has_its_journal_and_is_sent_later: RunConfig.report_to
trainers/engine/test_tracking.py a_run_has_its_parameters_environment_and_data_sets_without_secrets: RunConfig.experiment
trainers/engine/test_tracking.py the_folder_of_a_finished_run_can_be_sent_repeatedly: RunConfig.register_as
trainers/engine/test_watchdog.py a_stream_is_named_and_the_process_ends: RunConfig.step_timeout
trainers/test_effects.py resources_of_a_run_reach_ray: RunConfig.num_workers RunConfig.cpus_per_worker
trainers/test_effects.py resources_of_a_run_reach_ray: RunConfig.gpus_per_worker RunConfig.max_failures
trainers/test_effects.py messages_of_libraries_are_hidden: RunConfig.verbose
"""
"""File and name (without `test_`) of a test, and the settings whose effect it shows, because the steps cannot."""
ELSEWHERE = {
    key: (file, f"test_{name}") for file, name, keys in re.findall(r"(\S+) (\S+): (.+)", SHOWN) for key in keys.split()
}
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
