"""Tests of the components of a cell's id."""

from pathlib import Path

import pytest

import saliency_bench as sb
from saliency_bench.compute.cells import cells_of
from saliency_bench.compute.loaded import identity_of
from saliency_bench.compute.loading.load import load
from saliency_bench.compute.python_objects import describe
from saliency_bench.read.identity import CellIds, Identity
from saliency_bench.read.manifest import differing_settings
from saliency_bench.spec import RunSpec

EXPLAINER = ("rise", '{"masks": 20, "p": 0.5}', 1)
METRIC = ("saliency_miou", '{"threshold": 0.3}', 2)
HAND_MADE = Identity(fingerprint="0123456789abcdef" * 2, split="test", classifier="fedcba9876543210" * 2,
                     geometry={"resize": [32, 48], "crop": None, "rounding": "floor", "resample": "bilinear"},
                     layer=None, target="label", labels=[[0], [1, 2]], precision="bf16, channels last", seed=7,
                     groups="9ed6a372b14f702a")  # fmt: skip
OTHER = {
    "fingerprint": "0" * 32, "split": "train", "classifier": "0" * 32, "geometry": {"resize": 32}, "layer": "layer4",
    "target": "predicted", "labels": [[0], [1]], "precision": "fp32", "seed": 8, "groups": "0" * 16,
    "activation": "sigmoid", "label_column": "scene", "mask_values": "1",
}  # fmt: skip


EVERYTHING = ("target", "labels", "groups", "masks")  # inputs of a metric on which identity fields depend
# Fields that are hashed only for metrics with these inputs, unless the target is the label.
ASKED = {
    "target": "target", "labels": "labels", "label_column": "labels", "groups": "groups", "mask_values": "masks",
}  # fmt: skip


def test_cell_id_matches_published_results():
    """Compare with ids that were computed before the table of components existed."""
    assert HAND_MADE.cell_id(EXPLAINER, METRIC, ("maps", "masks")) == "2c93377ca69ec334"


@pytest.mark.parametrize("entry", Identity.model_fields)
def test_identity_field_changes_ids_of_dependent_metrics(entry):
    base = HAND_MADE.model_copy(update={"target": "contrast:second"})
    changed = base.model_copy(update={entry: OTHER[entry]})
    assert changed.cell_id(EXPLAINER, METRIC, EVERYTHING) != base.cell_id(EXPLAINER, METRIC, EVERYTHING)
    assert len(differing_settings(base, changed)) == len(differing_settings(changed, base)) >= 1
    for need in EVERYTHING:
        same = changed.cell_id(EXPLAINER, METRIC, (need,)) == base.cell_id(EXPLAINER, METRIC, (need,))
        assert same == (ASKED.get(entry, need) != need), need


@pytest.mark.parametrize("entry", ["column scene", "other model", "partners", "set of training images"])
def test_extra_dependencies_of_metric_change_its_id(entry):
    asked = [{}, {entry: "0" * 32}, {entry: "1" * 32}, {f"{entry}s": "0" * 32}]
    ids = [HAND_MADE.cell_id(EXPLAINER, METRIC, EVERYTHING, one) for one in asked]
    assert (len(set(ids)), ids[0]) == (len(asked), HAND_MADE.cell_id(EXPLAINER, METRIC, EVERYTHING))
    of_identity = CellIds(HAND_MADE)
    assert all(cell_id in of_identity.possible(EXPLAINER, METRIC, asked_for)
               for cell_id, asked_for in zip(ids, asked, strict=True))  # fmt: skip
    assert not set(of_identity.possible(EXPLAINER, METRIC, asked[1])) & {*ids[:1], *ids[2:]}


def test_labels_change_id_only_if_target_or_metric_uses_them():
    def ids(needs, **changes):
        return HAND_MADE.model_copy(update=changes).cell_id(EXPLAINER, METRIC, needs)

    other = {"labels": [[0], [1]]}
    assert ids(("curves",)) != ids(("curves",), **other)
    assert ids(("curves",), target="predicted") == ids(("curves",), target="predicted", **other)
    assert ids(("curves", "labels"), target="predicted") != ids(("curves", "labels"), target="predicted", **other)


@pytest.mark.parametrize("needs", [("images", "logits", "explain"), ("groups", "explain")])
def test_metric_with_fixed_targets_has_one_id(needs):
    ids = {HAND_MADE.model_copy(update={"target": target, "labels": labels}).cell_id(EXPLAINER, METRIC, needs)
           for target in ("label", "predicted", "contrast:second 0f") for labels in ([], [[0], [1]])}  # fmt: skip
    assert len(ids) == 1


def test_possible_ids_cover_every_combination_of_inputs():
    others = ({"groups": None, "target": "predicted"}, {"mask_values": "1"})
    for identity in (HAND_MADE, *(HAND_MADE.model_copy(update=update) for update in others)):
        needs = [(), ("target",), ("target", "labels"), ("labels",)]
        needs += [(*one, "groups") for one in needs] if identity.groups else []
        needs += [(*one, "masks") for one in needs] if identity.mask_values else []
        assert set(CellIds(identity).possible(EXPLAINER, METRIC)) == {
            identity.cell_id(EXPLAINER, METRIC, one) for one in needs
        }


# For each setting of a run except dataset, model, explainers and metrics: whether another value changes the cell's id.
CHANGES = {"split": "validation", "target": "predicted", "label_map": {}, "seed": 1, "precision": "bf16",
           "channels_last": True, "compile": True, "activation": "sigmoid", "mask_values": 255}  # fmt: skip
KEEPS = {"out": "elsewhere", "limit": 3, "batch_size": 5, "strict": True, "keep_maps": True, "device": "cpu",
         "groups": {}, "only": ("correct",)}  # fmt: skip


@pytest.mark.slow
def test_run_settings_change_ids_only_where_expected(shapes, resnet):
    names = sb.load_dataset(shapes).features["label"].names
    values = {"label_map": dict.fromkeys(names, 1), "groups": {"all": list(range(8))}}
    least = {"dataset": shapes, "model": resnet, "explainers": "gradcam", "metrics": "saliency_miou", "out": "here"}
    others = {"label_column", "maps", "other_model", "other_label", "prompts"}
    assert set(CHANGES) | set(KEEPS) | set(least) | others == set(RunSpec.model_fields)

    def ids(**changes):
        data, model, pairs = load(*describe(least | changes), "cpu")
        return [cell.id for cell in cells_of(identity_of(data, model), data, model, pairs, {})]

    base = ids()
    for name, value in (CHANGES | KEEPS | values).items():
        assert (ids(**{name: value}) == base) == (name in KEEPS), name
    own = {"metrics": ["saliency_cgs", "saliency_class_sensitivity"]}  # metrics that define their own targets
    assert ids(**own) == ids(**own, target="predicted") == ids(**own, label_map=values["label_map"])
    mapped = {"label_map": dict.fromkeys([*names, *sb.load_dataset(shapes).features["scene"].names], 1)}
    assert ids(**mapped, label_column="scene") != ids(**mapped)
    of_groups = {"metrics": "saliency_cgs"}
    assert ids(**of_groups, groups=values["groups"]) != ids(**of_groups, groups={"one": [0, 1], "two": [2]})
    assert not Path("here").exists()
