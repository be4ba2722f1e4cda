"""The one retry loop for the Hub: wait if it is busy (429, 503) or the connection breaks, then try again."""

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from huggingface_hub import HfApi

from saliency_bench.errors import UserError, one_line
from saliency_bench.hub.client import token_of
from saliency_bench.hub.failures import is_from_hub, may_pass, reason, refuse, retry_after

T = TypeVar("T")
PAUSES = (2, 15, 60, 300)  # seconds, if the Hub names none; the Hub limits requests per five minutes
LONGEST_WAIT = 3600  # seconds; the limits of a day are longer than anybody waits for


def patiently(
    action: Callable[[], T],
    repo: str,
    api: HfApi,
    say: Callable[[str], object] = lambda line: None,
    pauses: Sequence[int] = PAUSES,
) -> T:
    """Call `action`, retrying while the Hub is busy. `action` must be idempotent.

    Args:
        action: a request to the Hub, or an upload that is not repeated.
        repo: repository of the request, for messages.
        api: client of the Hub.
        say: called with a line before each pause.
        pauses: successive pauses in seconds, if the Hub states none.

    Raises:
        UserError: The action fails in a way that waiting does not help, or the Hub stays busy.
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
