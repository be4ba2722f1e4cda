"""A refusal, as a user reads it."""

import pytest

from saliency_bench.errors import UserError


def refused(words, call, *args, **options):
    """The one line with which a call ends, in which these words match."""
    with pytest.raises(UserError, match=words) as error:
        call(*args, **options)
    assert "\n" not in str(error.value)
    return str(error.value)
