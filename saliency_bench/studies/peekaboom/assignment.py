"""Assign images and explainers to people with Latin squares, so that nobody sees the same image with two explainers."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from saliency_bench.studies.attention_checks import insert_checks
from saliency_bench.utils.seeds import seed_of

Pair = tuple[str, str]  # (image id, explainer)


def sheets(
    images: Sequence[str], explainers: Sequence[str], judgements: int, pairs: int, seed: int
) -> list[list[Pair]]:
    """Return the sheet (list of pairs) of each person, in the order in which people join.

    There are `judgements` rounds. In each round, the images are shuffled and divided into blocks of nearly equal size,
    with at most `pairs` images each. k people judge each block: person s sees image i with explainer (i + s) mod k, so
    the k people are the rows of a Latin square. Each round contains every pair of image and explainer once, so each
    pair is judged `judgements` times. An image occurs at most once on a sheet. The explainers on a sheet get equally
    many images, up to a difference of one.
    """
    dealt: list[list[Pair]] = []
    for number in range(judgements):
        shuffled = sorted(images, key=lambda image: seed_of(seed, "round", number, image))
        order = sorted(explainers, key=lambda name: seed_of(seed, "explainers", number, name))
        count = -(-len(images) // pairs)
        for shift in range(len(order)):
            for block in range(count):
                of_block = shuffled[block::count]
                dealt.append([(image, order[(i + shift) % len(order)]) for i, image in enumerate(of_block)])
    return dealt


def leftovers(missing: Mapping[Pair, int], pairs: int, seed: int) -> list[Pair]:
    """Return a sheet with pairs whose judges left before judging them.

    Images with the most missing judgements come first. Each image is paired with the explainer that lacks the most
    judgements.
    """
    by_image: dict[str, dict[str, int]] = {}
    for (image, explainer), count in missing.items():
        if count > 0:
            by_image.setdefault(image, {})[explainer] = count
    order = sorted(by_image, key=lambda image: (-sum(by_image[image].values()), seed_of(seed, "left", image)))
    used: Counter[str] = Counter()
    sheet: list[Pair] = []
    for image in order[:pairs]:
        lacking = by_image[image]
        explainer = min(lacking, key=lambda name: (-lacking[name], used[name], seed_of(seed, image, name)))
        used[explainer] += 1
        sheet.append((image, explainer))
    return sheet


def with_checks(sheet: Iterable[str], checks: Iterable[str], person: str, seed: int) -> list[str]:
    """Shuffle the units on a person's sheet, and insert the attention checks at random positions."""
    units = sorted(sheet, key=lambda unit: seed_of(seed, "order", person, unit))
    return insert_checks(units, checks, person, seed)
