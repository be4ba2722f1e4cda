"""Compare reading maps and masks, normalising maps and ordering pixels with simple loops."""

import datasets
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image

from saliency_bench import maps as M
from saliency_bench.utils.masks import read_mask

SMALL = arrays(np.float32, (2, 5, 4), elements=st.sampled_from([-2.0, -1.0, -0.0, 0.0, 1e-5, 1e-4, 0.5, 3.0]))


@pytest.mark.parametrize(
    "kind", [list, np.array, torch.tensor, lambda x: list(map(np.array, x)), lambda x: list(map(torch.tensor, x))]
)
def test_maps_and_masks_are_read_from_lists_arrays_and_tensors(kind):
    values, inside = M.read_pair(kind([[[0, 2], [1, 3]]]), kind([[[0, 255], [0, 255]]]))
    assert (values.dtype, values.tolist()) == (np.float32, [[[0, 2], [1, 3]]])
    assert (inside.dtype, inside.tolist()) == (np.bool_, [[[False, True], [False, True]]])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.uint8, torch.bool])
def test_every_tensor_dtype_is_read(dtype):
    tensor = torch.tensor([[[0, 1], [1, 0]]], dtype=dtype)
    values, inside = M.read_pair(tensor, tensor)
    assert values.tolist() == [[[0, 1], [1, 0]]]
    assert (inside == (values == 1)).all()


def test_single_map_with_gradients_becomes_a_batch():
    assert M.read_maps(torch.ones(2, 2, requires_grad=True)).tolist() == [[[1, 1], [1, 1]]]
    assert M.read_masks(np.ones((3, 4))).shape == (1, 3, 4)


@pytest.mark.parametrize("colours", [(0, 0, 0, 255, 255, 255), (255, 255, 255, 0, 0, 0), (9, 0, 0, 0, 9, 0)])
def test_palette_masks_are_read_as_from_files(colours):
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 2, (6, 9), np.uint8), "P")
    picture.putpalette(colours)
    column = datasets.Dataset.from_dict({"mask": [picture]})["mask"]
    for masks in ([picture, picture], (picture,), picture, column):
        for inside in M.read_masks(masks):
            np.testing.assert_array_equal(inside, read_mask(picture, (6, 9)))


@pytest.mark.parametrize(("maps", "masks", "line"), [
    ([[[0, np.nan]]], [[[0, 1]]], "map 0 contains NaN"),
    ([[[0, 1]], [[0, np.inf]]], [[[0, 1]]] * 2, "map 1 contains NaN or infinite"),
    ([[[0, 1e300]]], [[[0, 1]]], "infinite"), ([[[0, 1]]], [[[0, 1, 2]]], "masks must be binary"),
    ([[[0, 1]]], [[[2, 2]]],
     r"masks must be binary.*a single value that is not the background \(2\).* such as masks == 1"),
    ([[[0, 1]]], [[[np.nan, 0]]], "masks must be binary"),
    ([[[0, 1]]], [[[0, 1, 1]]], r"\(1, 1, 2\) but masks have shape \(1, 1, 3\)"),
    ([[[0, 1]], [[0, 1]]], [[[0, 1]]], r"\(2, 1, 2\) but masks have shape \(1, 1, 2\)"),
    ([[[0, 1]], [[0, 1, 2]]], [[[0, 1]]] * 2, "all arrays must have the same size"),
    ([[["a", "b"]]], [[[0, 1]]], "must be real numbers"), ([[[1j, 0]]], [[[0, 1]]], "must be real numbers"),
    ([[[0, 1]]], [[["a", "b"]]], "masks must be real numbers"),
    (3, [[[0, 1]]], r"shape \(B, H, W\)"), ([[[0, 1]]], None, r"shape \(B, H, W\)"),
    (np.ones((1, 0, 3)), np.ones((1, 0, 3)), r"shape \(B, H, W\)"),
])  # fmt: skip
@pytest.mark.filterwarnings("error")
def test_invalid_maps_and_masks_give_one_line_error(maps, masks, line):
    with pytest.raises(ValueError, match=line) as caught:
        M.read_pair(maps, masks)
    assert "\n" not in str(caught.value)


