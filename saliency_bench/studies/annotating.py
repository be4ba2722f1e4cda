"""The annotation protocol: several people per image draw the region that justifies the class, and reviewers check it.

The payload of an answer is {"kind": "mask"}, {"kind": "no_region"} (nothing in the image shows the class) or {"kind":
"skip", "reason": TEXT}. A skipped image is assigned to other people. Masks have the same size as the image. People do
not see each other's answers. A rejected answer is sent back to its annotator with a comment, and the next mask is a new
revision. A reviewer can also draw a correction. It replaces the corrected revision and is reviewed like any other
answer.

Honeypots are images whose mask is known from the dataset. Each person gets one honeypot in every `honeypot_every`
images, at a position that is drawn at random for each person. Consensus and agreement do not include honeypots.
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
AHEAD = 2  # number of images assigned at a time: the image on screen and the next image, which is preloaded
LONGEST_REASON = 500  # maximum length in characters


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
    """Open the study with this name for these images, or create it.

    Args:
        store: Store of studies.
        name: Name of the study.
        images: Images to annotate.
        fingerprint: Fingerprint of the dataset.
        growing: What to do if the settings or images differ from those of the existing study. If True, add a new
            revision to the study (`growing.py`). If False, raise an error.
        **settings: Settings that differ from `DEFAULTS` or from the existing study. `annotators`: people per image.
            `per_person`: maximum number of images per person, or 0 for no limit. `only_missing`: whether to skip images
            that have a mask. `honeypots`: number of honeypots. `honeypot_every`: images per honeypot. `practice`:
            number of practice images. `practice_iou`: minimum IoU for a practice answer. `reviewers`: number of people
            who must accept an answer. `seed`: seed for the order of images. `foreground`: which pixels of the dataset's
            masks belong to the object, as for `read_mask`.

    Raises:
        UserError: Settings are invalid or differ from those of the existing study.
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
                f"{store.text} contains a study '{name}' with a different {different}; use the same settings to resume "
                "it, --grow to add people or images, or a different --name"
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
    """Return the configuration of a new study, in which `DEFAULTS` replace missing settings.

    Raises:
        UserError: There are too few images with a mask for honeypots and practice.
    """
    settings = {**DEFAULTS, **settings}
    wanted = settings["honeypots"], settings["practice"], settings["seed"], settings.get("foreground", "")
    pots, practice = choose_known(images, *wanted)
    return {"settings": settings, "honeypots": pots, "practice": practice, "images": len(images.units)}


def choose_known(
    images: StudyImages, honeypots: int, practice: int, seed: int, foreground: str = ""
) -> tuple[list[str], list[str]]:
    """Draw (honeypots, practice images) at random from the units for which the dataset has a mask.

    Raises:
        UserError: There are too few units with a mask.
    """
    count = honeypots + practice
    drawn: list[str] = []
    unreadable: dict[str, str] = {}
    for unit in sorted(images.with_masks(), key=lambda unit: seed_of(seed, "honeypots", unit)):
        if len(drawn) == count:
            break
        try:
            known = images.known_mask(unit, foreground)
            if known is None or not known.any():  # annotators cannot submit empty masks
                raise UnreadableError("empty mask")
            drawn.append(unit)
        except UnreadableError as error:
            unreadable[unit] = str(error)
    if unreadable:
        unit, reason = next(iter(unreadable.items()))
        complain(f"{counted(len(unreadable), 'mask')} cannot be used, such as the mask of image {unit}: {reason}")
    if len(drawn) < count:
        names = " and ".join(["honeypots"] * bool(honeypots) + ["practice images"] * bool(practice))
        raise UserError(
            f"{count} {names} need images with a mask, but the dataset has {len(drawn)} such images; to add your own "
            "masks, run `saliency-bench build folder --images DIR --masks DIR`"
        )
    return sorted(drawn[:honeypots]), drawn[honeypots:count]


