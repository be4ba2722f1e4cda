"""Tests of the store: rows are added once and never changed, even with simultaneous writers and after kills."""

import os
import signal
import socket
import sqlite3
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from hashlib import sha256

import numpy as np
import pytest
from refusals import refused
from sqlalchemy import delete, insert, select, update
from sqlalchemy.exc import DBAPIError, OperationalError

from saliency_bench.studies import database, study_tables
from saliency_bench.studies import study as study_module
from saliency_bench.studies.answer_store import Store
from saliency_bench.studies.database import hours_ago, lately
from saliency_bench.studies.events import add_event
from saliency_bench.studies.owner_actions import excluded
from saliency_bench.studies.places import Places

UNITS = [f"image-{index}" for index in range(12)]
ASKED = "a-request-of-16-or-more-{}"


def made(store, **settings):
    return store.study("annotate", "birds", dataset="abc", configuration={"annotators": 2}, seed=3, **settings)


@pytest.fixture
def study(store):
    return made(store)


def drawn(seed, shape=(7, 9)):
    return np.random.default_rng(seed).random(shape) > 0.5


def test_answer_is_read_back_unchanged(study):
    mask = drawn(0, (13, 5))
    stored = study.record(
        "p-a", "ünit/1", "r1", {"kind": "mask", "words": "<b>é\u2603"}, mask=mask, image_sha256="0f", seconds=2.5
    )
    (found,) = study.answers()
    assert found == stored
    assert (found.unit, found.person, found.revision, found.seconds, found.image_sha256) == (
        "ünit/1", "p-a", 1, 2.5, "0f")  # fmt: skip
    assert (found.payload, found.mask[:4]) == ({"kind": "mask", "words": "<b>é\u2603"}, b"\x89PNG")
    np.testing.assert_array_equal(found.pixels, mask)
    assert study.answers(masks=False)[0].mask is None
    assert abs(datetime.fromisoformat(found.created) - datetime.now(UTC)) < timedelta(minutes=5)


def test_repeated_request_stores_one_row(study):
    first = study.record("p-a", "u", "r1", {"value": 1}, mask=drawn(1))
    again = study.record("p-a", "u", "r1", {"value": 2}, mask=drawn(2))
    for person, unit in (("p-b", "u"), ("p-a", "v")):
        refused("a different answer", study.record, person, unit, "r1", 1)
    assert (again, len(study.answers(last=False))) == (first, 1)


def test_later_answers_are_revisions(study):
    for index in range(3):
        study.record("p-a", "u", f"a{index}", index)
    study.record("p-b", "u", "b0", 9)
    assert [(one.person, one.revision, one.payload) for one in study.answers(last=False)] == [
        ("p-a", 1, 0), ("p-a", 2, 1), ("p-a", 3, 2), ("p-b", 1, 9)]  # fmt: skip
    assert [(one.person, one.payload) for one in study.answers()] == [("p-a", 2), ("p-b", 9)]
    assert [one.payload for one in study.answers("p-a", last=False)] == [0, 1, 2]
    assert (study.answers(unit="v"), study.answered("p-a")) == ([], ["u"])


def test_database_rejects_updates_and_deletes(store, study):
    person = study.join(ASKED).name
    study.assign(person, ["u"])
    study.review(study.record(person, "u", "r", 1).id, "p-r", "accept", "v")
    for name in ("studies", "people", "assignments", "answers", "reviews"):
        table = getattr(study_tables, name)
        for change in (update(table).values(created="1999"), delete(table)):
            with pytest.raises(DBAPIError, match="never changed"), store.writing() as connection:
                connection.execute(change)
        with store.reading() as connection:
            rows = connection.execute(select(table)).mappings().all()
        assert [row["created"] > "2" for row in rows] == [True], name


def test_store_keeps_only_a_hash_of_a_key(store, study):
    person = study.join(ASKED.format(1))
    assert study.join(ASKED.format(1)) == person, "a repeated request returns the same person"
    other = study.join(ASKED.format(2))
    assert other.name != person.name
    assert study.person(person.key).name == person.name
    assert study.person("no such key") is None
    assert store.study("assess", "other").person(person.key) is None, "a key is valid for one study"
    assert study.people() == [person.name, other.name]
    reviewer = study.join(role="reviewer")
    assert study.people("reviewer") == [reviewer.name]
    with store.reading() as connection:
        row = connection.execute(select(study_tables.people)).mappings().first()
    assert row["key_sha256"] == sha256(person.key.encode()).hexdigest()
    assert person.key not in repr(person)
    assert person.key not in str(dict(row))
    assert ASKED.format(1) not in str(dict(row)), "the key is made from this request"
    refused("16 characters", study.join, "short")


