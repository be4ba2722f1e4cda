"""Attention checks: where they are shown to a person, who failed one, and how results report it."""

from collections.abc import Iterable, Mapping, Sequence

from saliency_bench.utils.seeds import seed_of

Checks = Mapping[str, Sequence[bool]]  # {person: whether each attention check was answered correctly}


def insert_checks(units: Iterable[str], checks: Iterable[str], person: str, seed: int) -> list[str]:
    """Return the units in their order, with the checks at positions that depend on seed and person."""
    mixed = list(units)
    for check in checks:
        mixed.insert(seed_of(seed, "place", person, check) % (len(mixed) + 1), check)
    return mixed


def failed(checks: Checks) -> list[str]:
    """Return people with a wrong answer to an attention check."""
    return sorted(person for person, right in checks.items() if not all(right))


def note(checks: Checks, answers: str, without_failed: bool) -> list[str]:
    """Return the line of results about attention checks; [] where nobody was asked one.

    Args:
        checks: {person: whether each was right}.
        answers: what people gave, "ratings".
        without_failed: whether those of people who failed are left out.
    """
    if not checks:
        return []
    number = len(failed(checks))
    counted = "are left out" if without_failed else "count; --without-failed leaves them out"
    line = f"{number} of {len(checks)} people failed an attention check"
    return [f"{line}: their {answers} {counted}." if number else f"{line}."]
