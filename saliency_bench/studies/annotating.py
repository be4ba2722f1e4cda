"""The annotation protocol: people draw the region that justifies the class; several people per image; review.

An answer's payload is {"kind": "mask"}, {"kind": "no_region"} (nothing in the image shows the class) or {"kind":
"skip", "reason": TEXT}, which passes the image to others. Masks have the size of the image. People do not see
each other's answers. A rejected answer goes back to its annotator with the comment, and the next mask is a new
revision. A reviewer may also draw the mask instead: such a correction names the revision it corrects, counts instead of
it, and is reviewed in the same way.

Honeypots are images with a known mask in the dataset: everybody gets them, one among every `honeypot_every` images, at
a position drawn for each person. They do not count for consensus and agreement.
"""

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from saliency_bench.errors import UserError
from saliency_bench.studies.agreement import consensus, iou
from saliency_bench.studies.answer_store import Store
from saliency_bench.studies.database import differences
from saliency_bench.studies.growing import grow, revised
from saliency_bench.studies.images import StudyImages
from saliency_bench.studies.owner_actions import excluded
from saliency_bench.studies.places import Places
from saliency_bench.studies.practice import attempts, feedback, is_over, score
from saliency_bench.studies.runs import mask_of, runs_of
from saliency_bench.studies.study import CORRECTED, LEASE_HOURS, Answer, Correction, Person, Review, Study
from saliency_bench.utils.messages import complain, counted
from saliency_bench.utils.pictures import UnreadableError
from saliency_bench.utils.seeds import seed_of

KIND = "annotate"
KINDS = ("mask", "no_region", "skip")
AHEAD = 2  # images that a person holds: the image on screen, and the next one, loaded ahead
LONGEST_REASON = 500  # characters


DEFAULTS = {"annotators": 3, "per_person": 0, "only_missing": False, "honeypots": 0, "honeypot_every": 10, "seed": 0,
            "practice": 0, "practice_iou": 0.5, "reviewers": 1}  # fmt: skip
PROTOCOLS = {"p0": {"annotators": 5, "reviewers": 2}}  # Saliency-Bench: five annotators, several evaluators
LEAST = {
    "annotators": 1,
    "per_person": 0,
    "honeypots": 0,
    "honeypot_every": 2,
    "practice": 0,
    "practice_iou": 0,
    "reviewers": 1,
}


def open_study(
    store: Store, name: str, images: StudyImages, fingerprint: str, *, growing: bool = False, **settings: Any
) -> "Annotating":
    """Return the study of this name over these images, or create it.

    Args:
        store: store of studies.
        name: name of the study.
        images: to annotate.
        fingerprint: fingerprint of the dataset.
        growing: if settings or images differ from the existing study, store them as its next revision (`growing`).
        **settings: settings that differ from `DEFAULTS` or from the existing study: annotators, people per image;
            per_person, most images of a person, 0 for all; only_missing, leave out images that have a mask; honeypots,
            their number, and honeypot_every, how many images apart; practice, number of practice images, and
            practice_iou, the IoU to reach in them; reviewers, number of people who must accept an answer; seed of the
            order; and foreground, which pixels of the dataset's masks are the object, see `read_mask`.

    Raises:
        UserError: Settings are invalid or differ from the existing study.
    """
    check_settings(settings)
    known = store.get(name)
    if known is not None and known.kind == KIND:
        study = revised(known)
        settings = {**study.configuration["settings"], **settings}
        before = {"configuration": study.configuration["settings"], "dataset": study.dataset}
        different = differences(before, {"configuration": settings, "dataset": fingerprint})
        if different and not growing:
            raise UserError(
                f"{store.text} holds a study '{name}' with another {different}; give the same settings to resume it, "
                "--grow to add people or images, or another --name"
            )
        return Annotating(grow(study, images, fingerprint, settings) if different else study, images)
    configuration = new_configuration(images, settings)
    seed = configuration["settings"]["seed"]
    return Annotating(store.study(KIND, name, dataset=fingerprint, configuration=configuration, seed=seed), images)


