"""The assessment protocol: assign maps to people, validate requests, and store answers.

A unit is a map, written as JSON `[image id, explainer]`. The explainer "human mask" stands for the mask of the dataset.
A person rates all maps of an image in a random order that is stored in the assignments. An answer is {"place": 2,
"ratings": {"complete": 4, ...}}, where place is the position of the map among the maps of the image, starting at 0. If
a person changes the ratings of a map, this is a new revision.

Attention checks use separate images. They are the same for everyone, and their ratings do not count. One of the maps
(the unit `[image id, null]`) belongs to a different image but is displayed over the image of the check. An attentive
person gives this map the lowest ratings.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from saliency_bench.errors import UserError
from saliency_bench.studies.assess.questions import CLASS
from saliency_bench.studies.attention_checks import insert_checks
from saliency_bench.studies.owner_actions import excluded
from saliency_bench.studies.run_images import HUMAN, RunImages, pair_of, unit_of
from saliency_bench.studies.study import LEASE_HOURS, Assignment, Study
from saliency_bench.utils.overlays import overlay
from saliency_bench.utils.pictures import png
from saliency_bench.utils.seeds import seed_of

KIND = "assess"
MAPS = 5  # maximum number of maps per image
RATERS, PER_PERSON, CHECKS = 3, 20, 1


def configuration(
    images: RunImages,
    questions: dict[str, Any],
    *,
    raters: int = RATERS,
    per_person: int = PER_PERSON,
    checks: int = CHECKS,
    limit: int | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Return the configuration with which a study is stored.

    If `images` contains masks drawn by people, these masks are rated too.

    Args:
        images: Images of a run.
        questions: Result of `read_questions`.
        raters: Number of people per map.
        per_person: Number of images per person.
        checks: Number of attention checks per person.
        limit: Number of images to rate, or None for all images that are not used in checks.
        seed: Seed of all random choices.

    Raises:
        UserError: A number is out of range, or there are too few images.
    """
    for name, value in (("raters", raters), ("per_person", per_person)):
        if value < 1:
            raise UserError(f"{name} must be at least 1; got {value}")
    with_masks = images.masks is not None
    if not 2 <= len(images.maps) + with_masks <= MAPS:
        included = " including the human mask" if with_masks else ""
        raise UserError(f"people can compare 2 to {MAPS} maps of an image, but there are "
                        f"{len(images.maps) + with_masks}{included}; select explainers with --explainers")  # fmt: skip
    drawn = sorted(_rateable(images), key=lambda image: seed_of(seed, "images", image))
    most = len(drawn) - checks
    if checks < 0 or most < 1:
        raise UserError(
            f"{len(drawn)} images are too few: at least one image to rate and {checks} for attention checks are needed"
        )
    if limit is not None and not 1 <= limit <= most:
        raise UserError(f"images must be a number from 1 to {most}; got {limit}")
    shown = most if limit is None else limit
    return {
        "run": images.run,
        "explainers": list(images.maps),
        "masks": with_masks,
        "images": drawn[:shown],
        "checks": {image: _stranger(images, image, drawn, seed) for image in drawn[shown : shown + checks]},
        "groups": {image: group for image in drawn[:shown] if (group := images.groups[image]) is not None},
        "raters": raters,
        "per_person": per_person,
        **questions,
    }


def _rateable(images: RunImages) -> list[str]:
    """Return the images with maps that explain one class.

    If masks are rated, the images must also have a mask of this class.
    """
    if not images.explained:
        raise UserError(
            "people can rate only maps that explain one class, but this run's target is neither 'label' nor "
            "'predicted'; specify a different run"
        )
    if images.masks is None:
        return list(images.explained)
    with_mask = [image for image in images.masks if images.explained.get(image) == images.labels[image]]
    if not with_mask:
        raise UserError("no image of the run has a mask of the class that its maps explain; remove --with-masks")
    return with_mask


def _stranger(images: RunImages, image: str, drawn: Sequence[str], seed: int) -> str:
    """Return an image whose map can be shown over `image` in an attention check, preferably of a different class."""
    others = [other for other in drawn if other != image]
    return min(
        others, key=lambda other: (images.explained[other] == images.explained[image], seed_of(seed, image, other))
    )


