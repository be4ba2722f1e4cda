"""Tests of errors for failed requests to the Hub."""

import pytest

from saliency_bench.errors import UserError
from saliency_bench.hub.failures import refuse

TOKEN = "hf_madeup"


@pytest.mark.parametrize(("text", "cause", "is_chained"), [
    ("the request failed", "no answer", True), (f"the request with {TOKEN} failed", "no answer", False),
    ("the request failed", f"the header {TOKEN}", False),
])  # fmt: skip
def test_error_that_contains_the_token_is_not_chained(text, cause, is_chained):
    error = ConnectionError(text)
    error.__cause__ = ValueError(cause)
    with pytest.raises(UserError) as refusal:
        refuse(error, "ada/things", TOKEN)
    assert refusal.value.__cause__ is (error if is_chained else None)
    assert TOKEN not in str(refusal.value)
