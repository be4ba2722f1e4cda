"""Tests of the synthetic dataset: equal pixels everywhere, exact masks, and no advantage for a spot in the centre."""

from hashlib import sha256

import numpy as np
import pytest
from built_samples import built_by
from refusals import refused

from saliency_bench.hub_builders import shapes_xai

# sha256 over the bytes of image, mask and image_without_object of images 0 to 63 (each object on each scene once) at
# 64 pixels, seed 0, in this order; computed once with this code, version 1 of the builder.
GOLDEN = "5e6db4c1a04a890060dbdef761ced3e79535f6055def7e3f5885d8c9bc83af12"


@pytest.fixture(scope="module")
def masks():
    """Return 2,000 masks of 48 pixels as rows."""
    return np.array([shapes_xai.drawn(index, 48)["mask"] for index in range(2000)])


def test_pixels_match_the_golden_hash():
    digest = sha256()
    for index in range(64):
        drawing = shapes_xai.drawn(index)
        for part in ("image", "mask", "image_without_object"):
            digest.update(drawing[part].tobytes())
    assert digest.hexdigest() == GOLDEN, "pixels changed: raise VERSION and renew this hash"


@pytest.mark.parametrize("size", [32, 65])
def test_image_differs_from_scene_only_inside_the_mask(size):
    for index in range(16):
        drawing = shapes_xai.drawn(index, size, seed=1)
        assert drawing["image"].shape == drawing["image_without_object"].shape == (size, size, 3)
        assert drawing["image"].dtype == np.uint8
        differs = (drawing["image"] != drawing["image_without_object"]).any(axis=2)
        assert not (differs & ~drawing["mask"]).any()
        assert differs.sum() > 0.9 * drawing["mask"].sum()


@pytest.mark.slow
def test_objects_fill_2_to_20_percent_in_every_class(masks):
    shares = masks.mean(axis=(1, 2))
    assert 0.02 < shares.min() < shares.max() < 0.20
    means = [shares[kind :: len(shapes_xai.OBJECTS)].mean() for kind in range(len(shapes_xai.OBJECTS))]
    assert max(means) / min(means) < 1.15


@pytest.mark.slow
def test_objects_cover_the_centre_half_as_often(masks):
    coverage, share = masks.mean(axis=0).reshape(6, 8, 6, 8).mean(axis=(1, 3)), masks.mean()
    assert 0.5 * share < coverage.min() < coverage.max() < 1.6 * share
    assert abs(masks[:, 24, 24].mean() - share / 2) < 4 * (share / 2 / len(masks)) ** 0.5


@pytest.mark.parametrize("kind", range(0, 8, 3))
def test_visible_pixels_and_centre_cover_match_brute_force(kind):
    """Count visible pixels and cover of the centre by pasting the silhouette at every position."""
    alpha, _ = shapes_xai.painted_object(list(shapes_xai.OBJECTS)[kind], 32, ((0, 0, 0),) * 2, shapes_xai.Dice(kind))
    shape = alpha > 0
    tops, lefts = np.arange(1 - shape.shape[0], 32), np.arange(1 - shape.shape[1], 32)
    seen, covers = shapes_xai.visible(shape, 32, tops, lefts), shapes_xai.covering(shape, 32, tops, lefts)
    for row, top in enumerate(tops):
        for column, left in enumerate(lefts):
            canvas = np.zeros((96, 96), bool)
            canvas[32 + top : 32 + top + shape.shape[0], 32 + left : 32 + left + shape.shape[1]] = shape
            assert seen[row, column] == canvas[32:64, 32:64].sum()
            assert covers[row, column] == canvas[48, 48]


@pytest.mark.slow
def test_centred_gaussian_is_at_most_chance(masks):
    """Test that a centred Gaussian is at chance by AUC, by mass, and by IoU at equal area."""
    y, x = np.mgrid[:48, :48] - 24
    order = np.argsort(x * x + y * y, axis=None, kind="stable")
    rows = masks.reshape(len(masks), -1)[:, order]
    area, places = rows.sum(1), np.arange(rows.shape[1])
    nearer = (rows * places).sum(1) / area - (area - 1) / 2  # mean number of background pixels nearer to the centre
    assert np.mean(1 - nearer / (rows.shape[1] - area)) <= 0.5
    for width in (3, 6, 12, 24):
        weight = np.exp(-(x * x + y * y) / (2 * width**2)).ravel()[order]
        assert np.mean(rows @ weight / weight.sum()) <= rows.mean()
    overlap = np.array([row[:count].sum() for row, count in zip(rows, area, strict=True)])
    share = area / rows.shape[1]
    assert np.mean(overlap / (2 * area - overlap)) <= np.mean(share / (2 - share))


def test_classes_and_scenes_are_balanced_and_crossed():
    pairs = [(s["label"], s["scene"]) for s in built_by(shapes_xai, None, size=32, count=128)[0].values()]
    assert len(pairs) == 128
    assert all(pairs.count(pair) == 2 for pair in set(pairs))
    assert len(set(pairs)) == 64


def test_image_depends_on_seed_but_not_on_count():
    few, many = (built_by(shapes_xai, None, size=32, count=count)[0] for count in (3, 9))
    assert list(few) == ["shapes-000000", "shapes-000001", "shapes-000002"]
    assert all((few[name]["image"] == many[name]["image"]).all() for name in few)
    assert (shapes_xai.drawn(0, 32, seed=0)["image"] != shapes_xai.drawn(0, 32, seed=1)["image"]).any()


@pytest.mark.parametrize("options", [{"size": 31}, {"size": 10_000}, {"count": 0}])
def test_invalid_options_are_rejected(options):
    refused(next(iter(options)), built_by, shapes_xai, None, **options)