def test_assignments_keep_their_order(study):
    study.assign("p-a", ["c", "a", "b"])
    study.assign("p-a", ["a", "d"])
    assert [(one.unit, one.position) for one in study.assignments("p-a")] == [("c", 0), ("a", 1), ("b", 2), ("d", 3)]
    assert study.assignments("p-b") == []


def draw_units(places, person, per_unit=1, count=1):
    """Return the units that a person has to answer, in order; draw up to `count` units if there are none."""
    places.refresh()
    if not (waiting := set(places.given(person)) - set(places.answered(person))):
        places.draw(person, np.ones(len(places.order), bool), per_unit, count)
        waiting = set(places.given(person)) - set(places.answered(person))
    return [unit for unit in places.given(person) if unit in waiting]


def test_units_with_fewest_people_come_first(study):
    for unit in UNITS[1:]:
        study.record("p-a", unit, unit, 1)
        study.assign("p-a", [unit])
    assert draw_units(Places(study, UNITS), "p-b", 9)[0] == UNITS[0]


def undone(places, person, unit):
    with places.study.store.writing() as connection:
        places.refresh()
        places.study.append_new(connection, person, [unit], 1000)
        raise ZeroDivisionError


def counted(study, units, lease_hours):
    """Return the number of people who answered or lease each of `units`, computed from all rows of the store."""
    answers, first, last = study.answers(masks=False), *lately(lease_hours)
    answered = {(one.person, one.unit) for one in answers}
    skipped = {(one.person, one.unit) for one in answers if one.payload["kind"] == "skip"}
    reviews = study.reviews()
    back = {(one.person, one.unit) for one in answers if one.id in reviews and reviews[one.id].verdict == "reject"}
    times = [(one.person, one.created) for one in (*study.assignments(), *study.answers(last=False, masks=False))]
    active = {person for person, created in times if first <= created <= last}
    counts = Counter()
    for given in study.assignments():
        pair = given.person, given.unit
        holds = given.person in active or (pair in answered and pair not in back)
        counts[given.unit] += holds and pair not in skipped and given.person not in excluded(study)
    return [counts[unit] for unit in units]


@pytest.mark.sample(1, 3)
@pytest.mark.parametrize("seed", range(4))
def test_places_match_counts_from_all_rows(place, seed, monkeypatch):
    """Test two servers with people who come and go, reviews, exclusions, wrong clocks and failing transactions."""
    random = np.random.default_rng(seed)
    stores = [Store(place), Store(place)]
    studies = [made(store) for store in stores]
    both = [Places(study, UNITS[:8]) for study in studies]
    people = [f"p-{letter}" for letter in "abcd"]
    monkeypatch.setattr(study_module, "now", lambda: hours_ago(float(random.choice([0, 0.5, 3, -30]))))
    for step in range(60):
        here, person = int(random.integers(2)), people[random.integers(4)]
        study, places = studies[here], both[here]
        act, unit = random.choice(["draw", "fail", "record", "review", "exclude", "assign"]), str(random.choice(UNITS))
        if act == "draw":
            places.draw(person, random.random(8) < 0.8, 2, int(random.integers(1, 3)), 1.0)
        elif act == "fail":
            with pytest.raises(ZeroDivisionError):
                undone(places, person, f"lost {step}")
        elif act == "record":
            study.record(person, unit, f"r {step}", {"kind": str(random.choice(["mask", "no_region", "skip"]))})
        elif act == "review" and (last := study.answers(masks=False)):
            chosen = last[random.integers(len(last))].id
            study.review(chosen, "rita", str(random.choice(["accept", "reject"])), f"v {step}", f"comment {step}")
        elif act == "exclude":
            add_event(study, str(random.choice(["exclude", "include"])), {"reason": ""}, person=person)
        else:
            study.assign(person, [unit])
        for places in both:
            places.refresh()
        for hours in (1.0, 10.0):
            assert [places.counts(hours).tolist() for places in both] == [counted(study, places.order, hours)] * 2
        for name in people:
            expected = [one.unit for one in study.assignments(name)], study.answered(name)
            assert [(places.given(name), places.answered(name)) for places in both] == [expected] * 2
    for store in stores:
        store.close()


