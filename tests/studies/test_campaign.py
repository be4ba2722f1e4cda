"""A campaign of twelve people, of whom one is careless, one a bot and one leaves: no reported number changes."""

from dataclasses import replace

import numpy as np
import pytest
from pages import dataset

from saliency_bench.studies.agreement import consensus
from saliency_bench.studies.annotating import AnswerChoice, open_study
from saliency_bench.studies.annotation_report import annotation_report
from saliency_bench.studies.answer_store import Store
from saliency_bench.studies.images import StudyImages
from saliency_bench.studies.overview import AnnotationOverview
from saliency_bench.studies.owner_actions import act
from saliency_bench.studies.runs import runs_of

OBJECT = np.zeros((60, 80), bool)
OBJECT[10:30, 5:25] = True  # of every image, and the known mask of the honeypots


class Simulated:
    """kind: "good" draws the object, a pixel off in a direction of its own; "careless" a corner; "bot" everything."""

    def __init__(self, annotating, number, kind="good", most=None):
        self.annotating, self.kind, self.most, self.count = annotating, kind, most, 0
        self.name = annotating.study.join(f"simulated person {number:015}").name
        self.shift = (number % 3 - 1, number % 2)

    def answer(self, annotating):
        """Answer one image; whether there was one."""
        tasks = annotating.state(self.name)["tasks"]
        if not tasks or self.count == self.most:
            return False
        mask = np.roll(OBJECT, self.shift, (0, 1))
        if self.kind == "careless":
            mask = np.roll(OBJECT, (25, 40), (0, 1))
        elif self.kind == "bot":
            mask = np.ones_like(OBJECT)
        seconds = 1 if self.kind == "bot" else 20 + 5 * abs(self.shift[0])
        answer = {"unit": tasks[0]["unit"], "kind": "mask", "runs": runs_of(mask), "seconds": seconds}
        annotating.save(self.name, answer | {"request": f"{self.name} answers {tasks[0]['unit']}"})
        self.count += 1
        return True


def everybody_works(annotating, people):
    while sum(person.answer(annotating) for person in people):
        pass


@pytest.mark.slow
def test_twelve_people_of_whom_three_spoil_it(tmp_path):
    images, store = StudyImages(dataset(8, masks=2)), Store(tmp_path / "study.db")
    annotating = open_study(store, "campaign", images, "print", annotators=5, honeypots=2, honeypot_every=2)
    spoilers = [
        Simulated(annotating, 0, "careless"),
        Simulated(annotating, 1, "bot"),
        Simulated(annotating, 2, most=1),
    ]
    people = spoilers + [Simulated(annotating, number) for number in range(3, 12)]
    everybody_works(annotating, people)
    careless, bot, leaver = (person.name for person in spoilers)
    overview = AnnotationOverview(annotating)()
    marks = {row["person"]: row["marks"] for row in overview["people"]}
    assert [name for name, of_person in marks.items() if "careless" in of_person] == sorted(
        [careless, bot], key=list(marks).index
    )
    assert "quick" in marks[bot]
    assert overview["done"] < overview["wanted"], "the leaver holds an image"

    for name in (careless, bot):
        act(annotating.study, "exclude", f"exclude {name}", name, "honeypots")
    later = replace(annotating, lease_hours=0.0)  # an hour later
    assert AnnotationOverview(later)()["done"] < overview["done"]
    everybody_works(later, people[3:])

    good = [person.name for person in people if person.name not in (careless, bot)]
    report, expected = annotation_report(later), annotation_report(later, AnswerChoice(people=good, with_excluded=True))
    assert set(report["left out"]) == {careless, bot}
    assert report["images complete"] == report["images"] == 6
    assert report["agreement"] == expected["agreement"]
    assert report["agreement"]["IoU"]["value"] > 0.8 > report["agreement with everyone"]["IoU"]["value"]
    for unit, answers in later.counted().items():
        masks = [later.pixels(answer) for answer in answers]
        assert len(masks) >= 5, unit
        drawn = consensus(masks, "majority")
        assert (drawn & OBJECT).sum() / (drawn | OBJECT).sum() > 0.85
    assert leaver in {answer.person for answers in later.counted().values() for answer in answers} | set(
        later.honeypot_scores()
    )