@given(SMALL)
def test_normalise_matches_literal_loop(maps):
    before = maps.copy()
    for one, normalised in zip(maps, M.normalise(maps), strict=True):
        low, high = one.min(), one.max()
        for value, result in zip(one.flat, normalised.flat, strict=True):
            assert result == (0 if low == high else (value - low) / (high - low))
    assert np.array_equal(before, maps)


@pytest.mark.filterwarnings("error")
def test_normalise_handles_float32_extremes():
    top = np.finfo(np.float32).max
    assert M.normalise(np.array([[[-top, 0, top]]], np.float32)).tolist() == [[[0, 0.5, 1]]]
    assert M.normalise(np.array([[[0, np.float32(1e-45)]]], np.float32)).tolist() == [[[0, 1]]]


def test_is_flat_detects_constant_maps():
    assert M.is_flat(np.array([[[1, 1]], [[0, 1]], [[0, -0.0]]])).tolist() == [True, False, True]


def literal_order(one):
    """Sort pixel indices by (value, position in the permutation)."""
    place = {int(pixel): position for position, pixel in enumerate(M.tie_breaker(*one.shape))}
    return sorted(range(one.size), key=lambda pixel: (-float(one.flat[pixel]), place[pixel]))


@given(SMALL)
def test_descending_matches_literal_sort(maps):
    assert M.descending(maps).tolist() == [literal_order(one) for one in maps]


@settings(max_examples=200)
@given(SMALL, st.tuples(st.integers(0, 20), st.integers(0, 20)))
def test_top_pixels_match_literal_order(maps, counts):
    chosen = M.top_pixels(maps, np.array(counts))
    for one, picked, count in zip(maps, chosen, counts, strict=True):
        assert set(np.flatnonzero(picked)) == set(literal_order(one)[:count])


def test_peaked_maps_keep_their_order():
    """Test exp(30 m). Most pixels of this map would be tied if they were rounded to 1/32768 of the range."""
    exponents = np.random.default_rng(0).permutation(30_000).reshape(1, 200, 150) / 1000
    values = np.exp(exponents).astype(np.float32)
    assert len(np.unique(values)) == values.size
    assert M.descending(values)[0].tolist() == np.argsort(-exponents, axis=None).tolist()
    assert set(np.flatnonzero(M.top_pixels(values, np.array([77])))) == set(M.descending(values)[0, :77].tolist())
    assert M.tied_share(values).tolist() == [0]


@given(SMALL)
def test_tied_share_matches_literal_loop(maps):
    """Count pixels whose value occurs in an earlier pixel."""
    for one, share in zip(maps, M.tied_share(maps), strict=True):
        seen, tied = [], 0
        for value in one.flat:
            tied += float(value) in seen
            seen.append(float(value))
        assert share == tied / one.size


def test_tie_breaker_is_a_fixed_permutation():
    assert sorted(M.tie_breaker(7, 9)) == list(range(63))
    assert M.tie_breaker(2, 3).tolist() == M.tie_breaker.__wrapped__(2, 3).tolist()
    # Stored numbers: another order changes them, and requires a new VERSION of every metric that orders pixels.
    assert M.tie_breaker(4, 4)[:5].tolist() == [12, 9, 3, 5, 14]


@pytest.mark.parametrize("make", [np.asarray, torch.from_numpy, list])
def test_map_that_is_constant_only_in_float32_is_rejected(make):
    values = np.stack([np.arange(16.0).reshape(4, 4), 1e-50 * np.arange(16.0).reshape(4, 4)])
    with pytest.raises(ValueError, match=r"map 1\b.*constant.*float32"):
        M.read_maps(make(values))
    assert M.read_maps(make(values[:1] + 1e3)).dtype == np.float32
    assert M.is_flat(M.read_maps(np.full((1, 4, 4), 1e-50)))[0]
