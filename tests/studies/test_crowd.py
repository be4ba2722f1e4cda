"""Tests of studies with crowd workers: invitations, URL parameters, leases, completion codes and payment tables."""

import csv
import json

import numpy as np
import pytest
from commands import said
from pages import BOX, client_of
from PIL import Image

from saliency_bench.cli import main
from saliency_bench.spaces.annotate.app import create_app
from saliency_bench.studies.answer_store import Store
from saliency_bench.studies.payments import PAYMENTS, parameter_table, payment_rows
from saliency_bench.studies.runs import runs_of

STUDY = {"annotators": 1}
COMPLETION = {"url": "https://app.prolific.com/submissions/complete?cc=C1", "code": "C1"}


@pytest.fixture
def client(annotating):
    return client_of(create_app(annotating, completion=COMPLETION))


def join(client, request="r" * 32, **more):
    reply = client.post("/api/join", json={"request": request, **more})
    return {"X-Key": reply.json()["key"]} if reply.status_code == 200 else reply


def draw(client, key, unit, request):
    body = {"unit": unit, "kind": "mask", "runs": runs_of(BOX), "seconds": 30}
    return client.post("/api/answer", json=body | {"request": f"{request} {unit} of a test"}, headers=key).json()


def test_invitation_link_admits_one_person_only(annotating, client):
    before = join(client, "a browser that came before the invitations")
    first, second = annotating.study.invite(2)
    assert join(client, first) == join(client, first) != join(client, second)
    refused = join(client, "somebody who has no link at all")
    assert (refused.status_code, refused.json()["error"]) == (
        403,
        "this study is by invitation; open the link that you received",
    )
    assert join(client, None).status_code == 403
    half = client.post("/api/join", content=json.dumps({"request": "\ud800" * 20}))
    assert half.status_code == 403, "a lone surrogate is no error of the server"
    assert client.get("/api/state", headers=before).status_code == 200, "earlier people keep access"
    assert len(annotating.study.people()) == 3
    assert first not in annotating.study.store.path.read_bytes().decode("latin-1"), "the store contains only hashes"


def test_completion_code_is_shown_only_after_finishing(annotating, client):
    key = join(client)
    state = client.get("/api/state", headers=key).json()
    assert state["completion"] is None
    late = client.get("/api/state", headers=join(client, "l" * 32)).json()
    for number in range(2):
        state = draw(client, key, state["tasks"][0]["unit"], number)
    assert (late["completion"], state["completion"]) == (None, COMPLETION)
    nothing = client.get("/api/state", headers=join(client, "n" * 32)).json()
    assert (nothing["tasks"], nothing["completion"], nothing["lease"]) == ([], None, "60 minutes")


def test_url_parameters_are_stored_apart_from_answers(annotating, client, tmp_path):
    given = {"PROLIFIC_PID": "5f3", "SESSION_ID": "s=1", "own": "x"}
    for _ in range(2):
        join(client, parameters=given)
    join(client, "o" * 32, parameters={"workerId": "A1", "deep": {"a": 1}, "long": "x" * 500, "control": "a\nb"})
    join(client, "p" * 32, parameters="no object")
    first, second, _ = annotating.study.people()
    assert annotating.study.parameters() == {first: given, second: {"workerId": "A1"}}
    header, rows = parameter_table(annotating.study)
    assert header == ("person", "PROLIFIC_PID", "SESSION_ID", "own", "workerId")
    assert rows == [(first, "5f3", "s=1", "x", ""), (second, "", "", "", "A1")]


def test_payment_rows_match_values_by_hand(annotating):
    study = annotating.study
    ada, bob = (study.join(f"{number:032}").name for number in range(2))
    for unit, request, seconds in (("image-000", "a", 60), ("image-001", "b", 30), ("image-001", "c", 60)):
        study.record(ada, unit, f"{request} of a test of payments", {"kind": "no_region"}, seconds=seconds)
    first, last = study.answers()
    study.review(first.id, "rita", "accept", "a random request of rita")
    study.review(last.id, "rita", "reject", "another request of rita", "too small")
    rows = [dict(zip(PAYMENTS, row, strict=True)) for row in payment_rows(study, {ada: [True, False]})]
    expected = {"person": ada, "answers": 2, "median seconds": 75.0, "minutes": 2.5, "checks right": 1, "checks": 2,
                "accepted": 1, "rejected": 1, "corrected": 0, "last answer": last.created, "agreed": None}  # fmt: skip
    assert rows[0] == expected
    assert (rows[1]["person"], rows[1]["answers"], rows[1]["median seconds"]) == (bob, 0, None)


def test_annotate_writes_payment_and_parameter_tables(tmp_path, capsys, shapes):
    line = ["annotate", "--dataset", str(shapes), "--store", str(tmp_path / "s.db")]
    words = [*line, "--payments", str(tmp_path / "p.csv"), "--parameters", str(tmp_path / "q.csv"), "--quiet"]
    assert main(words) == 2, "there is no store"
    Store(tmp_path / "s.db").close()
    assert main(words) == 2, "there is no study"
    (tmp_path / "masks").mkdir()
    Image.new("L", (8, 8), 255).save(tmp_path / "masks/of no image.png")
    assert (main([*line, "--import", str(tmp_path / "masks"), "--person", "ada"]), main(words)) == (0, 0)
    assert "masks of 0 images" in capsys.readouterr().out
    assert "has no masks to export" in said(capsys, [*line, "--export", str(tmp_path / "out")], 2)
    with (tmp_path / "p.csv").open() as file:
        assert next(csv.reader(file)) == list(PAYMENTS)
    assert (tmp_path / "q.csv").read_text().strip() == "person"
    store = Store(tmp_path / "s.db")
    person = store.find().join("a request of a stranger").name
    store.find().keep_parameters(person, {"PID": "=cmd|' /C calc'!A0", "@x": "-1"})
    store.close()
    assert main(words) == 0
    with (tmp_path / "q.csv").open() as file:
        assert list(csv.reader(file)) == [["person", "'@x", "PID"], [person, "-1", "'=cmd|' /C calc'!A0"]]


def test_erase_copies_the_store_without_a_person(annotating, client, tmp_path, capsys):
    study = annotating.study
    ada, bob = (study.join(f"{number:032}").name for number in range(2))
    for person in (ada, bob):
        study.assign(person, ["image-000"])
        study.record(person, "image-000", f"an answer of {person}", {"kind": "mask"}, mask=BOX)
        study.keep_parameters(person, {"PROLIFIC_PID": f"id of {person}"})
        study.review(study.answers(person)[0].id, "rita", "accept", f"a review of {person}")
    words = ["peekaboom", "erase", "--store", str(study.store.path), "--out", str(tmp_path / "less.db"), "--exclude"]
    assert (main([*words, "nobody"]), main([*words, ada])) == (2, 0)
    less = Store(tmp_path / "less.db").find()
    assert (less.people(), [answer.person for answer in less.answers()]) == ([bob], [bob])
    assert [review.reviewer for review in less.reviews().values()] == ["rita"]
    np.testing.assert_array_equal(less.answers()[0].pixels, BOX)
    assert ada.encode() not in (tmp_path / "less.db").read_bytes()
    assert main([*words, bob]) == 2, "the file exists"
