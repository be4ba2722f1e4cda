"""Fifty people at once, while the server is killed twice: every mask is stored, and each of them once."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from pages import Served, dataset

from saliency_bench.studies.answer_store import Store
from saliency_bench.studies.runs import runs_of

PEOPLE, IMAGES = 50, 6


def annotate(served, number):
    """Draw on everything; {unit: mask}."""
    random = np.random.default_rng(number)
    key = served.insist("api/join", body={"request": f"person {number:03d} of a simulation"})["key"]
    drawn = {}
    while tasks := served.insist("api/state", key)["tasks"]:
        unit = tasks[0]["unit"]
        assert unit not in drawn, "asked twice"
        drawn[unit] = random.random((60, 80)) > 0.5
        sent = {"unit": unit, "kind": "mask", "runs": runs_of(drawn[unit]), "seconds": 1}
        sent["request"] = f"{number} {unit} of a simulation"
        for _ in range(1 + int(random.integers(2))):  # some click twice
            served.insist("api/answer", key, sent)
    return drawn


@pytest.mark.thorough
def test_fifty_people_and_two_kills_lose_and_double_nothing(place, tmp_path):
    dataset(IMAGES).save_to_disk(tmp_path / "noise")
    served = Served(tmp_path / "noise", place, "--annotators", PEOPLE)
    store = Store(place)
    study = store.find()
    try:
        with ThreadPoolExecutor(PEOPLE) as pool:
            working = [pool.submit(annotate, served, number) for number in range(PEOPLE)]
            for wanted in (PEOPLE * IMAGES // 4, PEOPLE * IMAGES // 2):
                while len(study.answers(masks=False)) < wanted and not all(one.done() for one in working):
                    time.sleep(0.02)
                served.kill()
                served.start()
            drawn = [one.result() for one in working]
    finally:
        served.kill()
    assert all(len(own) == IMAGES for own in drawn)
    wanted = sorted(mask.tobytes() for own in drawn for mask in own.values())
    stored = study.answers(last=False)
    store.close()
    assert {one.revision for one in stored} == {1}
    assert sorted(one.pixels.tobytes() for one in stored) == wanted
    assert len({(one.person, one.unit) for one in stored}) == PEOPLE * IMAGES