def check_settings(settings: Mapping[str, Any]) -> None:
    """Raise UserError for invalid settings."""
    for key, least in LEAST.items():
        if settings.get(key, least) < least:
            raise UserError(f"--{key.replace('_', '-')} must be at least {least}")
    if settings.get("practice_iou", 0) > 1:
        raise UserError("--practice-iou must be a number from 0 to 1")


def new_configuration(images: StudyImages, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of a new study, with `DEFAULTS` for missing settings.

    Raises:
        UserError: There are too few images with a mask.
    """
    settings = {**DEFAULTS, **settings}
    wanted = settings["honeypots"], settings["practice"], settings["seed"], settings.get("foreground", "")
    pots, practice = choose_known(images, *wanted)
    return {"settings": settings, "honeypots": pots, "practice": practice, "images": len(images.units)}


def choose_known(
    images: StudyImages, honeypots: int, practice: int, seed: int, foreground: str = ""
) -> tuple[list[str], list[str]]:
    """Draw (honeypots, practice images) by the seed from the units with a mask in the dataset.

    Raises:
        UserError: There are too few.
    """
    count = honeypots + practice
    drawn: list[str] = []
    unreadable: dict[str, str] = {}
    for unit in sorted(images.with_masks(), key=lambda unit: seed_of(seed, "honeypots", unit)):
        if len(drawn) == count:
            break
        try:
            known = images.known_mask(unit, foreground)
            if known is None or not known.any():  # an annotator cannot submit an empty mask
                raise UnreadableError("empty mask")
            drawn.append(unit)
        except UnreadableError as error:
            unreadable[unit] = str(error)
    if unreadable:
        unit, reason = next(iter(unreadable.items()))
        complain(f"{counted(len(unreadable), 'mask')} cannot be used, such as the mask of image {unit}: {reason}")
    if len(drawn) < count:
        names = " and ".join(["honeypots"] * bool(honeypots) + ["images of practice"] * bool(practice))
        raise UserError(
            f"{count} {names} need images with a mask, but the dataset has {len(drawn)}; `saliency-bench build folder "
            f"--images DIR --masks DIR` adds your masks"
        )
    return sorted(drawn[:honeypots]), drawn[honeypots:count]


@dataclass(frozen=True)
class AnswerChoice:
    """Choice of the people whose answers count.

    Attributes:
        people: only these people; () means everyone.
        without: people who do not count.
        accepted: only answers that all `reviewers` have accepted.
        honeypot_iou: leave out people whose mean IoU with the honeypots is below.
        with_excluded: also count people whom the owner has excluded.
        as_drawn: ignore the corrections of reviewers.
    """

    people: Sequence[str] = ()
    without: Sequence[str] = ()
    accepted: bool = False
    honeypot_iou: float = 0.0
    with_excluded: bool = False
    as_drawn: bool = False


@dataclass(frozen=True)
class Annotating:
    """A study of this protocol, over the images of its dataset."""

    study: Study
    images: StudyImages
    lease_hours: float = LEASE_HOURS

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the study."""
        return self.study.configuration["settings"]

    @property
    def honeypots(self) -> list[str]:
        """The units that check people."""
        return self.study.configuration["honeypots"]

    @property
    def practice(self) -> list[str]:
        """The practice units in order."""
        return self.study.configuration.get("practice", [])

    @property
    def units(self) -> list[str]:
        """Return the units that people draw on, apart from honeypots and practice."""
        left_out = {*self.honeypots, *self.practice}
        if self.settings["only_missing"]:
            left_out |= set(self.images.with_masks())
        return [unit for unit in self.images.units if unit not in left_out]

    # for annotators

    def state(self, person: str) -> dict[str, Any]:
        """Return the state of a person's page: progress and the next images, practice images first."""
        if (practising := self._practising(person)) is not None:
            return practising
        self.places.refresh()
        practice = set(self.practice)
        answered = [unit for unit in self.places.answered(person) if unit not in practice]
        redo = self.places.sent_back(person)
        waiting = self._waiting(person)
        tasks = [self._task(unit, person, comment) for unit, comment in redo.items()]
        tasks += [self._task(unit) for unit in waiting]
        done = len(answered) - len(redo)
        return {
            "done": done,
            "total": max(self._total(person), done + len(tasks)),
            "tasks": tasks[:AHEAD],
            "latest": answered[-1] if answered else None,
            "practice": False,
        }

    def _practising(self, person: str) -> dict[str, Any] | None:
        """Return the state of a person with practice images left, which are shown one by one, or None."""
        if not self.practice:
            return None
        reached = attempts(self.study, self.practice, person).get(person, {})
        needed = self.settings["practice_iou"]
        left = [unit for unit in self.practice if not is_over(reached.get(unit, []), needed)]
        if not left:
            return None
        self.study.assign(person, self.practice)
        task = self._task(left[0]) | {"practice": True} | self.last_answer(person, left[0])
        done, total = len(self.practice) - len(left), len(self.practice)
        return {"done": done, "total": total, "tasks": [task], "latest": None, "practice": True}

    def feedback(self, answer: Answer) -> dict[str, Any] | None:
        """Return the feedback after an answer: the known mask of a practice image, nothing for other images."""
        if answer.unit not in self.practice:
            return None
        return feedback(answer, self._known(answer.unit), self.settings["practice_iou"])

    def _given(self, person: str) -> list[str]:
        """Return the units that a person was given, without practice units."""
        practice = set(self.practice)
        return [unit for unit in self.places.given(person) if unit not in practice]

    def _known(self, unit: str) -> np.ndarray:
        """Return the known mask of a honeypot or an image of practice."""
        known = self.known_mask(unit)
        assert known is not None, "they are chosen from images with a mask"
        return known

    def known_mask(self, unit: str) -> np.ndarray | None:
        """Return the dataset's mask of an image, like `StudyImages.known_mask`, with the mask values of the study."""
        return self.images.known_mask(unit, self.settings.get("foreground", ""))

    @cached_property
    def places(self) -> Places:
        """Return the assignments of the study, kept in memory."""
        return Places(self.study, self.images.units)

    @property
    def _drawable(self) -> np.ndarray:
        """Return bool (N,): whether each unit of `places.order` may be drawn.

        Honeypots, practice images and images that cannot be shown may not be drawn.
        """
        return self._shown_of(frozenset(self.images.unshown))

    @cached_property
    def _shown_of(self) -> Callable[[Set[str]], np.ndarray]:
        """Return the function that computes `_drawable` from the images that cannot be shown; it caches one result."""
        units, order = set(self.units), self.places.order
        return lru_cache(1)(lambda unshown: np.array([unit in units and unit not in unshown for unit in order], bool))

    def _left(self, person: str) -> np.ndarray:
        """Return the indices of the units that may be given to a person, like `Places.left`."""
        return self.places.left(person, self._drawable, self.settings["annotators"], self.lease_hours)

    def _total(self, person: str) -> int:
        """Return how many images this person will have done in the end if nobody else takes any.

        The count follows `_waiting`, so it includes future honeypots.
        """
        given, most = self._given(person), self.settings["per_person"]
        left, place = len(self._left(person)), len(given)
        pots = len(set(self.honeypots) - set(given))
        while pots:
            is_due = self._is_honeypot_due(person, place)
            if not is_due and not left:
                break
            place, left, pots = place + 1, left - (not is_due), pots - is_due
        return min(place + left, most) if most else place + left

    def _waiting(self, person: str) -> list[str]:
        """Return up to `AHEAD` units that a person has and has not answered; draw further units if necessary."""
        most, done = self.settings["per_person"], set(self.places.answered(person))
        given = self._given(person)
        waiting = [unit for unit in given if unit not in done]
        while len(waiting) < AHEAD and not (most and len(given) >= most):
            before = len(given)
            if pot := self._honeypot(person, given):
                self.study.assign(person, [pot])
                self.places.refresh()
            else:
                self.places.draw(person, self._drawable, self.settings["annotators"], lease_hours=self.lease_hours)
            given = self._given(person)
            waiting = [unit for unit in given if unit not in done]
            if len(given) == before:
                break
        return waiting[:AHEAD]

    def _honeypot(self, person: str, given: list[str]) -> str | None:
        """Return the honeypot that is due at the next position of a person's order, or None."""
        left = [unit for unit in self.honeypots if unit not in given]
        if not left or not self._is_honeypot_due(person, len(given)):
            return None
        return min(left, key=lambda unit: seed_of(self.study.seed, person, unit))

    def _is_honeypot_due(self, person: str, place: int) -> bool:
        """Return whether a position of a person's order is the honeypot position of its block."""
        every = self.settings["honeypot_every"]
        block, at = divmod(place, every)
        return at == seed_of(self.study.seed, "honeypot", person, block) % every

    def _task(self, unit: str, person: str | None = None, comment: str | None = None) -> dict[str, Any]:
        """Return an image's data for the page; if it was sent back, include the answer and the comment."""
        task: dict[str, Any] = {"unit": unit, "label": self.images.label(unit)}
        try:
            shown = self.images.shown(unit)
            task |= {"height": shown.height, "width": shown.width}
        except UnreadableError as error:  # it can only be skipped
            task |= {"height": 1, "width": 1, "error": str(error)}
        if person is not None:
            task |= {"comment": comment, "again": True} | self.last_answer(person, unit)
        return task

    def last_answer(self, person: str, unit: str) -> dict[str, Any]:
        """Return a person's last answer to a unit: its kind, runs and reason; {} if there is none."""
        answers = self.study.answers(person, unit)
        if not answers:
            return {}
        pixels = answers[0].pixels
        return answers[0].payload | {"runs": None if pixels is None else runs_of(pixels)}

    def task_again(self, person: str, unit: str) -> dict[str, Any]:
        """Return an image that a person has answered, to correct the answer."""
        self._check_given(person, unit)
        return self._task(unit, person, self.places.sent_back(person).get(unit))

    def _check_given(self, person: str, unit: str) -> None:
        """Raise UserError for an image that this person was not given."""
        if not self.places.is_given(person, unit):
            raise UserError("this image was not given to you; reload the page")

    def save(self, person: str, sent: dict[str, Any]) -> Answer:
        """Store an answer from a person's page.

        Raises:
            UserError: The answer does not belong to its image.
        """
        unit, kind = str(sent.get("unit")), sent.get("kind")
        self._check_given(person, unit)
        if kind not in KINDS:
            raise UserError(f"kind must be one of {', '.join(KINDS)}")
        payload: dict[str, Any] = {"kind": kind}
        mask, sha256 = None, None
        if kind != "skip":
            sha256 = self.images.shown(unit).sha256
        if kind == "mask":
            mask = self._draw(unit, sent)
        if kind == "skip":
            payload["reason"] = str(sent.get("reason") or "")[:LONGEST_REASON]
        if unit in self.practice:
            payload["iou"] = score(mask, self._known(unit))
        return self.study.record(
            person,
            unit,
            str(sent.get("request")),
            payload,
            mask=mask,
            image_sha256=sha256,
            seconds=sent.get("seconds"),
        )

    def may_see(self, person: Person, unit: str) -> bool:
        """Return whether a person may see an image: annotators see the images that they were given."""
        if unit not in self.images.positions:
            return False
        return person.role == "reviewer" or self.places.is_given(person.name, unit)

    # for reviewers

    def to_review(self) -> list[Answer]:
        """Return the last answers, without masks, that need a review, oldest first.

        Honeypots and skips need no review, nor do answers of people whom the owner has excluded.

        An answer needs a review until it is sent back or `reviewers` people have accepted it. A reviewer's own
        correction counts as accepted by that reviewer.
        """
        verdicts, names, pots = self.study.reviews(), self.study.reviewers(), {*self.honeypots, *self.practice}
        needed, last = reviewers_needed(self.study), self.study.answers(masks=False)
        without = excluded(self.study)
        return [
            answer
            for answer in last
            if answer.person not in without
            and len(_opinions(names, answer)) < needed
            and _verdict(verdicts, answer) != "reject"
            and answer.unit not in pots
            and answer.payload["kind"] != "skip"
        ]

    def review_state(self, reviewer: str) -> dict[str, Any]:
        """Return the state of a reviewer's page: the next answers, without the names of their authors.

        They are reserved for this reviewer until they are reviewed or the lease ends; nobody reviews an answer twice.
        """
        names, corrections = self.study.reviewers(), self.study.corrections()
        done = sum(reviewer in reviewed for rounds in names.values() for reviewed in rounds)
        waiting = {
            _piece_of_review(answer.id, len(names.get(answer.id, [()]))): answer
            for answer in self.to_review()
            if reviewer not in _opinions(names, answer)
        }
        over = {
            (name, _piece_of_review(answer, number))
            for answer, rounds in names.items()
            for number, reviewed in enumerate(rounds, 1)
            for name in reviewed
        }
        chosen = self.study.hold(reviewer, list(waiting), open_units=AHEAD, done=over, lease_hours=self.lease_hours)
        return {
            "done": done,
            "total": done + len(waiting),
            "tasks": [
                self._task(answer.unit) | self._reviewed(answer, corrections) | {"answer": answer.id}
                for answer in map(waiting.__getitem__, chosen)
            ],
        }

    def _reviewed(self, answer: Answer, corrections: Mapping[int, Correction]) -> dict[str, Any]:
        """Return the content under review: a person's answer, or the correction that counts instead."""
        if (correction := corrections.get(answer.id)) is None:
            return self.last_answer(answer.person, answer.unit)
        pixels = corrected(answer, correction).pixels
        return correction.payload | {"runs": None if pixels is None else runs_of(pixels), "corrected": True}

    def others(self, number: object) -> dict[str, Any]:
        """Return the consensus of all other people who drew on an answer's image, for its reviewer.

        Raises:
            UserError: There is no such answer to review.
        """
        reviewed = self._to_be_reviewed(number)
        answers = self.counted().get(reviewed.unit, [])
        masks = [self.pixels(answer) for answer in answers if answer.person != reviewed.person]
        return {"people": len(masks), "runs": runs_of(consensus(masks)) if masks else None}

    def _to_be_reviewed(self, number: object) -> Answer:
        """Return the answer of this number, if it is to be reviewed."""
        for answer in self.to_review():
            if answer.id == number:
                return answer
        raise UserError("this answer no longer needs a review; reload the page")

    def correct(self, reviewer: str, sent: dict[str, Any]) -> None:
        """Store a reviewer's correction of an answer: a mask, or that there is no region.

        Raises:
            UserError: The correction is not a mask of the image, or the answer needs no review.
        """
        number, pots = sent.get("answer"), {*self.honeypots, *self.practice}
        answer = next((entry for entry in self.study.answers(masks=False) if entry.id == number), None)
        if answer is None or answer.unit in pots:
            raise UserError("this answer is not to be reviewed, or its author has changed it; reload the page")
        if (kind := sent.get("kind")) not in ("mask", "no_region"):
            raise UserError("kind of a correction must be mask or no_region")
        mask = self._draw(answer.unit, sent) if kind == "mask" else None
        payload = {"kind": kind, "corrects": {"person": answer.person, "revision": answer.revision}}
        request = str(sent.get("request"))
        self.study.correct(answer.id, reviewer, request, payload, mask=mask, seconds=sent.get("seconds"))

    def _draw(self, unit: str, sent: dict[str, Any]) -> np.ndarray:
        """Return the mask that a page sent.

        Raises:
            UserError: The page sent something else, or a mask without marked pixels.
        """
        mask = mask_of(sent.get("runs") or [], *self.images.size(unit))
        if not mask.any():
            raise UserError("nothing is marked; mark the region, or choose 'No region'")
        return mask

    # results

    def counted(self, choice: "AnswerChoice | None" = None) -> dict[str, list[Answer]]:
        """Return {unit: counted answers} of the chosen people and answers.

        Raises:
            UserError: A chosen person does not exist, or no answer is left.
        """
        choice = choice or AnswerChoice()
        if strangers := (set(choice.people) | set(choice.without)) - set(self.study.people()) - self._answerers():
            raise UserError(f"study {self.study.name} has nobody called {min(strangers)}; --report lists the people")
        without = set(choice.without)
        if choice.honeypot_iou:
            scores = self.honeypot_scores()
            without |= {person for person, ious in scores.items() if np.mean(ious) < choice.honeypot_iou}
        options = {name: getattr(choice, name) for name in ("accepted", "with_excluded", "as_drawn")}
        return counted_answers(self.study, choice.people, without, **options)

    def _answerers(self) -> set[str]:
        """Return everyone with an answer; imported masks belong to people who never joined."""
        return {answer.person for answer in self.study.answers(masks=False)}

    def honeypot_scores(self) -> dict[str, list[float]]:
        """Return {person: IoU with each known mask} of first answers to honeypots, without skips."""
        scores: dict[str, list[float]] = {}
        for pot in self.honeypots:
            known = self._known(pot)
            for answer in self.study.answers(unit=pot, last=False):
                if answer.revision == 1 and answer.payload["kind"] != "skip":
                    scores.setdefault(answer.person, []).append(iou(self.pixels(answer), known))
        return scores

    def pixels(self, answer: Answer) -> np.ndarray:
        """Return the pixels that an answer marks, bool (H, W); none if it says that there is no region."""
        pixels = answer.pixels
        return np.zeros(self.images.size(answer.unit), bool) if pixels is None else pixels


def reviewers_needed(study: Study) -> int:
    """Return how many people must accept an answer."""
    return study.configuration["settings"].get("reviewers", 1)


def _piece_of_review(answer: int, number: int) -> str:
    """Return the unit of a review: an answer (1), or its first (2) or a later correction."""
    return f"review {answer}" if number == 1 else f"review {answer}, correction {number - 1}"


def _opinions(names: Mapping[int, Sequence[set[str]]], answer: Answer) -> set[str]:
    """Return the people who have reviewed the answer, or its last correction if there is one."""
    rounds = names.get(answer.id)
    return rounds[-1] if rounds else set()


def corrected(answer: Answer, correction: Correction) -> Answer:
    """Return an answer with a reviewer's correction as its content."""
    return replace(answer, payload=correction.payload, mask=correction.mask, corrected_by=correction.reviewer)


def _verdict(reviews: Mapping[int, Review], answer: Answer) -> str | None:
    """Return the last verdict on an answer, or None without a review."""
    return reviews[answer.id].verdict if answer.id in reviews else None


def counted_answers(
    study: Study,
    people: Sequence[str] = (),
    without: Collection[str] = (),
    *,
    accepted: bool = False,
    with_excluded: bool = False,
    as_drawn: bool = False,
) -> dict[str, list[Answer]]:
    """Return {unit: counted answers}: each person's last answer to a real image, unless skipped or rejected.

    A reviewer's correction counts instead of the answer, as the answer of its person.

    Args:
        study: an annotation study.
        people: only these people; () means everyone.
        without: people who do not count.
        accepted: only answers that a reviewer has accepted.
        with_excluded: also count people whom the owner has excluded.
        as_drawn: ignore the corrections of reviewers.
    """
    without = set(without) if with_excluded else {*without, *excluded(study)}
    by_unit: dict[str, list[Answer]] = {}
    reviews, names, needed = study.reviews(), study.reviewers(), reviewers_needed(study)
    pots = {*study.configuration["honeypots"], *study.configuration.get("practice", [])}
    corrections = {} if as_drawn else study.corrections()
    for answer in study.answers(masks=True):
        verdict = _verdict(reviews, answer)
        is_accepted = verdict in ("accept", CORRECTED) and len(_opinions(names, answer)) >= needed
        is_fit = is_accepted if accepted else verdict != "reject"
        is_chosen = (not people or answer.person in people) and answer.person not in without
        if answer.unit not in pots and answer.payload["kind"] != "skip" and is_fit and is_chosen:
            correction = corrections.get(answer.id)
            by_unit.setdefault(answer.unit, []).append(corrected(answer, correction) if correction else answer)
    return by_unit


def pixels_of(answer: Answer, size: tuple[int, ...]) -> np.ndarray:
    """Return the pixels that an answer marks in an image of this size, bool (H, W).

    None are marked if it says that there is no region.
    """
    return np.zeros(size, bool) if answer.pixels is None else answer.pixels
