"""Test that random draws can be repeated outside a run from the image id: maps and scores are bit-identical."""

import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from evaluate.loading import evaluation_module_factory, import_main_class, init_dynamic_modules
from refusals import refused

import saliency_bench as sb
from saliency_bench import registry
from saliency_bench.compute.scoring.samples import score_samples
from saliency_bench.utils.seeds import seed_of

SEED, COUNT = 5, 3
EXPLAINERS = ["smoothgrad:samples=3", "gradient_shap:samples=3", "rise:masks=8", "random"]
METRICS = ["saliency_max_sensitivity:draws=2", "saliency_ccs:reference=noise"]
NOISE = "saliency_deletion:reference=noise,steps=4"


class Keeping:
    def __init__(self, text):
        self.__name__ = text.partition(":")[0] + "_kept"
        self.explainer, self.maps = sb.load_explainer(text), {}

    def __call__(self, classifier, images, target, *, seeds, seed=None):
        maps = self.explainer.seeded(seed)(classifier, images, target, seeds=seeds)
        if images.ndim and len(maps) == len(seeds):
            self.maps |= {own: values.numpy() for own, values in zip(seeds, maps, strict=True) if own not in self.maps}
        return maps


@pytest.mark.sample(2)
@pytest.mark.parametrize("text", EXPLAINERS)
def test_explain_shows_the_very_map_of_a_run(text, shapes, resnet, tmp_path):
    kept = Keeping(text)
    sb.run(
        dataset=str(shapes), model=str(resnet), explainers=[kept], metrics=["saliency_miou"], out=tmp_path / "run",
        target="predicted", seed=SEED, limit=COUNT, batch_size=1, progress=False, device="cpu",
    )  # fmt: skip
    chosen = pq.read_table(tmp_path / "run" / "predictions.parquet")["image_id"].to_pylist()
    picture = {row["image_id"]: row["image"] for row in sb.load_dataset(shapes, split="test")}
    assert len(chosen) == COUNT
    for image_id in chosen:
        shown = sb.explain(picture[image_id], str(resnet), text, image_id=image_id, seed=SEED, device="cpu").map
        np.testing.assert_array_equal(shown, kept.maps[seed_of(SEED, image_id, "explain")])
        if not text.startswith("rise"):  # RISE uses the same masks for all images
            assert not np.array_equal(shown, sb.explain(picture[image_id], str(resnet), text, device="cpu").map)


@pytest.fixture(scope="module")
def done(shapes, resnet, tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "run"
    sb.run(
        dataset=str(shapes), model=str(resnet), explainers=EXPLAINERS, out=out,
        metrics=[*METRICS, NOISE, "saliency_cauc"], target="predicted", seed=SEED, limit=8, batch_size=4,
        progress=False, device="cpu",
    )  # fmt: skip
    ids = pq.read_table(out / "predictions.parquet")["image_id"].to_pylist()
    by_id = {row["image_id"]: row for row in sb.load_dataset(shapes, split="test")}
    records = [row for row in pq.read_table(out / "records.parquet").to_pylist() if row["part"] is None]
    return records, ids, [by_id[image_id] for image_id in ids]


def of_run(records, explainer, metric):
    name = {"explainer": explainer.partition(":")[0], "metric": metric.partition(":")[0]}
    chosen = [row["value"] for row in records if row.items() >= name.items()]
    return np.array([np.nan if value is None else value for value in chosen])


@pytest.mark.sample(2)
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("explainer", EXPLAINERS)
def test_score_samples_gives_the_scores_of_a_run(explainer, metric, done, resnet):
    records, ids, rows = done
    classifier = sb.load_classifier(resnet, device="cpu")
    images = classifier.prepare(rows).images
    given = {"image_ids": ids, "seed": SEED, "batch_size": 4}
    scores = score_samples(metric, images, classifier, explainer, **given)
    np.testing.assert_array_equal(scores, of_run(records, explainer, metric))
    assert not np.array_equal(scores, score_samples(metric, images, classifier, explainer, batch_size=4))


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluate")
    modules = init_dynamic_modules("same_draws_test", str(folder / "modules"))

    def loaded(name):
        found = evaluation_module_factory(str(registry.files("metrics")[name].parent), dynamic_modules_path=modules)
        return import_main_class(found.module_path)(cache_dir=str(folder / "cache"), hash=found.hash)

    yield loaded
    sys.path.remove(str(folder / "modules"))


def test_evaluate_gives_the_scores_of_a_run(done, resnet, load):
    records, ids, rows = done
    classifier = sb.load_classifier(resnet, device="cpu")
    images, settings = classifier.prepare(rows).images, {"image_ids": ids, "seed": SEED, "batch_size": 4}
    with torch.no_grad():
        classes = classifier(images).argmax(dim=1)
    explain, target = sb.load_explainer("random"), sb.targets.one_hot(classes, 8)
    maps = explain(classifier, images, target, seeds=[seed_of(SEED, image_id, "explain") for image_id in ids])
    given = {"images": images, "classifier": classifier, "per_sample": True} | settings
    found = load("saliency_deletion").compute(predictions=maps, references=classes, reference="noise", steps=4, **given)
    np.testing.assert_array_equal(found["scores"], of_run(records, "random", NOISE))
    found = load("saliency_cauc").compute(predictions=maps, references=classes, **given)
    np.testing.assert_array_equal(found["scores"], of_run(records, "random", "saliency_cauc"))
    assert found["saliency_cauc"] == np.mean(of_run(records, "random", "saliency_cauc"))
    found = load("saliency_max_sensitivity").compute(explainer="random", draws=2, **given)
    np.testing.assert_array_equal(found["scores"], of_run(records, "random", METRICS[0]))


@pytest.mark.parametrize(("given", "words"), [
    ({"seeds": [1, 2], "image_ids": ["a", "b"]}, "seeds or image_ids"),
    ({"seeds": [1]}, "one seed for each of the 2 images"),
    ({"image_ids": ["a"]}, "one image id for each of the 2 images"),
    ({"image_ids": "ab"}, "one image id for each of the 2 images"),
])  # fmt: skip
def test_as_many_seeds_or_ids_as_images(given, words, resnet):
    images = torch.rand(2, 3, 32, 32)
    refused(words, score_samples, "saliency_max_sensitivity", images, resnet, "gradient", **given)
