"""Attention checks: where they are shown to a person, whose answers are left out, and how results report it."""

from collections.abc import Iterable, Mapping, Sequence

from saliency_bench.errors import UserError
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


def dropped(checks: Checks, people: Iterable[str], with_failed: bool, exclude: Iterable[str]) -> set[str]:
    """Return the people whose answers do not count: those named, and those who failed a check unless they shall count.

    Args:
        checks: {person: whether each was right}.
        people: who may be named.
        with_failed: whether those who failed count.
        exclude: those named.

    Raises:
        UserError: Somebody is named who is not there.
    """
    if missing := set(exclude) - set(people):
        raise UserError(f"--exclude {min(missing)}: nobody of this name has answered; `results` lists the people")
    return set(exclude) | (set() if with_failed else set(failed(checks)))


def note(checks: Checks, answers: str, with_failed: bool, exclude: Iterable[str]) -> list[str]:
    """Return the lines of results about attention checks and people who were excluded.

    Args:
        checks: {person: whether each was right}.
        answers: what people gave, "ratings".
        with_failed: whether answers of people who failed count.
        exclude: people whose answers are left out anyway.
    """
    lines = []
    if checks:
        number = len(failed(checks))
        line = f"{number} of {len(checks)} people failed an attention check"
        counted = "count" if with_failed else "are left out; --with-failed counts them"
        lines.append(f"{line}: their {answers} {counted}." if number else f"{line}.")
    if exclude:
        lines.append(f"Excluded by name: {', '.join(sorted(exclude))}.")
    return lines


def nothing(name: str, answers: str, without: Iterable[str], any_given: bool) -> UserError:
    """Return the error of a study without an answer that counts.

    Args:
        name: of the study.
        answers: what people give, "rating".
        without: people whose answers are left out.
        any_given: whether these have given some.
    """
    if any_given and without:
        return UserError(f"study {name}: all people failed an attention check; --with-failed counts them")
    return UserError(f"study {name} has no {answers} yet")
