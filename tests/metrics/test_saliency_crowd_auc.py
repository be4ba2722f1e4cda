"""Test the area under the accuracy of people: by hand, against a second implementation, and as an `evaluate` module."""

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import saliency_bench as sb
from saliency_bench import registry
from saliency_bench.bound_metric import load_metric
from saliency_bench.errors import UserError
from saliency_bench.metrics.saliency_crowd_auc.score import saliency_crowd_auc
from saliency_bench.read.statistics.exposures import EXPOSURES, SHOWN, area

NEVER = float("nan")
BETWEEN = st.integers(1, 1000).map(lambda number: number / 1000)
FIRST = st.lists(st.sampled_from([*SHOWN, NEVER]) | BETWEEN, min_size=1, max_size=30)


def literal(first_right, exposures):
    """Return the AUC by P2's formula: the sum over neighbouring exposures of width times mean accuracy."""
    accuracies = [0.0]
    for exposure in exposures:
        accuracies.append(sum(1 for one in first_right if one is not None and one <= exposure) / len(first_right))
    total, before, accuracy = 0.0, 0.0, 0.0
    for exposure, following in zip(exposures, accuracies[1:], strict=True):
        total += (exposure - before) * (accuracy + following) / 2
        before, accuracy = exposure, following
    return total / exposures[-1]


@given(FIRST, st.none() | st.lists(st.integers(1, 100), min_size=1, unique=True))
def test_mean_score_is_area_under_accuracy(first, percent):
    exposures = SHOWN if percent is None else [one / 100 for one in sorted(percent)]
    without = [None if np.isnan(one) else one for one in first]
    found = saliency_crowd_auc(first, **({} if percent is None else {"exposures": exposures}))
    assert found.mean() == pytest.approx(literal(without, exposures), abs=1e-12)
    assert ((found >= 0) & (found < 1)).all()
    if percent is None:
        assert saliency_crowd_auc(without).tolist() == found.tolist()
        accuracy = [0.0, *(np.mean([one <= exposure for one in first]) for exposure in SHOWN)]
        assert found.mean() == pytest.approx(area(np.array(accuracy), EXPOSURES), abs=1e-12)


@pytest.mark.parametrize(("first", "line"), [
    ([0.5, 50], "above 0 and at most 1; got 50"), ([0], "got 0"), ([-0.1], "got -0.1"), ([np.inf], "got inf"),
    (["soon"], "must be a number"), (3, "must be a number"),
])  # fmt: skip
def test_invalid_exposure_is_rejected(first, line):
    with pytest.raises(ValueError, match=line):
        saliency_crowd_auc(first)


@pytest.mark.parametrize("exposures", [[], [0, 0.5], [0.5, 0.5], [0.5, 0.2], [0.5, 2], ["x"], 0.5, [NEVER]])
def test_invalid_exposures_option_is_rejected(exposures):
    with pytest.raises(UserError, match="increasing fractions"):
        load_metric("saliency_crowd_auc", exposures=exposures)


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    from evaluate.loading import evaluation_module_factory, import_main_class, init_dynamic_modules

    folder = tmp_path_factory.mktemp("evaluate")
    modules = init_dynamic_modules("evaluate_crowd_test", str(folder / "modules"))
    place = registry.files("metrics")["saliency_crowd_auc"].parent
    found = evaluation_module_factory(str(place), dynamic_modules_path=modules)
    yield import_main_class(found.module_path)(cache_dir=str(folder / "cache"), hash=found.hash)
    sys.path.remove(str(folder / "modules"))


def test_module_accepts_none_for_never_correct_answers(module):
    first = [0.05, 0.1, None, 1.0, NEVER]
    expected, found = saliency_crowd_auc(first), module.compute(predictions=first, per_sample=True)
    assert found == {"saliency_crowd_auc": pytest.approx(expected.mean()), "scores": expected.tolist()}
    module.add_batch(predictions=np.array(first[:2]))
    module.add(prediction=None)
    assert module.compute(predictions=first[3:]) == {"saliency_crowd_auc": pytest.approx(expected.mean())}
    halves = module.compute(predictions=[0.5, 0.5, None], exposures=[0.5, 1])
    assert halves["saliency_crowd_auc"] == pytest.approx(2 / 3 * (0.5 / 2 + 0.5))


@pytest.mark.parametrize(("given", "line"), [
    ({"predictions": [0.5], "references": [1]}, "uses only people's answers; remove references="),
    ({"predictions": [50]}, "at most 1; got 50"),
    ({"predictions": [0.5], "exposures": [0.5, 0.2]}, "increasing fractions"),
    ({"predictions": [0.5], "exposure": 0.5}, "exposure"),
    ({"predictions": []}, "no sample to score"),
])  # fmt: skip
def test_module_rejects_invalid_input_in_one_line(module, given, line):
    with pytest.raises(ValueError, match=line) as caught:
        module.compute(**given)
    assert "\n" not in str(caught.value)


def test_run_rejects_crowd_auc(shapes, resnet, tmp_path):
    with pytest.raises(UserError, match=r"people's answers.*--what agreement --answers FILE"):
        sb.run(dataset=str(shapes), model=str(resnet), explainers=["edges"], out=tmp_path / "run",
               metrics=["saliency_miou", "saliency_crowd_auc"], progress=False)  # fmt: skip
    assert not (tmp_path / "run").exists()
