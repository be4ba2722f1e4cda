"""Retry requests to the Hub after a pause if the Hub is busy (429, 503) or the connection breaks."""

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from huggingface_hub import HfApi

from saliency_bench.errors import UserError, one_line
from saliency_bench.hub.client import token_of
from saliency_bench.hub.failures import is_from_hub, may_pass, reason, refuse, retry_after

T = TypeVar("T")
PAUSES = (2, 15, 60, 300)  # seconds, used if the Hub requests no pause; the Hub limits requests per five minutes
LONGEST_WAIT = 3600  # seconds; waiting for a daily limit would take too long


def patiently(
    action: Callable[[], T],
    repo: str,
    api: HfApi,
    say: Callable[[str], object] = lambda line: None,
    pauses: Sequence[int] = PAUSES,
) -> T:
    """Call `action`, retrying while the Hub is busy. `action` must be idempotent.

    Args:
        action: Request to the Hub, or upload that resumes when it is called again.
        repo: Repository of the request, for messages.
        api: `HfApi` client.
        say: Function that receives a line of text before each pause.
        pauses: Lengths of the successive pauses in seconds. A length that the Hub requests takes precedence.

    Raises:
        UserError: The action fails with an error that waiting does not fix, or the Hub remains busy.
    """
    for pause in (*pauses, None):
        try:
            return action()
        except Exception as error:
            wait = retry_after(error) or pause
            if pause is None or wait is None or wait > LONGEST_WAIT or not may_pass(error):
                if isinstance(error, UserError) or not is_from_hub(error):
                    raise
                refuse(error, repo, token_of(api))
            line = str(error) if isinstance(error, UserError) else reason(error, repo, token_of(api))
            say(f"{one_line(line.partition(';')[0])}; trying again in {wait} s")
            time.sleep(wait)
    raise AssertionError("the last attempt returns or raises")
