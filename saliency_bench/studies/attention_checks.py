"""Attention checks: their positions, the people who are left out, and their report in the results."""

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
    """Return the people with a wrong answer to an attention check."""
    return sorted(person for person, right in checks.items() if not all(right))


def dropped(checks: Checks, people: Iterable[str], with_failed: bool, exclude: Iterable[str]) -> set[str]:
    """Return the people whose answers do not count: excluded and, unless `with_failed`, those who failed a check.

    Args:
        checks: {person: whether each check was answered correctly}.
        people: all people who answered.
        with_failed: whether people who failed count.
        exclude: people to exclude.

    Raises:
        UserError: An excluded person does not exist.
    """
    if missing := set(exclude) - set(people):
        raise UserError(f"--exclude {min(missing)}: nobody of this name has answered; `results` lists the people")
    return set(exclude) | (set() if with_failed else set(failed(checks)))


def note(checks: Checks, answers: str, with_failed: bool, exclude: Iterable[str]) -> list[str]:
    """Return the lines of the results about attention checks and excluded people.

    Args:
        checks: {person: whether each check was answered correctly}.
        answers: noun for the answers, such as "ratings".
        with_failed: whether answers of people who failed count.
        exclude: people whose answers are left out in any case.
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
    """Return the error for a study without a counted answer.

    Args:
        name: name of the study.
        answers: noun for the answers, such as "rating".
        without: people whose answers are left out.
        any_given: whether these people have answered at all.
    """
    if any_given and without:
        return UserError(f"study {name}: all people failed an attention check; --with-failed counts them")
    return UserError(f"study {name} has no {answers} yet")