@dataclass(frozen=True)
class AnswerChoice:
    """Determines which people and which answers count.

    Attributes:
        people: People to include, or () for everyone.
        without: People to exclude.
        accepted: Whether to include only answers that the required number of reviewers have accepted.
        honeypot_iou: Minimum mean IoU on the honeypots. People below this value are excluded.
        with_excluded: Whether to include people whom the owner has excluded.
        as_drawn: Whether to ignore reviewers' corrections.
    """

    people: Sequence[str] = ()
    without: Sequence[str] = ()
    accepted: bool = False
    honeypot_iou: float = 0.0
    with_excluded: bool = False
    as_drawn: bool = False


@dataclass(frozen=True)
class Annotating:
    """An annotation study over the images of a dataset."""

    study: Study
    images: StudyImages
    lease_hours: float = LEASE_HOURS

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the study."""
        return self.study.configuration["settings"]

    @property
    def honeypots(self) -> list[str]:
        """The honeypots: units that check whether people work carefully."""
        return self.study.configuration["honeypots"]

    @property
    def practice(self) -> list[str]:
        """The practice units, in the order in which people see them."""
        return self.study.configuration.get("practice", [])

    @property
    def units(self) -> list[str]:
        """Return the units to annotate. Honeypots and practice images are not included."""
        left_out = {*self.honeypots, *self.practice}
        if self.settings["only_missing"]:
            left_out |= set(self.images.with_masks())
        return [unit for unit in self.images.units if unit not in left_out]

    # for annotators

    def state(self, person: str) -> dict[str, Any]:
        """Return the data for a person's page: the progress and the next images. Practice images come first."""
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
        """Return the page data that shows a person the next practice image, or None if practice is over."""
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
        """Return the feedback on an answer: the known mask of a practice image, or None for other images."""
        if answer.unit not in self.practice:
            return None
        return feedback(answer, self._known(answer.unit), self.settings["practice_iou"])

    def _given(self, person: str) -> list[str]:
        """Return the units assigned to a person, except practice units."""
        practice = set(self.practice)
        return [unit for unit in self.places.given(person) if unit not in practice]

    def _known(self, unit: str) -> np.ndarray:
        known = self.known_mask(unit)
        assert known is not None, "honeypots and practice images have masks"
        return known

    def known_mask(self, unit: str) -> np.ndarray | None:
        """Return the dataset's mask of an image, read with the study's `foreground` setting."""
        return self.images.known_mask(unit, self.settings.get("foreground", ""))

    @cached_property
    def places(self) -> Places:
        """The study's assignments, cached in memory."""
        return Places(self.study, self.images.units)

    @property
    def _drawable(self) -> np.ndarray:
        """Return which of the units in `places.order` can be assigned, bool (N,).

        Honeypots, practice images and images that cannot be displayed cannot be assigned.
        """
        return self._shown_of(frozenset(self.images.unshown))

    @cached_property
    def _shown_of(self) -> Callable[[Set[str]], np.ndarray]:
        """Return a function that computes `_drawable`, given the set of images that cannot be displayed.

        The returned function caches its last result.
        """
        units, order = set(self.units), self.places.order
        return lru_cache(1)(lambda unshown: np.array([unit in units and unit not in unshown for unit in order], bool))

    def _left(self, person: str) -> np.ndarray:
        """Return the indices of the units that can be assigned to a person, in the order of `Places.left`."""
        return self.places.left(person, self._drawable, self.settings["annotators"], self.lease_hours)

    def _total(self, person: str) -> int:
        """Return the total number of images that a person will get if no further images are assigned to other people.

        The number includes the honeypots that `_waiting` will insert.
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
        """Return up to `AHEAD` units that a person has not answered yet. If necessary, new units are assigned."""
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
        """Return the honeypot for the next position in a person's order, or None if none is due there."""
        left = [unit for unit in self.honeypots if unit not in given]
        if not left or not self._is_honeypot_due(person, len(given)):
            return None
        return min(left, key=lambda unit: seed_of(self.study.seed, person, unit))

    def _is_honeypot_due(self, person: str, place: int) -> bool:
        """Return whether a position in a person's order is the one at which the honeypot of its block is due."""
        every = self.settings["honeypot_every"]
        block, at = divmod(place, every)
        return at == seed_of(self.study.seed, "honeypot", person, block) % every

    def _task(self, unit: str, person: str | None = None, comment: str | None = None) -> dict[str, Any]:
        """Return an image's data for the page.

        If the image was sent back, the data include the answer and the comment.
        """
        task: dict[str, Any] = {"unit": unit, "label": self.images.label(unit)}
        try:
            shown = self.images.shown(unit)
            task |= {"height": shown.height, "width": shown.width}
        except UnreadableError as error:  # the person can only skip this image
            task |= {"height": 1, "width": 1, "error": str(error)}
        if person is not None:
            task |= {"comment": comment, "again": True} | self.last_answer(person, unit)
        return task

    def last_answer(self, person: str, unit: str) -> dict[str, Any]:
        """Return the payload and run lengths of a person's last answer to a unit, or {} if there is none."""
        answers = self.study.answers(person, unit)
        if not answers:
            return {}
        pixels = answers[0].pixels
        return answers[0].payload | {"runs": None if pixels is None else runs_of(pixels)}

    def task_again(self, person: str, unit: str) -> dict[str, Any]:
        """Return the data for an image that was already answered, so that the person can correct the answer."""
        self._check_given(person, unit)
        return self._task(unit, person, self.places.sent_back(person).get(unit))

    def _check_given(self, person: str, unit: str) -> None:
        if not self.places.is_given(person, unit):
            raise UserError("this image is not assigned to you; reload the page")

    def save(self, person: str, sent: dict[str, Any]) -> Answer:
        """Store an answer from a person's page.

        Raises:
            UserError: The answer is invalid for the image.
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
        """Return whether a person may see an image. Annotators may see only images assigned to them."""
        if unit not in self.images.positions:
            return False
        return person.role == "reviewer" or self.places.is_given(person.name, unit)

    # for reviewers

    def to_review(self) -> list[Answer]:
        """Return the answers that need a review, without their masks. The oldest answer comes first.

        Only each person's latest answer to a unit counts. Honeypots, skips and answers given by excluded people need no
        review.

        An answer needs reviews until it is sent back or until `reviewers` people have accepted it. A correction counts
        as accepted by the reviewer who drew it.
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
        """Return the data for a reviewer's page: the next answers to review, without the names of their authors.

        The answers are reserved for this reviewer until they are reviewed or the lease ends. No reviewer reviews the
        same answer twice.
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
        """Return what is to be reviewed: a person's answer, or the correction that replaces the answer."""
        if (correction := corrections.get(answer.id)) is None:
            return self.last_answer(answer.person, answer.unit)
        pixels = corrected(answer, correction).pixels
        return correction.payload | {"runs": None if pixels is None else runs_of(pixels), "corrected": True}

    def others(self, number: object) -> dict[str, Any]:
        """For the reviewer of an answer, return the consensus of all other people who annotated the same image.

        Raises:
            UserError: The answer does not exist or does not need a review.
        """
        reviewed = self._to_be_reviewed(number)
        answers = self.counted().get(reviewed.unit, [])
        masks = [self.pixels(answer) for answer in answers if answer.person != reviewed.person]
        return {"people": len(masks), "runs": runs_of(consensus(masks)) if masks else None}

    def _to_be_reviewed(self, number: object) -> Answer:
        for answer in self.to_review():
            if answer.id == number:
                return answer
        raise UserError("this answer no longer needs a review; reload the page")

    def correct(self, reviewer: str, sent: dict[str, Any]) -> None:
        """Store a reviewer's correction of an answer: a mask, or "no region".

        Raises:
            UserError: The correction is not a mask of the image, or the answer does not need a review.
        """
        number, pots = sent.get("answer"), {*self.honeypots, *self.practice}
        answer = next((entry for entry in self.study.answers(masks=False) if entry.id == number), None)
        if answer is None or answer.unit in pots:
            raise UserError("this answer does not need a review, or its author has changed it; reload the page")
        if (kind := sent.get("kind")) not in ("mask", "no_region"):
            raise UserError("the kind of a correction must be mask or no_region")
        mask = self._draw(answer.unit, sent) if kind == "mask" else None
        payload = {"kind": kind, "corrects": {"person": answer.person, "revision": answer.revision}}
        request = str(sent.get("request"))
        self.study.correct(answer.id, reviewer, request, payload, mask=mask, seconds=sent.get("seconds"))

    def _draw(self, unit: str, sent: dict[str, Any]) -> np.ndarray:
        """Decode a mask that a page sent.

        Raises:
            UserError: The page did not send a mask, or the mask is empty.
        """
        mask = mask_of(sent.get("runs") or [], *self.images.size(unit))
        if not mask.any():
            raise UserError("nothing is marked; mark the region, or choose 'No region'")
        return mask

    # results

    def counted(self, choice: "AnswerChoice | None" = None) -> dict[str, list[Answer]]:
        """Return {unit: answers that count}.

        Raises:
            UserError: A selected person does not exist, or no answer remains.
        """
        choice = choice or AnswerChoice()
        if strangers := (set(choice.people) | set(choice.without)) - set(self.study.people()) - self._answerers():
            raise UserError(
                f"study {self.study.name} has no person {min(strangers)}; to list the people, run the command with "
                "--report"
            )
        without = set(choice.without)
        if choice.honeypot_iou:
            scores = self.honeypot_scores()
            without |= {person for person, ious in scores.items() if np.mean(ious) < choice.honeypot_iou}
        options = {name: getattr(choice, name) for name in ("accepted", "with_excluded", "as_drawn")}
        return counted_answers(self.study, choice.people, without, **options)

    def _answerers(self) -> set[str]:
        """Return everyone who has an answer. Some of these people never joined, because their masks were imported."""
        return {answer.person for answer in self.study.answers(masks=False)}

    def honeypot_scores(self) -> dict[str, list[float]]:
        """Return {person: IoUs between the first answer to each honeypot and the known mask}.

        Skipped honeypots are excluded.
        """
        scores: dict[str, list[float]] = {}
        for pot in self.honeypots:
            known = self._known(pot)
            for answer in self.study.answers(unit=pot, last=False):
                if answer.revision == 1 and answer.payload["kind"] != "skip":
                    scores.setdefault(answer.person, []).append(iou(self.pixels(answer), known))
        return scores

    def pixels(self, answer: Answer) -> np.ndarray:
        """Return the pixels that an answer marks, bool (H, W). The answer "no region" marks no pixels."""
        pixels = answer.pixels
        return np.zeros(self.images.size(answer.unit), bool) if pixels is None else pixels


