"""The peek-a-boom protocol: determine a person's current question, validate requests, and store answers.

A unit is an image and an explainer, written as JSON `[image id, explainer]`. An attention check (`[image id, null]`) is
an image that is displayed in full. Each answer is a revision of its unit, with the payload

    {"step": 1, "exposure": 0.1, "choice": "cat", "right": false}      choice: null for "I don't know"

The exposure is derived from the store: it increases by one step for each wrong answer. The request of an answer is
derived from the study, the person, the unit and the step, so an answer is stored only once, even if it is sent
repeatedly or from several tabs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np

from saliency_bench.errors import UserError
from saliency_bench.maps import top_pixels
from saliency_bench.read.statistics.exposures import SHOWN
from saliency_bench.studies.owner_actions import excluded
from saliency_bench.studies.peekaboom.assignment import Pair, leftovers, sheets, with_checks
from saliency_bench.studies.run_images import RunImages, pair_of, unit_of
from saliency_bench.studies.study import LEASE_HOURS, Answer, Assignment, Study
from saliency_bench.utils.pictures import png
from saliency_bench.utils.seeds import seed_of

KIND = "peekaboom"
FILLS = {"black": 0, "grey": 128}  # values of hidden pixels; saliency_kae and saliency_roae use black
JUDGEMENTS, PAIRS, CHOICES, CHECKS = 10, 20, 4, 2
PROTOCOLS = {"p2": {"judgements": 10, "pairs": 20, "checks": 0}}  # Lu et al. do not exclude careless people


def configuration(
    images: RunImages,
    *,
    judgements: int = JUDGEMENTS,
    pairs: int = PAIRS,
    choices: int = CHOICES,
    checks: int = CHECKS,
    strike: bool = False,
    fill: str = "black",
    limit: int | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Return the configuration with which a study is stored.

    Attention checks use images that are not judged.

    Args:
        images: Images of a run.
        judgements: Number of judgements per image and explainer.
        pairs: Number of pairs of an image and an explainer per person.
        choices: Number of labels to choose from.
        checks: Number of attention checks per person.
        strike: Whether to strike out labels that were already tried. This rewards guessing (see `chance`).
        fill: Colour of hidden pixels: black, as in saliency_kae, or grey, as in earlier versions.
        limit: Number of images to judge. They are drawn at random. If None, all images are judged except those for the
            checks.
        seed: Seed of all random choices.

    Raises:
        UserError: A number is out of range, or there are too few images.
    """
    for name, value in (("judgements", judgements), ("pairs", pairs)):
        if value < 1:
            raise UserError(f"{name} must be at least 1; got {value}")
    if not 2 <= choices <= min(len(images.classes), 9):
        most = min(len(images.classes), 9)
        raise UserError(
            f"choices must be a number from 2 to {most} (there are {len(images.classes)} classes); got {choices}"
        )
    if fill not in FILLS:
        raise UserError(f"fill must be {' or '.join(FILLS)}; got {fill}")
    if len(images.maps) < 2:
        raise UserError(f"a study must compare at least two explainers; got {len(images.maps)}")
    drawn = sorted(images.ids, key=lambda image: seed_of(seed, "images", image))
    shown = len(drawn) - checks if limit is None else limit
    if checks < 0 or not 1 <= shown <= len(drawn) - checks:
        raise UserError(
            f"{len(drawn)} images are too few: {max(shown, 1)} to judge and {checks} for attention checks are needed"
        )
    groups = {image: group for image in drawn[:shown] if (group := images.groups[image]) is not None}
    return {
        "run": images.run,
        "explainers": list(images.maps),
        "images": drawn[:shown],
        "checks": drawn[shown : shown + checks],
        "groups": groups,
        "judgements": judgements,
        "pairs": pairs,
        "choices": choices,
        "strike": strike,
        "exposures": list(SHOWN),
        **(
            {} if fill == "grey" else {"fill": fill}
        ),  # grey is omitted, so that studies of earlier versions can be resumed
    }


