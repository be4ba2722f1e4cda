"""Tests of the check of metrics: its interventions, evidence and counts, and the sentences of its page."""

from argparse import ArgumentParser
from pathlib import Path

import numpy as np
import pytest
import torch

from saliency_bench.errors import UserError
from saliency_bench.push_scripts import suite
from saliency_bench.recipes.metrics_check import check
from saliency_bench.recipes.metrics_check.known_networks import KINDS, network
from saliency_bench.recipes.metrics_check.page import page

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("kind", KINDS)
def test_only_changed_evidence_flips_the_prediction(kind):
    flips = {count.damage: count.rate for count in check.interventions(kind, 16)}
    assert flips == {"evidence replaced": 1, "evidence erased": 1, "all else changed": 0}


@pytest.mark.parametrize("kind", KINDS)
def test_evidence_matches_hand_computation(kind):
    """Compute by hand what exceeds the thresholds: red above 0.1, and columns of +-0.2 above 0.125.

    A fifth of the evidence for a class counts against the other classes.
    """
    picture = torch.full((1, 3, 32, 32), 0.5)
    if KINDS[kind].reads == "stripes":  # the response to columns is 0.2, and four pixels lie inside all windows
        picture[..., 18:31, 2:15] += torch.tensor([0.2, -0.2] * 6 + [0.2])
        value, place = (0.2 - 0.125) * 6 / (0.07 * 35), (slice(22, 27), slice(6, 11))
    else:
        picture[0, :, 20, 4] = torch.tensor([0.7, 0.3, 0.5])
        value, place = (0.7 - 0.3 - 0.1) * 6 / (0.2 * (25 if kind == "grid" else 49)), (slice(20, 21), slice(4, 5))
    evidence = network(kind).evidence(picture)[0]
    kind_class = 2 if kind == "position" else 0  # lower left; red and columns are the first class
    assert evidence[(kind_class, *place)].numpy() == pytest.approx(value, rel=1e-4)
    others = [number for number in range(4) if number != kind_class]
    assert evidence[(others, *place)].numpy() == pytest.approx(-0.2 * value, rel=1e-4)
    assert float(evidence.sum()) == pytest.approx(float(network(kind)(picture).sum()), rel=1e-5)
    far = evidence.clone()
    far[:, 14:, :19] = 0  # a margin of four pixels
    assert float(far.abs().max()) == 0


def right_maps_by_loops(rows):
    """Compute the correct maps of the colour network for class `label`, pixel by pixel."""
    maps = np.zeros((len(rows), 32, 32))
    for number, row in enumerate(rows):
        pixels = np.asarray(row["image"], dtype=np.float64) / 255
        for y, x in np.ndindex(32, 32):
            r, g, b = pixels[y, x]
            answers = [max(answer - 0.1, 0) * 6 / 9.8 for answer in (r - g, g - r, (r + g) / 2 - b, b - (r + g) / 2)]
            maps[number, y, x] = 1.2 * answers[row["label"]] - 0.2 * sum(answers)
    return maps


def insertion_of_two_steps(kind, row, values):
    """Integrate p of the label over no pixels, the top half and all pixels by the trapezoid rule."""
    order = np.argsort(-values.ravel(), kind="stable")
    kept = np.zeros(1024, bool)
    kept[order[:512]] = True
    pixels = torch.from_numpy(np.asarray(row["image"], dtype=np.float32) / 255).permute(2, 0, 1)
    shown = torch.stack([0 * pixels, pixels * torch.from_numpy(kept.reshape(32, 32)), pixels])
    p = network(kind)(shown).softmax(1)[:, row["label"]].numpy()
    return (p[0] + 2 * p[1] + p[2]) / 4