def reviewers_needed(study: Study) -> int:
    """Return the number of people who must accept an answer."""
    return study.configuration["settings"].get("reviewers", 1)


def _piece_of_review(answer: int, number: int) -> str:
    """Return a name for what is reviewed. Number 1 is the answer, and numbers 2, 3, ... are its corrections."""
    return f"review {answer}" if number == 1 else f"review {answer}, correction {number - 1}"


def _opinions(names: Mapping[int, Sequence[set[str]]], answer: Answer) -> set[str]:
    """Return the people who have reviewed the last correction of an answer or, if it has none, the answer itself."""
    rounds = names.get(answer.id)
    return rounds[-1] if rounds else set()


def corrected(answer: Answer, correction: Correction) -> Answer:
    """Return a copy of an answer that has the content of a reviewer's correction."""
    return replace(answer, payload=correction.payload, mask=correction.mask, corrected_by=correction.reviewer)


def _verdict(reviews: Mapping[int, Review], answer: Answer) -> str | None:
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
    """Return {unit: answers that count}: each person's last answer, unless it is a skip or was rejected.

    Honeypots and practice images are not included. A reviewer's correction replaces the annotator's answer.

    Args:
        study: An annotation study.
        people: People to include, or () for everyone.
        without: People to exclude.
        accepted: Whether to include only answers that reviewers have accepted.
        with_excluded: Whether to include people whom the owner has excluded.
        as_drawn: Whether to ignore reviewers' corrections.
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

    The answer "no region" marks no pixels.
    """
    return np.zeros(size, bool) if answer.pixels is None else answer.pixels
