"""Attention checks: where they are shown to a person, who failed one, and how results report it."""

from collections.abc import Iterable, Mapping, Sequence

from saliency_bench.utils.seeds import seed_of

Checks = Mapping[str, Sequence[bool]]  # {person: whether each attention check was answered correctly}


def insert_checks(units: Iterable[str], checks: Iterable[str], person: str, seed: int) -> list[str]:
    """The units in their order, with the checks at positions that depend on seed and person."""
    found = list(units)
    for check in checks:
        found.insert(seed_of(seed, "place", person, check) % (len(found) + 1), check)
    return found


def failed(checks: Checks) -> list[str]:
    """People with a wrong answer to an attention check."""
    return sorted(person for person, own in checks.items() if not all(own))


def note(checks: Checks, what: str, without_failed: bool) -> list[str]:
    """The line of results about attention checks; [] where nobody was asked one. what: of their answers, "ratings"."""
    if not checks:
        return []
    number = len(failed(checks))
    counted = "are left out" if without_failed else "count; --without-failed leaves them out"
    line = f"{number} of {len(checks)} people failed an attention check"
    return [f"{line}: their {what} {counted}." if number else f"{line}."]
