"""Settings that do not fit each other or the cluster, and what each error names; test_bad_inputs_commands.py has more."""

from __future__ import annotations

import re
from typing import Any

import pytest

from multicse.trainers.engine.checks import check, check_cluster
from multicse.trainers.recipe import Recipe


@pytest.mark.parametrize(
    ("changes", "cluster", "named"),
    [
        ({"streams": {}}, {}, "streams.audio"),
        ({"optim": {}}, {}, "optim.audio"),
        ({"run.workers": 1, "run.precision": "fp16"}, {}, "run.precision='fp16'"),
        ({"run.push_to_hub": "no name"}, {}, "run.push_to_hub='no name'"),
        ({"export.dimensions": 5}, {}, "export.whiten"),
        ({"export": {"whiten": True, "dimensions": 17}}, {}, "export.dimensions=17"),
        ({"run.workers": 8, "streams.text.batch_size": 64}, {}, "run.workers=8"),
        ({"run.workers": 1, "run.gpus_per_worker": 1}, {}, "run.gpus_per_worker=1"),
        ({}, {"nodes": 2}, "run.storage=None is not reachable from several nodes; set it, or MULTICSE_STORAGE"),
    ],
)
def test_an_error_names_what_is_wrong(recipe: Recipe, changes: dict[str, Any], cluster: dict[str, int], named: str) -> None:
    with pytest.raises(ValueError, match=re.escape(named)):
        check(recipe.changed(changes))
        check_cluster(recipe.changed(changes), **{"cpus": 4, **cluster})


def test_local_tracking_on_two_nodes(recipe: Recipe) -> None:
    shared = recipe.replace("run.storage", "s3://bucket/runs")
    with pytest.raises(ValueError, match=r"run\.tracking_uri"):
        check_cluster(shared, nodes=2)
    check_cluster(shared.replace("run.tracking_uri", "http://server:5000"), nodes=2)