@dataclass(frozen=True)
class PeekaboomQuestion:
    """A person's current question.

    Attributes:
        unit: The image and the explainer, as a unit.
        place: Position in the person's order.
        step: Number of answers so far.
        tried: Labels that the person has chosen so far. None stands for "I don't know".
    """

    unit: str
    place: int
    step: int
    tried: list[str | None]

    @property
    def is_check(self) -> bool:
        """Return whether the question is an attention check."""
        return pair_of(self.unit)[1] is None


@dataclass(frozen=True)
class Peekaboom:
    """A peek-a-boom study over the images of a run. Methods are thread-safe."""

    study: Study
    images: RunImages
    lease_hours: float = LEASE_HOURS

    @property
    def exposures(self) -> list[float]:
        """The fractions of pixels that are displayed, in this order."""
        return self.study.configuration["exposures"]

    @cached_property
    def _sheets(self) -> list[list[Pair]]:
        settings = self.study.configuration
        return sheets(
            settings["images"], settings["explainers"], settings["judgements"], settings["pairs"], self.study.seed
        )

    # questions

    def given(self, person: str) -> list[Assignment]:
        """Return the units of a person. On the first call, they are assigned."""
        return self.study.assignments(person) or self.study.give(person, lambda all_of: self._draw(person, all_of))

    def _draw(self, person: str, everyone: list[Assignment]) -> list[str]:
        """Return the next sheet. If all sheets are assigned, return pairs whose judges left before judging them."""
        settings = self.study.configuration
        number = len({assignment.person for assignment in everyone})
        if number < len(self._sheets):
            sheet = self._sheets[number]
        else:
            sheet = leftovers(self._missing(everyone), settings["pairs"], self.study.seed)
        if not sheet:
            return []
        checks = [unit_of(image, None) for image in settings["checks"]]
        return with_checks([unit_of(*pair) for pair in sheet], checks, person, self.study.seed)

    def _missing(self, everyone: list[Assignment]) -> dict[Pair, int]:
        """Return {pair: number of missing judgements}. Judgements in progress do not count as missing."""
        settings = self.study.configuration
        active = self.study.active(self.lease_hours)
        ended = {key for key, steps in by_judgement(self.study.answers(last=False)).items() if self._has_ended(steps)}
        missing = {
            (image, name): settings["judgements"] for image in settings["images"] for name in settings["explainers"]
        }
        without = excluded(self.study)
        for assignment in everyone:
            if assignment.person in without:
                continue
            image, explainer = pair_of(assignment.unit)
            if explainer is not None and (assignment.person in active or (assignment.person, assignment.unit) in ended):
                missing[image, explainer] -= 1
        return missing

    def _has_ended(self, steps: Sequence[Answer]) -> bool:
        return has_ended(steps, len(self.exposures))

    def question(self, person: str) -> PeekaboomQuestion | None:
        """Return the question about a person's first unfinished unit, or None if there is none."""
        answers = by_judgement(self.study.answers(person, last=False))
        for assignment in self.given(person):
            steps = answers.get((person, assignment.unit), [])
            if not self._has_ended(steps):
                return PeekaboomQuestion(
                    assignment.unit, assignment.position, len(steps), [step.payload["choice"] for step in steps]
                )
        return None

    def exposure(self, question: PeekaboomQuestion) -> float:
        """Return the fraction of pixels that are displayed for a question."""
        return 1.0 if question.is_check else self.exposures[question.step]

    def choices(self, person: str, unit: str) -> list[str]:
        """Return the labels to choose from. One of them is correct.

        The image determines the labels. The image and the person determine their order.
        """
        image, _ = pair_of(unit)
        seed, right = self.study.seed, self.images.labels[image]
        others = [name for name in self.images.classes if name != right]
        others.sort(key=lambda name: seed_of(seed, "choices", image, name))
        labels = [right, *others[: self.study.configuration["choices"] - 1]]
        return sorted(labels, key=lambda name: seed_of(seed, "order", person, image, name))

    def state(self, person: str) -> dict[str, Any]:
        """Return the data for a person's page."""
        given, question = self.given(person), self.question(person)
        if question is None:
            return {"done": len(given), "total": len(given), "place": None}
        exposure = self.exposure(question)
        following = 0 if question.is_check else self.exposures[min(question.step + 1, len(self.exposures) - 1)]
        return {
            "done": question.place,
            "total": len(given),
            "place": question.place,
            "step": question.step,
            "exposure": exposure,
            "next": following if following > exposure else None,
            "choices": self.choices(person, question.unit),
            "tried": [choice for choice in question.tried if choice is not None],
            "strike": strikes(self.study),
        }

    def picture(self, person: str, place: object, step: object) -> bytes:
        """Return a PNG that shows the pixels that the person may see now. All other pixels have the fill colour.

        Raises:
            UserError: The person has not reached this position yet.
        """
        question = _checked(self.question(person), place, step)
        image, explainer = pair_of(question.unit)
        frame = self.images.frame(image)
        if explainer is None:
            return png(frame)
        fill = FILLS[self.study.configuration.get("fill", "grey")]
        return png(revealed(frame, self.images.map(image, explainer), self.exposure(question), fill))

    # answers

    def save(self, person: str, sent: dict[str, Any]) -> dict[str, Any]:
        """Store an answer from a person's page, unless it is already stored, and return {"right": bool}.

        Raises:
            UserError: The answer is not for the current question.
        """
        place, step, choice = (sent.get(name) for name in ("place", "step", "choice"))
        current = self.question(person)
        # Look this up after the question, because another thread may store the same answer in between.
        if "choice" in sent and (before := self._before(person, place, step)) and before["choice"] == choice:
            return {"right": before["right"]}
        question = _checked(current, place, step)
        if "choice" not in sent or (choice is not None and choice not in self.choices(person, question.unit)):
            raise UserError("choice must be one of the displayed labels, or null")
        if choice is not None and choice in question.tried and strikes(self.study):
            raise UserError("this label was already tried")
        payload = {
            "step": question.step,
            "exposure": self.exposure(question),
            "choice": choice,
            "right": choice == self.images.labels[pair_of(question.unit)[0]],
        }
        request = sha256(f"{self.study.id} {person} {question.unit} {question.step}".encode()).hexdigest()
        stored = self.study.record(person, question.unit, f"peekaboom {request}", payload, seconds=sent.get("seconds"))
        return {"right": stored.payload["right"]}

    def _before(self, person: str, place: object, step: object) -> dict[str, Any] | None:
        """Return the payload of the answer that a person gave at this position and step, or None."""
        units = [assignment.unit for assignment in self.study.assignments(person) if assignment.position == place]
        steps = self.study.answers(person, units[0], last=False) if units else []
        return next((assignment.payload for assignment in steps if assignment.payload["step"] == step), None)


