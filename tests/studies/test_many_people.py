"""Tests of many people who draw, rate or guess at once while the server is killed and connections are closed."""

import json
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from pages import Command, dataset

from saliency_bench.studies.answer_store import Store
from saliency_bench.studies.run_images import pair_of
from saliency_bench.studies.runs import runs_of

from .conftest import EXPLAINERS

PEOPLE, EACH = 12, 5  # number of people, and images for each person who rates or guesses
pytestmark = pytest.mark.thorough


def join(server, number):
    return server.insist("api/join", body={"request": f"person {number:03d} of a simulation"})["key"]


def answer(server, key, sent, random):
    """Send an answer, sometimes twice."""
    for _ in range(1 + int(random.integers(2))):
        reply = server.insist("api/answer", key, sent)
    return reply


def annotate(server, number):
    """Draw on all images and return {unit: mask}."""
    random, key, drawn = np.random.default_rng(number), join(server, number), {}
    while tasks := (state := server.insist("api/state", key))["tasks"]:
        unit = tasks[0]["unit"]
        assert unit not in drawn, "asked twice"
        drawn[unit] = random.random((60, 80)) > 0.5
        body = {"unit": unit, "kind": "mask", "runs": runs_of(drawn[unit]), "seconds": 1}
        answer(server, key, body | {"request": f"{number} {unit} of a simulation"}, random)
    return state["person"], drawn


def rate(server, number):
    """Rate all maps and return {position: ratings}."""
    random, key, sent = np.random.default_rng(number), join(server, number), {}
    while maps := (state := server.insist("api/state", key))["maps"]:
        for one in maps:
            assert one["place"] not in sent, "asked twice"
            server.insist(f"api/map?place={one['place']}", key)
            sent[one["place"]] = {name: int(random.integers(1, 6)) for name in state["questions"]}
            body = {"place": one["place"], "ratings": sent[one["place"]]}
            answer(server, key, body | {"request": f"{number} {one['place']} of a simulation"}, random)
    return state["person"], sent


def guess(server, number):
    """Choose all classes at random and return {(position, step): label}."""
    random, key, sent = np.random.default_rng(number), join(server, number), {}
    while (state := server.insist("api/state", key))["place"] is not None:
        at = state["place"], state["step"]
        assert at not in sent, "asked twice"
        server.insist(f"api/picture?place={at[0]}&step={at[1]}", key)
        left = [None, *(label for label in state["choices"] if label not in state["tried"])]
        sent[at] = left[int(random.integers(len(left)))]
        answer(server, key, {"place": at[0], "step": at[1], "choice": sent[at]}, random)
    return state["person"], sent


def disconnect(place):
    """Close all connections to a PostgreSQL database, as a restart would; a SQLite file has no connections."""
    if str(place).startswith("postgresql://"):
        import psycopg

        with psycopg.connect(place, autocommit=True) as own:
            others = "datname = current_database() AND pid <> pg_backend_pid()"
            own.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}")


def crowd(place, words, act, expected, people=PEOPLE):
    """Return the answers that people sent, while the server is killed twice and its connections are closed once."""
    with Command(*words) as server, ThreadPoolExecutor(people) as pool:
        working = [pool.submit(act, server, number) for number in range(people)]
        for share, stop in ((1 / 5, "kill"), (2 / 5, "disconnect"), (3 / 5, "kill")):
            while stored(place) < share * expected and not all(one.done() for one in working):
                time.sleep(0.05)
            assert not all(one.done() for one in working), "everybody has finished before the disturbance"
            if stop == "disconnect":
                disconnect(place)
            else:
                server.kill()
                server.start()
        return dict(one.result() for one in working)


def stored(place):
    store = Store(place)
    number = len(store.find().answers(last=False, masks=False))
    store.close()
    return number


@pytest.fixture
def study(place):
    opened = []

    def find():
        opened.append(Store(place))
        return opened[0].find()

    yield find
    opened[0].close()


def test_masks_of_fifty_people_are_stored_once(place, study, tmp_path):
    dataset(6).save_to_disk(tmp_path / "noise")
    words = ["annotate", "--dataset", tmp_path / "noise", "--name", "study", "--store", place, "--annotators", 50]
    sent = crowd(place, words, annotate, 50 * 6, 50)
    found = study().answers(last=False)
    assert {one.revision for one in found} == {1}
    assert len(found) == len({(one.person, one.unit) for one in found}) == 50 * 6
    for one in found:
        np.testing.assert_array_equal(one.pixels, sent[one.person][one.unit])


@pytest.mark.sample(0, 1)
def test_ratings_are_stored_once_and_every_map_gets_its_raters(place, study, done):
    """Test 12 people who each get 5 images and an attention check. Of the 12 images, 10 are rated by 6 people each."""
    words = ["assess", "serve", done, "--store", place, "--raters", PEOPLE * EACH // 10, "--per-person", EACH]
    maps = (EACH + 1) * len(EXPLAINERS)
    sent = crowd(place, [*words, "--images", 10], rate, PEOPLE * maps)
    study = study()
    found = study.answers(last=False)
    assert len(found) == len({(one.person, one.unit) for one in found}) == PEOPLE * maps
    assert {one.revision for one in found} == {1}
    places = {(one.person, one.unit): one.position for one in study.assignments()}
    assert {(one.person, places[one.person, one.unit]): one.payload["ratings"] for one in found} == {
        (person, place): ratings for person, own in sent.items() for place, ratings in own.items()
    }
    judged = [pair_of(one.unit) for one in found if pair_of(one.unit)[0] in study.configuration["images"]]
    assert Counter(judged) == {
        (image, name): PEOPLE * EACH // 10 for image in study.configuration["images"] for name in EXPLAINERS
    }


@pytest.mark.sample(0, 1)
def test_guesses_are_stored_once_and_every_map_gets_judgements(place, study, done):
    """Test 12 people who judge 10 images by 3 explainers in sheets of 5. Each map gets two judgements."""
    words = ["peekaboom", "serve", done, "--store", place, "--judgements", 2, "--pairs", EACH]
    sent = crowd(place, words, guess, PEOPLE * EACH * 3)
    study = study()
    found = study.answers(last=False)
    places = {(one.person, one.unit): one.position for one in study.assignments()}
    steps = [(one.person, places[one.person, one.unit], one.payload["step"]) for one in found]
    assert len(steps) == len(set(steps))
    assert {at: one.payload["choice"] for at, one in zip(steps, found, strict=True)} == {
        (person, *at): choice for person, own in sent.items() for at, choice in own.items()
    }
    assert [one.revision for one in found] == [one.payload["step"] + 1 for one in found]
    people = Counter(json.loads(unit)[1] is None for _, unit in places)
    assert people == {True: PEOPLE * 2, False: PEOPLE * EACH}
    judged = Counter(pair_of(unit) for _, unit in {(one.person, one.unit) for one in found})
    assert {pair: count for pair, count in judged.items() if pair[1] is not None} == {
        (image, name): 2 for image in study.configuration["images"] for name in EXPLAINERS
    }
