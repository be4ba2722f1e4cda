"""Tests of scores of explainers by all compatible metrics on a real network and photographs, against golden values.

`python tests/real/test_golden.py` rewrites `golden.json`; if a score changes, its VERSION must increase.
"""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

import saliency_bench as sb

GOLDEN = Path(__file__).with_name("golden.json")
CLOSE = 1e-4
EXPLAINERS = ["centre", "edges", "gradcam", "gradcam_plus_plus", "gradient", "gradient_shap:samples=2",
              "guided_backprop", "iia:steps=2", "input_x_gradient", "integrated_gradients:steps=4", "lime:samples=20",
              "occlusion:window=112,stride=112", "random", "rise:masks=8", "smoothgrad:samples=2"]  # fmt: skip
OF_MAPS = ["saliency_average_precision", "saliency_energy", "saliency_insertion:steps=4", "saliency_miou"]
# Computed for one explainer: metrics that need the network, other maps, labels or groups of classes.
OF_GRAD_CAM = ["saliency_cauc:step=1000", "saliency_ccs", "saliency_cdrop", "saliency_cds",
               "saliency_class_sensitivity", "saliency_deletion:steps=4", "saliency_iosr", "saliency_kae",
               "saliency_max_sensitivity:draws=1",
               "saliency_own_region", "saliency_pointing_game", "saliency_precision", "saliency_randomisation:layers=1",
               "saliency_recall", "saliency_roae", "saliency_road", "saliency_single_deletion"]  # fmt: skip


def scores_of(model: Path, photos: Path, out: Path, limit: int | None = None) -> dict[str, dict[str, float | None]]:
    """Return {"explainer metric": {photograph: score}} of the first `limit` photographs."""
    scores: dict[str, dict[str, float | None]] = {}
    for name, explainers, metrics in (("maps", EXPLAINERS, OF_MAPS), ("gradcam", ["gradcam"], OF_GRAD_CAM)):
        result = sb.run(dataset=str(photos), model=str(model), explainers=explainers, metrics=metrics, out=out / name,
                        target="predicted", label_map="photos_to_imagenet", limit=limit, device="cpu",
                        progress=False)  # fmt: skip
        for row in result.records():
            if row.get("part") is None:
                scores.setdefault(f"{row['explainer']} {row['metric']}", {})[row["image_id"]] = row["value"]
    return scores


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1, pytest.param(None, marks=pytest.mark.thorough)])
def test_scores_match_golden_file(limit, lite0_folder, photos_folder, tmp_path):
    golden, scores = json.loads(GOLDEN.read_text()), scores_of(lite0_folder, photos_folder, tmp_path, limit)
    assert scores.keys() == golden.keys()
    for cell, expected in golden.items():
        assert len(scores[cell]) == (limit or len(expected)), cell
        for photograph, got in scores[cell].items():
            value = expected[photograph]
            assert (got is None) == (value is None), (cell, photograph)
            np.testing.assert_allclose(got or 0, value or 0, rtol=CLOSE, atol=CLOSE, err_msg=f"{cell} {photograph}")


def test_golden_file_covers_every_suitable_explainer():
    cells = [cell.split(" ") for cell in json.loads(GOLDEN.read_text())]
    attention = {"attention", "gae", "gradcam_vit", "gradient_rollout", "rollout", "tattr"}
    # A network with ReLU6 and negative values between its convolutions; 1,280 images for each photograph.
    assert {explainer for explainer, _ in cells} == set(sb.list_explainers()) - attention - {"cebp", "scorecam"}


if __name__ == "__main__":
    from saliency_bench.compute.classifiers.efficientnet_lite import write_efficientnet_lite

    with TemporaryDirectory() as folder:
        model = write_efficientnet_lite(Path(folder) / "lite0")
        photos = sb.build("photos-xai", Path(folder) / "photos", progress=False)
        written = scores_of(model, photos, Path(folder) / "runs")
    GOLDEN.write_text(json.dumps(written, indent=1) + "\n")
    sys.exit(0)