def _checked(question: PeekaboomQuestion | None, place: object, step: object) -> PeekaboomQuestion:
    """Check that a request is for the current question, and return the question.

    Raises:
        UserError: The person is at a different position.
    """
    if question is None or (question.place, question.step) != (place, step) or type(step) is not int:
        raise UserError("this is not your current question; reload the page")
    return question


def revealed(frame: np.ndarray, values: np.ndarray, exposure: float, fill: int = FILLS["black"]) -> np.ndarray:
    """Return an image, uint8 (H, W, 3), that shows only the pixels with the highest values, as in saliency_kae.

    Pixels are ordered by `maps.descending`. Their number is exposure * H * W, rounded half to even. All other pixels
    have the value `fill`.
    """
    height, width = values.shape
    count = np.rint(np.array([exposure * height * width])).astype(np.int64)
    kept = top_pixels(values[None], count)[0]
    return np.where(kept[..., None], frame, np.uint8(fill))


def strikes(study: Study) -> bool:
    """Return whether labels that were already tried cannot be chosen again.

    The result is also True for studies without this setting.
    """
    return study.configuration.get("strike", True)


def by_judgement(answers: Sequence[Answer]) -> dict[tuple[str, str], list[Answer]]:
    """Return {(person, unit): answers in order}."""
    grouped: dict[tuple[str, str], list[Answer]] = {}
    for answer in answers:
        grouped.setdefault((answer.person, answer.unit), []).append(answer)
    return grouped


def has_ended(steps: Sequence[Answer], exposures: int) -> bool:
    """Return whether a judgement has ended. It ends with a correct answer, or after the entire image was displayed."""
    if not steps:
        return False
    whole = 1 if pair_of(steps[-1].unit)[1] is None else exposures
    return steps[-1].payload["right"] or len(steps) >= whole
