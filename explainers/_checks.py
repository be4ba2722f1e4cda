"""Checks of options that several explainers share."""

from saliency_bench.errors import UserError


def check_batch_size(name: str, batch_size: int | None) -> None:
    """Raise UserError if a batch size is below 1; None is allowed."""
    if batch_size is not None:
        check_count(name, "batch_size", batch_size)


def check_count(name: str, option: str, count: int) -> None:
    """Raise UserError if the count that is given for an option is below 1."""
    if count < 1:
        raise UserError(f"{option} of {name} must be at least 1; got {count}")


def check_reliability(name: str, reliability: float | None) -> None:
    """Raise UserError if a required reliability is not between 0 and 1; None is allowed."""
    if reliability is not None and not 0 < reliability < 1:
        raise UserError(f"reliability of {name} must be between 0 and 1, such as 0.9; got {reliability}")
