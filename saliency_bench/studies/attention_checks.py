"""Attention checks: insert checks, determine which people are excluded, and describe the exclusions in the results."""

from collections.abc import Iterable, Mapping, Sequence

from saliency_bench.errors import UserError
from saliency_bench.utils.seeds import seed_of

Checks = Mapping[str, Sequence[bool]]  # {person: whether each attention check was answered correctly}


def insert_checks(units: Iterable[str], checks: Iterable[str], person: str, seed: int) -> list[str]:
    """Insert attention checks into a list of units, at positions that depend on the seed and the person."""
    mixed = list(units)
    for check in checks:
        mixed.insert(seed_of(seed, "place", person, check) % (len(mixed) + 1), check)
    return mixed


def failed(checks: Checks) -> list[str]:
    """Return the people who answered at least one attention check incorrectly."""
    return sorted(person for person, right in checks.items() if not all(right))


def dropped(checks: Checks, people: Iterable[str], with_failed: bool, exclude: Iterable[str]) -> set[str]:
    """Return the people whose answers do not count.

    These are the people in `exclude` and, unless `with_failed`, the people who failed an attention check.

    Args:
        checks: {person: whether each check was answered correctly}.
        people: All people who answered.
        with_failed: Whether to include people who failed a check.
        exclude: People to exclude.

    Raises:
        UserError: An excluded person does not exist.
    """
    if missing := set(exclude) - set(people):
        raise UserError(
            f"--exclude {min(missing)}: no person with this name has answered; use `results` to list the people"
        )
    return set(exclude) | (set() if with_failed else set(failed(checks)))


def note(checks: Checks, answers: str, with_failed: bool, exclude: Iterable[str]) -> list[str]:
    """Describe the attention checks and the excluded people in lines for the results.

    Args:
        checks: {person: whether each check was answered correctly}.
        answers: Noun that refers to the answers, such as "ratings".
        with_failed: Whether answers of people who failed a check are included.
        exclude: People whose answers are always excluded.
    """
    lines = []
    if checks:
        number = len(failed(checks))
        line = f"{number} of {len(checks)} people failed an attention check"
        counted = "are included" if with_failed else "are excluded; include them with --with-failed"
        lines.append(f"{line}: their {answers} {counted}." if number else f"{line}.")
    if exclude:
        lines.append(f"Excluded by name: {', '.join(sorted(exclude))}.")
    return lines


def nothing(name: str, answers: str, without: Iterable[str], any_given: bool) -> UserError:
    """Return the error that is raised if no answer in a study counts."""
    if any_given and without:
        return UserError(
            f"study {name}: everyone who answered has failed an attention check or is excluded; include people who "
            "failed with --with-failed"
        )
    return UserError(f"study {name} has no {answers} yet")
