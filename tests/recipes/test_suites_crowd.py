"""Tests of people's answers in tables, against counts by hand. Each file is a separate study."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import kendalltau, pearsonr, spearmanr

from saliency_bench.read.analysis.order_agreement import read_answers
from saliency_bench.read.run_folder import RunData
from saliency_bench.recipes.suites.crowd import crowd_number, drawn_answers
from saliency_bench.recipes.suites.number import NoNumberError, Number
from saliency_bench.recipes.suites.numbers import correlation
from saliency_bench.recipes.suites.suite_schema import Value

EXPOSURES = [0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0]
FILES = (["a,gradcam,0.05,ann,false", "a,gradcam,0.2,ann,true", "b,gradcam,0.1,ann,true", "a,random,1,bob,false"],
         ["a,gradcam,0.5,ann,true", "c,gradcam,0.05,ann,true"])  # fmt: skip


@pytest.fixture
def run():
    return RunData(Path("run"), [], ["a", "b"], [None, None], {}, {"seed": 0})


@pytest.fixture
def answers(tmp_path):
    paths = [tmp_path / f"{number}.csv" for number in range(len(FILES))]
    for path, lines in zip(paths, FILES, strict=True):
        path.write_text("\n".join(["image_id,explainer,exposure,person,right", *lines]) + "\n")
    return [read_answers(path) for path in paths]


def area(first):
    accuracies = [float(0 < first <= exposure) for exposure in EXPOSURES]
    steps = zip(pairwise(EXPOSURES), pairwise(accuracies), strict=True)
    return sum((x1 - x0) * (y0 + y1) / 2 for (x0, x1), (y0, y1) in steps)


def test_areas_and_accuracies_are_over_the_judgements_of_all_files(run, answers):
    whole = crowd_number(answers, run, "gradcam", Value(crowd=True))
    assert (whole.value, whole.n) == (pytest.approx(np.mean([area(0.2), area(0.5), area(0.1)])), 2)
    for exposure, right in (("0.05", 0), ("0.1", 1), ("0.2", 2), ("0.5", 3)):
        number = crowd_number(answers, run, "gradcam", Value(crowd=True, exposure=exposure))
        assert number.value == pytest.approx(right / 3)
    with pytest.raises(NoNumberError, match="no answers"):
        crowd_number(answers, run, "gradient", Value(crowd=True))


def test_fewer_judgements_are_drawn_and_all_of_them_are_the_area(run, answers):
    one = crowd_number(answers, run, "gradcam", Value(crowd=True, judgements="1"))  # two of three
    areas = [area(0.2), area(0.5), area(0.1)]
    pairs = [np.mean([areas[i], areas[j]]) for i, j in ((0, 1), (0, 2), (1, 2))]
    assert one.value == pytest.approx(np.mean(pairs), abs=0.01)
    assert (one.low, one.high) == pytest.approx((min(pairs), max(pairs)))
    every = crowd_number(answers, run, "gradcam", Value(crowd=True, judgements="1.5"))
    assert every.value == crowd_number(answers, run, "gradcam", Value(crowd=True)).value
    with pytest.raises(NoNumberError, match=r"1.5 times, not 10"):
        crowd_number(answers, run, "gradcam", Value(crowd=True, judgements="10"))


@pytest.mark.parametrize(
    ("count", "bin_", "expected"),
    # Image a was first named correctly at 0.2 and 0.5, b at 0.1; one "ann" has 0.2 and 0.1, the other 0.5.
    [("image", "0 0.1", 1), ("image", "0.3 0.4", 1), ("image", "0.4 1", 0),
     ("person", "0.1 0.2", 1), ("person", "0.4 0.5", 1), ("person", "0.5 1", 0)],
)  # fmt: skip
def test_images_and_people_are_counted_by_their_mean_exposure(run, answers, count, bin_, expected):
    number = crowd_number(answers, run, "random", Value(crowd=True, count=count, bin=bin_))
    assert (number.value, number.n) == (expected, 2)  # only the two people called "ann" were ever right


@pytest.mark.parametrize(("kind", "by_scipy"), [("spearman", spearmanr), ("kendall", kendalltau)])
def test_a_correlation_of_orders_turns_signs(kind, by_scipy):
    first, second = [0.1, 0.4, 0.4, 0.9], [3.0, 2.0, 5.0, 1.0]
    numbers = [[Number(value) for value in values] for values in (first, second)]
    expected = by_scipy(first, [-value for value in second]).statistic
    assert correlation(*numbers, [1, -1], kind).value == pytest.approx(expected)
    assert expected != pytest.approx(by_scipy(first, second).statistic)


def test_a_correlation_over_datasets_has_an_interval_from_four_on():
    """Test Fisher's interval, atanh r -+ 1.96 / sqrt(D - 3); orders have a larger standard error."""
    first, second = [0.1, 0.4, 0.5, 0.9, 0.7], [3.0, 2.0, 5.0, 4.5, 6.0]
    numbers = [[Number(value) for value in values] for values in (first, second)]
    for kind, by_scipy in (("pearson", pearsonr), ("spearman", spearmanr)):
        number = correlation(*numbers, [1, 1], kind)
        r = by_scipy(first, second).statistic
        error = np.sqrt((1 + r**2 / 2 if kind == "spearman" else 1) / 2)
        ends = [np.tanh(np.arctanh(r) + z * error) for z in (-1.959964, 1.959964)]
        assert (number.low, number.high) == pytest.approx(ends, rel=1e-6)
    for few in (
        correlation(*(side[:3] for side in numbers), [1, 1], "pearson"),
        correlation(*numbers, [1, 1], "kendall"),
    ):
        assert (few.low, few.high) == (None, None)


def test_drawn_people_judge_every_image_ten_times(run):
    drawn = drawn_answers(run, ["gradcam", "random"])
    assert {len(firsts) for of in drawn.judgements.values() for firsts in of.values()} == {10}
    assert len(drawn.of_people) == 10
    number = crowd_number([drawn], run, "gradcam", Value(crowd=True))
    assert number.value not in (0, 1, crowd_number([drawn], run, "random", Value(crowd=True)).value)


@pytest.mark.parametrize("keys", [{"metric": "saliency_kae", "exposure": "0.1"}, {"crowd": True, "count": "image"}])
def test_what_is_of_people_goes_with_people(keys):
    with pytest.raises(ValueError, match=r"require crowd|used together"):
        Value(**keys)


def test_answers_that_name_their_dataset_count_for_it_alone(run, tmp_path):
    """Test answers for two datasets that both have an image "a". The two images are not confused."""
    lines = ["image_id,explainer,exposure,person,right,dataset", "a,gradcam,0.2,p,true,pets", "a,gradcam,0.5,p,true,f9"]
    (tmp_path / "answers.csv").write_text("\n".join(lines) + "\n")
    answers = [read_answers(tmp_path / "answers.csv")]
    for name, fingerprint, first in (("pets", "f1", 0.2), ("./voc", "f9", 0.5)):
        run.summary["dataset"] = {"id": name, "fingerprint": fingerprint}
        assert crowd_number(answers, run, "gradcam", Value(crowd=True)).value == pytest.approx(area(first))
        assert crowd_number(answers, run, "gradcam", Value(crowd=True, count="person", bin="0 1")).n == 1
    run.summary["dataset"] = {"id": "coco", "fingerprint": "f5"}
    with pytest.raises(NoNumberError, match="no answers"):
        crowd_number(answers, run, "gradcam", Value(crowd=True))