def test_counts_match_literal_computation(tmp_path, monkeypatch):
    metrics = ["saliency_energy", "saliency_pointing_game", "saliency_insertion:steps=2"]
    monkeypatch.setattr(check, "checked_metrics", lambda kind: metrics)
    counts = check.check_metrics(tmp_path, 6, kinds=["colour"], progress=False)
    by_place = {(count.metric, count.damage): count for count in counts}
    rows = list(check.dataset_of("colour", 6))
    right, masks = right_maps_by_loops(rows), [np.asarray(row["mask"]) > 0 for row in rows]
    shifted = np.stack([np.concatenate([values[:, -4:], values[:, :-4]], axis=1) for values in right])
    scores = {}
    for name, maps in (("right", right), ("shifted", shifted), ("flipped", -right)):
        positive = np.maximum(maps, 0)
        scores["saliency_energy", name] = [
            values[mask].sum() / values.sum() if values.sum() else 0
            for values, mask in zip(positive, masks, strict=True)
        ]
        scores["saliency_pointing_game", name] = [
            mask[values == values.max()].mean() for values, mask in zip(maps, masks, strict=True)
        ]
    for metric in metrics[:2]:
        for damage in ("shifted", "sign flipped"):
            pairs = zip(scores[metric, "right"], scores[metric, damage.split()[-1]], strict=True)
            signs = [0 if abs(a - b) < 1e-6 else 1 if a > b else -1 for a, b in pairs]
            count = by_place[metric, damage]
            assert (count.ahead, count.ties, count.behind) == tuple(signs.count(sign) for sign in (1, 0, -1)), damage
    # A flipped map exceeds the middle of its range nearly everywhere, so its region contains the object.
    assert min((values > (values.min() + values.max()) / 2).mean() for values in -right) > 0.9
    # The top half of the pixels contains all evidence in the order of the correct map, and none in the reversed order.
    ahead = sum(insertion_of_two_steps("colour", row, a) > insertion_of_two_steps("colour", row, -a) + 1e-6
                for row, a in zip(rows, right, strict=True))  # fmt: skip
    assert by_place["saliency_insertion:steps=2", "sign flipped"].ahead == ahead == 6
    assert check.read_counts(tmp_path / "metrics_check.csv") == counts


def test_options_of_other_suites_are_rejected():
    arguments = ["--plan", "--compare", "--select", "metric=saliency_energy"]
    for given in (arguments[:1], arguments[1:2], arguments[2:]):
        with pytest.raises(UserError, match=given[0]):
            suite.main(parsed(["metrics-check", *given]))


def parsed(arguments):
    parser = ArgumentParser()
    suite.arguments(parser)
    return parser.parse_args(arguments)


def test_ties_count_half_and_missing_scores_are_left_out():
    scores = np.array([1, 0.5, 0.2, np.nan, 3]), np.array([0.5, 0.5 + 1e-9, 0.4, 1, np.nan])
    count = check.Count("colour", "saliency_energy", "shifted", *check.compared(*scores))
    assert (count.ahead, count.ties, count.behind, count.left_out, count.n, count.rate) == (1, 1, 1, 2, 3, 0.5)
    # p of the sign tests by hand, times the number of remaining counts (Holm): 2 / 2^9 x 3, 2 (1 + 7) / 2^7 x 2, 1
    three = [check.Count("colour", "saliency_energy", "shifted", *numbers) for numbers in ((6, 0, 1), (0, 55, 9))]
    assert [count.verdict for count in check.judged([count, *three])] == [0, 0, -1]
    for number, verdict in ((12, -1), (13, 0)):  # 12 x 2 / 2^9 < 0.05 < 13 x 2 / 2^9
        clear = check.Count("colour", "saliency_energy", "shifted", 64, 0, 0)
        verdicts = [count.verdict for count in check.judged([clear, *three[1:] * number])]
        assert verdicts == [1] + [verdict] * number


def test_control_has_colour_images_and_evidence_masks():
    for row, other in zip(check.dataset_of("control", 3), check.dataset_of("colour", 3), strict=True):
        assert row["image"] == other["image"]
        used = right_maps_by_loops([row])[0] > 0
        assert (np.asarray(row["mask"]) > 0).tolist() == used.tolist()


@pytest.mark.parametrize(("ahead", "column"), [(32, 2), (16, None), (0, 4)])
def test_page_sentences_follow_from_counts(ahead, column):
    counts = [check.Count("context", "saliency_energy", "whole object", ahead, 0, 32 - ahead)]
    text = page([check.Count("context", "intervention", change, 32, 0, 0) for change in check.FLIPS] + counts)
    row = next(line for line in text.splitlines() if line.startswith("| Does the map show what the network uses"))
    assert [number for number, cell in enumerate(row.split("|")) if "energy" in cell] == ([column] if column else [])
    assert ("1 of 1 alignment metrics prefer the wrong map: energy" in text) == (ahead == 0)
    assert ("with every network on which they were tested: energy" in text) == (ahead == 32)


def test_published_page_matches_published_counts():
    text = (ROOT / "docs" / "metrics_check.md").read_text(encoding="utf-8")
    assert text == page(check.read_counts(ROOT / "benchmarks" / "metrics_check.csv"))
