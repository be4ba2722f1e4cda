"""Test the reliability of maps that average random draws: known cases, and the values that a run stores and reports."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from refusals import refused
from small_networks import small

import saliency_bench as sb
from saliency_bench.compute.explain import Explained
from saliency_bench.maps import reliability
from saliency_bench.read import records
from saliency_bench.read.statistics.reliability import Reliability, rounded
from saliency_bench.recipes.suites.costs import Cost
from saliency_bench.recipes.suites.suite_jobs import SuiteJob
from saliency_bench.recipes.suites.suite_plan import Step, plan_notes
from saliency_bench.spec import RunSpec
from saliency_bench.target_weights import one_hot
from saliency_bench.types import Averaged
from saliency_bench.utils.seeds import normal, seed_of

SETTINGS = {"dataset": "shapes", "model": "small", "explainers": ["random"], "metrics": ["saliency_miou"]}
SIGNAL = torch.from_numpy(normal(1, 32 * 32)).view(32, 32)


def noisy(classifier, images, target, *, seeds: list[int], draws: int = 6, width: float = 2.0):
    """Return a fixed signal of variance 1 plus the mean of draws of noise with variance width^2."""
    noise = np.stack([normal(seed_of(seed, draw), 1024) for seed in seeds for draw in range(draws)])
    every = SIGNAL + width * torch.from_numpy(noise).view(len(seeds), draws, 32, 32)
    return Averaged(every.mean(dim=1), every[:, ::2].mean(dim=1), every[:, 1::2].mean(dim=1), draws)


@pytest.mark.parametrize(("draws", "width"), [(2, 0.5), (6, 2.0), (40, 2.0), (10, 10.0)])
def test_reliability_matches_known_value_and_seed_correlation(draws, width):
    known = 1 / (1 + width**2 / draws)
    images, target = torch.rand(40, 3, 32, 32), torch.ones(1, 2)
    one, two = (noisy(None, images, target, seeds=list(range(40 * s, 40 * s + 40)), draws=draws, width=width)
                for s in (0, 1))  # fmt: skip
    found = reliability(one.even.numpy(), one.odd.numpy())
    assert found.mean() == pytest.approx(known, abs=0.015)
    between = [np.corrcoef(a.ravel(), b.ravel())[0, 1] for a, b in zip(one.maps, two.maps, strict=True)]
    assert found.mean() == pytest.approx(np.mean(between), abs=0.015)


def test_reliability_of_halves_matches_hand_values():
    one = np.array([1.0, 2, 3, 4]).reshape(1, 2, 2)
    other = np.array([2.0, 1, 4, 3]).reshape(1, 2, 2)  # r = 0.6
    assert reliability(one, other).tolist() == pytest.approx([1.2 / 1.6])
    assert reliability(1e-300 * one, 5 + 1e-6 * other).tolist() == pytest.approx([1.2 / 1.6], abs=1e-6)
    assert reliability(one, -one).tolist() == [0]
    assert reliability(one, one).tolist() == pytest.approx([1])
    assert np.isnan(reliability(one, np.full_like(one, 7))).all()
    assert np.isnan(reliability(one, np.full_like(one, np.nan))).all()


@pytest.mark.parametrize("draws", [1, 10, 1000])
@pytest.mark.parametrize("median", [0.49, 0.5, 0.79, 0.85, 0.9])
def test_suggested_draws_are_the_fewest_that_reach_the_goal(median, draws):
    about = Reliability(median=median, n=3, draws=draws)

    def of(count):  # signal / (signal + noise / count)
        return 1 / (1 + (1 / median - 1) * draws / count)

    assert (about.wanted is None) == (median >= 0.9 or median < 0.5)
    assert about.is_low == (median < 0.8)
    if about.wanted:
        assert of(about.wanted) >= 0.9 - 1e-6
        assert of(about.wanted - 1) < 0.9
        assert about.wanted <= rounded(about.wanted) < 1.1 * about.wanted + 1


def test_unreachable_goal_suggests_no_draws():
    for median, draws, text in (
        # for 50 masks of RISE, whose estimate reaches .44 by chance
        (0.49, 50, "0.49 (below 0.8; 50 draws are too few to tell how many would reach 0.9)"),
        (0.5, 100, "0.50 (below 0.8; about 900 draws instead of 100 would reach 0.9)"),
        (0.85, 100, "0.85"),
    ):
        assert str(Reliability(median=median, n=1, draws=draws)) == text


def test_single_draws_have_no_reliability(resnet):
    classifier = sb.load_classifier(str(resnet), device="cpu")
    images = torch.rand(2, 3, 32, 32)
    target = one_hot([0, 1], classifier(images).shape[1])
    for name in ("rise:masks=1", "smoothgrad:samples=1", "gradient_shap:samples=1", "lime:samples=1",
                 "gradient_shap:baselines=1"):  # fmt: skip
        made = sb.load_explainer(name).made(classifier, images, target)
        assert made.reliability == [None, None], name
    assert sb.load_explainer("gradient").made(classifier, images, target).draws is None

    def wrong(classifier, images, target):
        maps = images.mean(dim=1)
        return Averaged(maps, maps, maps[:, :-1], 2)

    refused("of the even draws and of the odd draws have shapes", sb.load_explainer(wrong), classifier, images, target)


STOPPING = [("rise", "masks", 400, 0.45), ("lime", "samples", 90, 0.96), ("smoothgrad", "samples", 60, 0.9905),
            ("gradient_shap:baselines=60", "samples", 90, 0.72), ("gradient_shap:baseline=zero", "samples", 40, 0.992),
            ("gradient_shap", "samples", 5, 0.1)]  # fmt: skip


@pytest.mark.parametrize(("name", "option", "most", "wanted"), STOPPING)
def test_drawing_stops_at_first_reliable_block(name, option, most, wanted):
    """Compare with maps and reliabilities computed separately for each number of draws."""
    classifier = sb.load_classifier(small(3), mean=0.5, std=0.2, device="cpu")
    images, target = torch.rand(4, 3, 24, 24, generator=torch.Generator().manual_seed(1)), one_hot([0, 1, 2, 3], 4)
    explainer = sb.load_explainer(name, **{option: most, "reliability": wanted})
    before = classifier.passes
    made = explainer.made(classifier, images, target)
    assert classifier.passes - before == sum(made.draws)
    ends = [end for end in (16, 24, 36, 54, 81, 121, 181, 271) if end < most - 1] + [most]
    for index in range(4):
        of_image = classifier, images[index : index + 1], target[index : index + 1]
        for end in ends:
            literal = sb.load_explainer(name, **{option: end}).made(*of_image, seeds=[index])
            if literal.reliability[0] is not None and literal.reliability[0] >= wanted:
                break
        assert made.draws[index] == end
        assert made.reliability[index] == pytest.approx(literal.reliability[0], abs=1e-5)
        torch.testing.assert_close(made.maps[index], literal.maps[0], rtol=1e-5, atol=1e-6 * literal.maps.abs().max())
        alone = explainer.made(*of_image, seeds=[index])  # other images change no bit of a map
        assert alone.draws == [made.draws[index]]
        assert alone.reliability == pytest.approx([made.reliability[index]], abs=1e-12)
        assert torch.equal(alone.maps[0], made.maps[index])


def test_identity_includes_reliability_option():
    for name in ("rise", "lime", "smoothgrad", "gradient_shap"):
        usual, stopping = sb.load_explainer(name), sb.load_explainer(f"{name}:reliability=0.9")
        assert "reliability" not in usual.identity[1]  # as before this option existed
        assert usual == sb.load_explainer(f"{name}:reliability=None")
        assert '"reliability": 0.9' in stopping.identity[1]
        assert str(stopping) == f"{name}:reliability=0.9"
        for wrong in (0, 1, -0.5, 90):
            with pytest.raises(sb.UserError, match=rf"reliability of {name} must be between 0 and 1.*got {wrong}"):
                sb.load_explainer(name, reliability=wrong)


@pytest.fixture(scope="module")
def started(shapes, resnet, tmp_path_factory):
    folder = tmp_path_factory.mktemp("reliability")

    def start(name="run", metrics=("saliency_miou",), explainers=(noisy, "rise:masks=30", "gradient"), **options):
        return sb.run(dataset=str(shapes), model=str(resnet), explainers=list(explainers), metrics=list(metrics),
                      limit=6, seed=7, out=folder / name, device="cpu", progress=False,
                      **({"batch_size": 4} | options))  # fmt: skip

    return start


def test_run_stores_reliability_and_shows_median(started):
    run = started()
    assert pq.read_schema(run.folder / "reliability.parquet").equals(records.RELIABILITY)
    rows = [row for row in run.map_values() if row["draws"]]
    ids = run.records()["image_id"][:6]
    assert [row["image_id"] for row in rows] == ids * 2
    of_noisy = [row for row in rows if row["explainer"] == "noisy"]
    assert {row["draws"] for row in of_noisy} == {6}
    for row in of_noisy:
        one = noisy(None, torch.rand(1, 3, 32, 32), None, seeds=[seed_of(7, row["image_id"], "explain")])
        r = np.corrcoef(one.even.numpy().ravel(), one.odd.numpy().ravel())[0, 1]
        assert row["reliability"] == pytest.approx(2 * r / (1 + r), abs=1e-6)
    about = run.summary["reliability"]
    assert len(about) == 2  # gradient draws nothing
    key = of_noisy[0]["explainer_id"]
    assert about[key] == {"median": np.median([row["reliability"] for row in of_noisy]), "n": 6, "draws": 6}
    frame = run.to_pandas().set_index("explainer")["reliability"]
    assert frame["noisy"] == about[key]["median"]
    assert np.isnan(frame["gradient"])
    (line,) = [line for line in run.lines if line.startswith("Reliability")]
    assert f"noisy {about[key]['median']:.2f} (below 0.8; about " in line
    job = SuiteJob("all", "shapes", "small", RunSpec.read(SETTINGS | {"out": run.folder}))
    noted = plan_notes([Step(job, "there", "there", 6, 1, 1, Cost())])[-1]  # finished results in the plan of a suite
    assert noted.startswith("run: reliability of maps ")
    assert f"noisy {about[key]['median']:.2f} (below 0.8" in noted
    assert "gradient" not in noted
    assert f"reliability {about[key]['median']:.2f}" in (page := run.report.read_text())
    assert "few draws" in page
    assert str(sb.load_run(run.folder)) == str(run)


@pytest.mark.slow
def test_reliability_does_not_depend_on_batches_or_growth(started):
    first = (started().folder / "reliability.parquet").read_bytes()
    assert (started("other", batch_size=2).folder / "reliability.parquet").read_bytes() == first
    stopping = {"explainers": ["smoothgrad:samples=30,reliability=0.9", "rise:masks=40,reliability=0.3"]}
    stopped = pq.read_table(started("stopped", **stopping).folder / "reliability.parquet")
    assert stopped.equals(
        pq.read_table(started("stopped too", batch_size=3, **stopping).folder / "reliability.parquet")
    )
    assert {*stopped["draws"].to_pylist()} >= {16}
    one = started("grown", explainers=[noisy])
    assert len(pq.read_table(one.folder / "reliability.parquet")) == 6
    grown = started("grown", metrics=["saliency_miou", "saliency_iosr"])
    assert (grown.folder / "reliability.parquet").read_bytes() == first


def test_part_files_of_old_version_have_no_reliability(started, monkeypatch):
    earlier = [field for field in records.STORED if field.name not in ("reliability", "draws")]
    with monkeypatch.context() as before:
        before.setattr(records, "STORED", pa.schema(earlier))
        before.setattr("saliency_bench.compute.merging._keep_of_maps", lambda *_: None)
        old = started("old", explainers=[noisy])
    assert old.summary["reliability"] == {}
    again = started("old", explainers=[noisy])
    assert (again.complete, again.summary["reliability"]) == (True, {})
    more = started("old", metrics=["saliency_miou", "saliency_iosr"], explainers=[noisy])
    assert [about["n"] for about in more.summary["reliability"].values()] == [6]


def test_map_column_is_stored_for_every_explainer(started, monkeypatch):
    """Maps of an earlier version lack the column, and adding a metric does not change their file."""
    started("more", explainers=[noisy, "gradient"])
    column, known = pa.field("peak", pa.float64()), Explained.values_of
    for name, columns in (("OF_MAP", records.OF_MAP), ("RELIABILITY", records.RELIABILITY), ("STORED", records.STORED)):
        monkeypatch.setattr(records, name, [*columns, column] if name == "OF_MAP" else columns.append(column))
    monkeypatch.setattr(Explained, "values_of",
                        lambda self, index: known(self, index) | {"peak": float(self.maps[index].max())})  # fmt: skip
    run = started("peaks", keep_maps=True, explainers=[noisy, "gradient"])
    rows = run.map_values().to_list()
    maps = {name: run.maps()[name] for name in ("noisy", "gradient")}
    assert len(rows) == 12
    for row in rows:
        assert row["peak"] == pytest.approx(maps[row["explainer"]][row["image_id"]].max(), rel=1e-3)
    assert [row["draws"] for row in rows if row["explainer"] == "gradient"] == [None] * 6
    first = (run.folder / "reliability.parquet").read_bytes()
    grown = started("more", metrics=["saliency_miou", "saliency_iosr"], explainers=[noisy, "gradient"])
    assert (grown.folder / "reliability.parquet").read_bytes() == first


def test_explain_reports_reliability(resnet):
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (32, 32, 3), dtype=np.uint8))
    found = sb.explain(picture, str(resnet), noisy)
    assert 0 < found.reliability < 1
    assert f"reliability {found.reliability:.2f}" in repr(found)
    assert found.caption[-1] == f"reliability {found.reliability:.2f}"
    assert sb.explain(picture, str(resnet), "gradient").reliability is None


def test_run_describes_target_size_and_sign_of_maps(started):
    def signed(classifier, images, target):
        return images.mean(dim=1) - 0.5

    explainers = [signed, "gradcam", "gradient", "edges"]
    run = started("sizes", explainers=explainers, target="predicted")
    by_name = {cell.explainer_text: run.summary["maps"][cell.explainer_id] for cell in run.cells}
    small = by_name["gradcam"]["cells"]
    assert len(small) == 2
    assert all(1 <= side < 32 for side in small)
    assert not by_name["gradcam"]["negative"]
    assert by_name["signed"] == {"cells": None, "negative": True}
    assert by_name["gradient"] == by_name["edges"] == {"cells": None, "negative": False}
    cells = " x ".join(map(str, small))
    line = f"Maps explain the predicted class; upsampled from {cells}: gradcam; with negative values: signed"
    assert line in run.lines
    assert str(sb.load_run(run.folder)) == str(run)
    assert "Maps explain the predicted class; upsampled from" in run.report.read_text()
    assert started("sizes", explainers=explainers, target="predicted").summary["maps"] == run.summary["maps"]
    # none of these explainers draws at random
    assert not (run.folder / "reliability.parquet").exists()
    assert (len(run.map_values()), run.map_values().column_names) == (0, records.RELIABILITY.names)
    assert run.summary["reliability"] == {}
    assert not [line for line in run.lines if line.startswith("Reliability")]
    assert "few draws</span>" not in run.report.read_text()
