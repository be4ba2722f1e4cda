"""Tests of the difference hash against a slow second implementation, and of the banded search against all pairs."""

import io
import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import saliency_bench as sb
from saliency_bench.data.near_duplicates import NEAR, across, difference_hash
from saliency_bench.hub_builders import shapes_xai
from saliency_bench.utils.pictures import png


def jpeg(pixels, quality=90):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=quality)
    return file.getvalue()


def scene(seed, size=(96, 144)):
    noise = np.random.default_rng(seed).integers(0, 256, (6, 9, 3)).astype(np.uint8)
    return np.asarray(Image.fromarray(noise).resize(size[::-1], Image.Resampling.BICUBIC))


def test_difference_hash_matches_literal_definition():
    pixels = np.random.default_rng(0).integers(0, 256, (80, 90)).astype(np.uint8)
    means = pixels.reshape(8, 10, 9, 10).mean(axis=(1, 3)).round()
    bits = "".join("1" if means[r, c] > means[r, c + 1] else "0" for r in range(8) for c in range(8))
    assert difference_hash(png(pixels)) == int(bits, 2)


def test_resized_copies_are_near_and_other_images_far():
    hashes = [difference_hash(png(scene(seed))) for seed in range(40)]
    for seed in range(40):
        small = np.asarray(Image.fromarray(scene(seed)).resize((100, 66), Image.Resampling.BILINEAR))
        assert (hashes[seed] ^ difference_hash(jpeg(small))).bit_count() <= NEAR
    distances = [(a ^ b).bit_count() for i, a in enumerate(hashes) for b in hashes[:i]]
    assert min(distances) > NEAR


def slowly(hashes, splits):
    found = []
    for i, (one, split) in enumerate(zip(hashes, splits, strict=True)):
        near = [((one ^ hashes[j]).bit_count(), j) for j in range(len(hashes)) if splits[j] < split]
        if near and min(near)[0] <= NEAR:
            found.append((i, min(near)[1], min(near)[0]))
    return found


@given(st.lists(st.tuples(st.sampled_from([0, 2**64 - 1, 0x0F0F << 20]), st.sets(st.integers(0, 63), max_size=3),
                          st.integers(0, 2)), max_size=30))  # fmt: skip
def test_banded_search_matches_comparing_all_pairs(drawn):
    hashes = [base ^ sum(1 << bit for bit in flips) for base, flips, _ in drawn]
    splits = [split for _, _, split in drawn]
    assert across(np.array(hashes, np.uint64), np.array(splits, np.int64)) == slowly(hashes, splits)


def test_search_handles_many_equal_hashes(monkeypatch):
    monkeypatch.setattr("saliency_bench.data.near_duplicates.AT_ONCE", 64)
    hashes = np.r_[np.zeros(50_000, np.uint64), np.arange(300, dtype=np.uint64)]
    splits = np.r_[np.arange(50_000) % 3, np.full(300, 2)]
    found = across(hashes, splits)
    assert found[0] == (1, 0, 0)
    assert len(found) == np.count_nonzero(splits[:50_000]) + sum(int(n).bit_count() <= NEAR for n in range(300))


def test_build_reports_near_duplicates_across_splits(monkeypatch, tmp_path):
    def samples(source, log):
        for n in range(40):
            yield {"image_id": f"i{n}", "label": "disc", "image": scene(n % 20)}

    monkeypatch.setattr(shapes_xai, "samples", samples)
    out = sb.build("shapes-xai", tmp_path / "out", progress=False)
    report = json.loads((out / "build_report.json").read_text())
    place = {split: set(sb.load_dataset(out, split=split)["image_id"]) for split in report["splits"]}
    assert report["near_duplicates"]
    for entry in report["near_duplicates"]:
        assert int(entry["id"][1:]) % 20 == int(entry["like"][1:]) % 20
        assert entry["id"] in place[entry["split"]]
        assert entry["like"] in place[entry["in"]]
        assert entry["bits"] == 0
    twins = [n for n in range(20) if sum({f"i{n}", f"i{n + 20}"} <= ids for ids in place.values()) == 0]
    assert len(report["near_duplicates"]) == len(twins)
    assert f"{len(twins)} images are near-duplicates of an image in another split" in (out / "README.md").read_text()
