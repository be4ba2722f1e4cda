"""Check that a call raises UserError."""

import pytest

from saliency_bench.errors import UserError


def refused(words, call, *args, **options):
    """Check that a call raises UserError with one line that matches these words; return the line."""
    with pytest.raises(UserError, match=words) as error:
        call(*args, **options)
    assert "\n" not in str(error.value)
    return str(error.value)