@dataclass(frozen=True)
class Assess:
    """An assessment study over the images of a run. Methods are thread-safe."""

    study: Study
    images: RunImages
    lease_hours: float = LEASE_HOURS

    # questions

    def given(self, person: str) -> list[list[Assignment]]:
        """Return the maps that a person rates, grouped by image. On the first call, they are assigned."""
        assigned = self.study.assignments(person) or self.study.give(person, lambda all_of: self._draw(person, all_of))
        return [list(maps) for _, maps in groupby(assigned, key=lambda assignment: pair_of(assignment.unit)[0])]

    def _draw(self, person: str, everyone: list[Assignment]) -> list[str]:
        """Select maps for a person: of the images with the fewest raters, and of the attention checks.

        At most `raters` people rate an image.
        """
        settings, seed = self.study.configuration, self.study.seed
        active, without = self.study.active(self.lease_hours), excluded(self.study)
        everyone = [entry for entry in everyone if entry.person not in without]
        rated = {(entry.person, entry.unit) for entry in self.study.answers(masks=False)}
        raters: dict[str, int] = dict.fromkeys(settings["images"], 0)
        by_image = groupby(everyone, key=lambda entry: (entry.person, pair_of(entry.unit)[0]))
        for (_, image), maps in by_image:
            if image in raters:
                raters[image] += all(entry.person in active or (entry.person, entry.unit) in rated for entry in maps)
        left = [image for image in settings["images"] if raters[image] < settings["raters"]]
        left.sort(key=lambda image: (raters[image], seed_of(seed, "order", image)))
        images = insert_checks(left[: settings["per_person"]], settings["checks"], person, seed) if left else []
        return [unit for image in images for unit in self._units(image, person)]

    def _units(self, image: str, person: str) -> list[str]:
        """Return the maps of an image in the order in which this person sees them.

        In a check, one map belongs to a different image.
        """
        settings, seed = self.study.configuration, self.study.seed
        names: list[str | None] = [*settings["explainers"], *([HUMAN] if settings["masks"] else [])]
        if image in settings["checks"]:
            names[seed_of(seed, "stranger", image) % len(names)] = None
        return sorted((unit_of(image, name) for name in names), key=lambda unit: seed_of(seed, person, unit))

    def state(self, person: str) -> dict[str, Any]:
        """Return the data for a person's page: the first image that has an unrated map, and the existing ratings."""
        given = self.given(person)
        about = {"total": len(given), "scale": self.study.configuration["scale"]}
        ratings = self._ratings(person)
        for number, maps in enumerate(given):
            if any(rated_map.unit not in ratings for rated_map in maps):
                explained = self.images.explained[pair_of(maps[0].unit)[0]]
                return about | {
                    "done": number,
                    "questions": {
                        key: text.replace(CLASS, explained)
                        for key, text in self.study.configuration["questions"].items()
                    },
                    "class": explained,
                    "maps": [
                        {"place": rated_map.position, "ratings": ratings.get(rated_map.unit)} for rated_map in maps
                    ],
                }
        return about | {"done": len(given), "questions": {}, "maps": []}

    def _ratings(self, person: str) -> dict[str, dict[str, int]]:
        """Return {unit: the person's ratings}."""
        return {answer.unit: answer.payload["ratings"] for answer in self.study.answers(person, masks=False)}

    def _show(self, person: str, place: object) -> tuple[str, int]:
        """Return (unit, position among the maps of its image) for a position in the person's order.

        Raises:
            UserError: The person has not reached this position yet.
        """
        ratings = self._ratings(person)
        for maps in self.given(person):
            for number, assignment in enumerate(maps):
                if assignment.position == place and type(place) is int:
                    return assignment.unit, number
            if any(assignment.unit not in ratings for assignment in maps):
                break
        raise UserError("you have not reached this map yet; reload the page")

    def picture(self, person: str, place: object, *, plain: bool = False) -> bytes:
        """Return a PNG of the image with the map as an overlay, or of only the image if `plain` is true.

        Raises:
            UserError: The person has not reached this position yet.
        """
        image, name = pair_of(self._show(person, place)[0])
        if plain:
            return png(self.images.frame(image))
        if name is None:
            explainers = self.study.configuration["explainers"]
            name = explainers[seed_of(self.study.seed, "explainer", image) % len(explainers)]
            image = self.study.configuration["checks"][image]
        # Display only evidence for the class, so that all maps have the same colours. Two colours would reveal methods
        # with signed maps.
        values = np.maximum(self.images.map(image, name), 0)
        return png(np.asarray(overlay(self.images.frame(image), values)))

    # answers

    def save(self, person: str, sent: dict[str, Any]) -> None:
        """Store the ratings of a map. A repeated request is stored only once.

        Raises:
            UserError: The ratings are invalid, or the person has not reached this map yet.
        """
        unit, number = self._show(person, sent.get("place"))
        ratings, settings = sent.get("ratings"), self.study.configuration
        if not isinstance(ratings, dict) or ratings.keys() != settings["questions"].keys():
            raise UserError(f"ratings must contain one number for each of {', '.join(settings['questions'])}")
        levels = len(settings["scale"])
        if not all(type(rating) is int and 1 <= rating <= levels for rating in ratings.values()):
            raise UserError(f"a rating must be a whole number from 1 to {levels}")
        request = sent.get("request")
        if not isinstance(request, str) or not 16 <= len(request) <= 100:
            raise UserError("request must be a random string of 16 to 100 characters")
        payload = {"place": number, "ratings": {key: ratings[key] for key in settings["questions"]}}
        self.study.record(person, unit, f"{self.study.id} {person} {request}", payload, seconds=sent.get("seconds"))
