"""What the id of a cell is made of, entry by entry."""

from pathlib import Path

import pytest

import saliency_bench as sb
from saliency_bench.engine.context import load
from saliency_bench.engine.python_objects import describe
from saliency_bench.results.identity import OPTIONAL, Identity
from saliency_bench.spec import RunSpec

EXPLAINER = ("rise", '{"masks": 20, "p": 0.5}', 1)
METRIC = ("saliency_miou", '{"threshold": 0.3}', 2)
HAND_MADE = Identity(
    fingerprint="0123456789abcdef" * 2,
    split="test",
    classifier="fedcba9876543210" * 2,
    geometry={"resize": [32, 48], "crop": None, "rounding": "floor", "resample": "bilinear"},
    layer=None,
    target="label",
    labels=[[0], [1, 2]],
    precision="bf16, channels last",
    seed=7,
    groups="9ed6a372b14f702a",
)
OTHER = {
    "fingerprint": "0" * 32, "split": "train", "classifier": "0" * 32, "geometry": {"resize": 32}, "layer": "layer4",
    "target": "predicted", "labels": [[0], [1]], "precision": "fp32", "seed": 8, "groups": "0" * 16,
}  # fmt: skip


def test_ids_are_those_of_published_results():
    """Computed before this table was made."""
    assert HAND_MADE.cell_id(EXPLAINER, METRIC, ("maps", "masks")) == "2c93377ca69ec334"
    assert HAND_MADE.cell_id(EXPLAINER, METRIC, ("groups",)) == "26540366082c605e"


@pytest.mark.parametrize("entry", Identity.model_fields)
def test_every_entry_is_part_of_the_id(entry):
    needs = OPTIONAL
    changed = HAND_MADE.model_copy(update={entry: OTHER[entry]})
    assert changed.cell_id(EXPLAINER, METRIC, needs) != HAND_MADE.cell_id(EXPLAINER, METRIC, needs)
    same = changed.cell_id(EXPLAINER, METRIC) == HAND_MADE.cell_id(EXPLAINER, METRIC)
    assert same == (entry in OPTIONAL)  # what a metric does not ask for is no part of its cells


@pytest.mark.parametrize("place", range(3))
def test_name_options_and_version_of_explainer_and_metric_are_part_of_the_id(place):
    def changed(versioned):
        return (*versioned[:place], ("other", "{}", 9)[place], *versioned[place + 1 :])

    ids = {HAND_MADE.cell_id(EXPLAINER, METRIC), HAND_MADE.cell_id(changed(EXPLAINER), METRIC),
           HAND_MADE.cell_id(EXPLAINER, changed(METRIC))}  # fmt: skip
    assert len(ids) == 3


def test_the_ids_a_reader_accepts_are_those_with_and_without_what_metrics_may_ask_for():
    with_groups = HAND_MADE.cell_id(EXPLAINER, METRIC, ("groups",))
    assert HAND_MADE.cell_ids(EXPLAINER, METRIC) == [HAND_MADE.cell_id(EXPLAINER, METRIC), with_groups]
    alone = HAND_MADE.model_copy(update={"groups": None})
    assert alone.cell_ids(EXPLAINER, METRIC) == [HAND_MADE.cell_id(EXPLAINER, METRIC)]


# Of each setting of a run but its dataset, model, explainers and metrics: whether another value makes another cell.
CHANGES = {"split": "validation", "target": "predicted", "label_map": {}, "seed": 1, "precision": "bf16",
           "channels_last": True}  # fmt: skip
KEEPS = {"out": "elsewhere", "limit": 3, "batch_size": 5, "strict": True, "device": "cpu", "groups": {}}


def test_each_setting_is_part_of_the_ids_or_not(shapes, resnet):
    names = sb.load_dataset(shapes).features["label"].names
    values = {"label_map": dict.fromkeys(names, 1), "groups": {"all": list(range(8))}}
    least = {"dataset": shapes, "model": resnet, "explainers": "gradcam", "metrics": "saliency_miou", "out": "here"}
    assert set(CHANGES) | set(KEEPS) | set(least) == set(RunSpec.model_fields)

    def ids(**changes):
        return [cell.id for cell in load(*describe(least | changes), "cpu").cells]

    base = ids()
    for name, value in (CHANGES | KEEPS | values).items():
        assert (ids(**{name: value}) == base) == (name in KEEPS), name
    of_groups = {"metrics": "saliency_cgs"}
    assert ids(**of_groups, groups=values["groups"]) != ids(**of_groups, groups={"one": [0, 1], "two": [2]})
    assert not Path("here").exists()