def test_last_review_of_an_answer_counts(store, study):
    answer = study.record("p-a", "u", "r", 1)
    study.review(answer.id, "p-r", "reject", "v1", "the <tail> is missing")
    study.review(answer.id, "p-r", "reject", "v1", "again")
    assert study.reviews()[answer.id].comment == "the <tail> is missing"
    study.review(answer.id, "p-r", "accept", "v2")
    assert (study.reviews()[answer.id].verdict, store.study("annotate", "other").reviews()) == ("accept", {})
    refused("no answer 999", study.review, 999, "p-r", "accept", "v3")


def test_reopened_study_resumes_and_rejects_other_settings(place):
    first = Store(place)
    study = made(first)
    study.record("p-a", "u", "r", 1)
    first.close()
    second = Store(place)
    again = made(second)
    assert (again.id, again.configuration, len(again.answers())) == (study.id, {"annotators": 2}, 1)
    assert second.find().name == "birds"
    line = r"a different dataset and seed \(3, now 4\); use"
    refused(line, second.study, "annotate", "birds", dataset="xyz", configuration={"annotators": 2}, seed=4)
    second.study("peekaboom", "guessed", configuration={"images": list(range(30)), "run": "a"})
    words, less = r"a different configuration \(images 30, now 29, run\); use", {"images": list(range(29)), "run": "b"}
    refused(words, second.study, "peekaboom", "guessed", configuration=less)
    second.study("assess", "rated")
    refused("several studies", second.find)
    assert second.find(kind="assess").name == "rated"
    refused("no such study", second.find, "cats")
    second.close()


def test_invalid_answers_are_rejected_and_not_stored(tmp_path):
    study = made(Store(tmp_path / "study.db"))
    for change, message in (
        ({"payload": float("nan")}, "JSON"), ({"payload": {1, 2}}, "JSON"), ({"payload": "x" * 2**20}, "at most"),
        ({"unit": ""}, "unit must be 1 to 500 printable"), ({"unit": "a\0b"}, "unit must be 1 to 500 printable"),
        ({"request": "x" * 201}, "request must be 1 to 200 printable"), ({"mask": np.zeros((3, 3))}, "bool array"),
        ({"mask": np.zeros((0, 3), bool)}, "bool array"),
    ):  # fmt: skip
        refused(message, study.record, **{"person": "p", "unit": "u", "request": "r", "payload": 1} | change)
        assert study.answers() == [], message


def test_invalid_seconds_keep_the_answer(tmp_path):
    study = made(Store(tmp_path / "study.db"))
    given = -5, 1e9, float("nan"), float("inf"), 3.5, 10**400, "12", None, [1]
    stored = [study.record("p", "u", f"r{number}", 1, seconds=one).seconds for number, one in enumerate(given)]
    assert stored == [0, 86_400, 0, 0, 3.5, 86_400, 0, 0, 0]


def test_invalid_store_paths_are_rejected(tmp_path):
    (tmp_path / "text.db").write_text("no database " * 200)
    sqlite3.connect(tmp_path / "other.db").execute("CREATE TABLE recipes (x)")
    newer = Store(tmp_path / "newer.db")
    with newer.writing() as connection:
        connection.execute(study_tables.versions.delete())
        connection.execute(insert(study_tables.versions).values(number=99))
    for name, message in [
        ("text.db", "not a database"),
        ("other.db", "a different program"),
        ("newer.db", "format 99"),
        (".", "is a folder"),
        ("missing/study.db", "not a folder"),
    ]:
        refused(message, Store, tmp_path / name)
    refused("there is no store", Store, tmp_path / "typo.db", create=False)
    assert not (tmp_path / "typo.db").exists()


def test_database_error_hides_the_password():
    pytest.importorskip("psycopg")
    caught = refused("cannot be used as a store", Store, "postgresql://ada:s3cret@127.0.0.1:9/none")
    assert "s3cret" not in caught


def test_silent_server_times_out_on_connect(monkeypatch):
    pytest.importorskip("psycopg")
    monkeypatch.setitem(database.DEADLINES, "connect_timeout", 2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://ada@127.0.0.1:{silent.getsockname()[1]}/x"
        refused("cannot be used as a store: connection timeout expired", Store, url)


def test_stopped_server_times_out(request, monkeypatch):
    monkeypatch.setattr(database, "SILENCE", 0.5)
    server = request.getfixturevalue("postgres")
    with closing(Store(request.getfixturevalue("database"))) as store:
        study, store.patience = made(store), 0.5
        answer = (study.join(ASKED.format(0)).name, UNITS[0], "an answer", {})
        with server.stopped(), pytest.raises(OperationalError, match="does not respond"):
            study.record(*answer)
        with pytest.raises(OperationalError, match="does not respond"), store.writing() as writer, server.stopped():
            writer.exec_driver_sql("SELECT 1")
        study.record(*answer)
        assert len(study.answers()) == 1


def test_reading_a_locked_table_times_out(request):
    place = request.getfixturevalue("database")
    with closing(Store(place)) as store, closing(Store(place)) as other:
        study, store.patience = made(store), 0.2
        with other.writing() as connection:
            connection.exec_driver_sql(f"LOCK TABLE {study_tables.people.name}")
            with pytest.raises(OperationalError, match="lock timeout"):
                study.person("key")


def test_concurrent_saves_store_each_answer_once(study):
    """Use eight threads in which each request is sent three times, and one person has two tabs."""

    def save(index):
        person, unit = f"p-{index % 8 // 2}", UNITS[index // 8 % 3]
        return study.record(person, unit, f"r{index // 3}-{person}-{unit}", index, mask=drawn(index)).id

    jobs = [index for index in range(96) for _ in range(3)]
    with ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(save, jobs))
    wanted = {f"r{i // 3}-p-{i % 8 // 2}-{UNITS[i // 8 % 3]}" for i in range(96)}
    rows = study.answers(last=False, masks=False)
    assert len(rows) == len(wanted) == len(set(ids))
    of_one = [row.revision for row in rows if (row.person, row.unit) == ("p-0", UNITS[0])]
    assert of_one == list(range(1, len(of_one) + 1)), "revisions are consecutive"


def test_concurrent_draws_never_exceed_the_quota(study):
    both = Places(study, UNITS), Places(study, UNITS)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda index: draw_units(both[index % 2], f"p-{index}", 2, 3), range(9)))  # one too many
    counts = {}
    for one in study.assignments():
        counts[one.unit] = counts.get(one.unit, 0) + 1
    assert sorted(counts.values()) == [2] * 12


WRITER = """
import sys
from saliency_bench.studies.answer_store import Store
study = Store(sys.argv[1]).study("annotate", "birds", dataset="abc", configuration={"annotators": 2}, seed=3)
for index in range(10**6):
    study.record("p-a", f"image-{index}", f"r{index}", index)
    print(index, flush=True)
"""


@pytest.mark.slow
def test_confirmed_answers_survive_a_kill(place):
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(place)], stdout=subprocess.PIPE, text=True)
    confirmed = [int(process.stdout.readline()) for _ in range(40)]
    os.kill(process.pid, signal.SIGKILL)
    confirmed += [int(line) for line in process.stdout.read().split("\n")[:-1]]
    process.wait()
    study = made(Store(place))
    stored = [one.payload for one in study.answers()]
    assert stored[: len(confirmed)] == confirmed
    assert len(stored) <= len(confirmed) + 1, "at most one answer was not confirmed yet"
    if len(stored) > len(confirmed):  # the page repeats requests that were not confirmed
        last = stored[-1]
        assert study.record("p-a", f"image-{last}", f"r{last}", last).revision == 1


def test_backup_is_consistent_during_writes(tmp_path):
    store = Store(tmp_path / "study.db")
    study = made(store)
    with ThreadPoolExecutor(2) as pool:
        writing = pool.submit(lambda: [study.record("p", f"u{i}", f"r{i}", i) for i in range(60)])
        while len(study.answers(masks=False)) < 20:
            pass
        store.backup(tmp_path / "copy.db")
        writing.result()
    copied = [one.payload for one in made(Store(tmp_path / "copy.db")).answers()]
    assert 20 <= len(copied) <= 60
    assert copied == list(range(len(copied)))
    assert sqlite3.connect(tmp_path / "study.db").execute("PRAGMA journal_mode").fetchone() == ("wal",)
