"""What can go wrong between here and the Hub, in one line each; no line ever holds a token."""

from collections.abc import Iterator
from typing import NoReturn

from huggingface_hub import HfApi
from huggingface_hub.errors import OfflineModeIsEnabled

import saliency_bench
from saliency_bench.errors import UserError

PASSING = (408, 412, 429, 500, 502, 503, 504)  # may be gone when asked again
NETWORK = ("httpx", "httpx2", "httpcore", "requests", "urllib3")  # libraries that huggingface_hub speaks HTTP with


def client() -> HfApi:
    """With the token of `hf auth login` or HF_TOKEN, at HF_ENDPOINT."""
    return HfApi(library_name="saliency-bench", library_version=saliency_bench.__version__)


def status_of(error: BaseException) -> int | None:
    """The HTTP status that an error, or what caused it, came with."""
    for one in _chain(error):
        status = getattr(getattr(one, "response", None), "status_code", None)
        if isinstance(status, int):
            return status
    return None


def unreached(error: BaseException) -> bool:
    """Whether the network failed, and not the Hub."""
    return status_of(error) is None and any(
        isinstance(one, ConnectionError | TimeoutError) or type(one).__module__.partition(".")[0] in NETWORK
        for one in _chain(error)
    )


def may_pass(error: BaseException) -> bool:
    """Whether asking again can help."""
    offline = any(isinstance(one, OfflineModeIsEnabled) for one in _chain(error))
    return not offline and (status_of(error) in PASSING or unreached(error))


def retry_after(error: BaseException) -> int | None:
    """Seconds to wait, where the Hub says so."""
    for one in _chain(error):
        told = getattr(getattr(one, "response", None), "headers", {}).get("Retry-After", "")
        if told.isdigit():
            return int(told)
    return None


def refuse(error: BaseException, repo: str, token: str | None) -> NoReturn:
    """Raise what to do about it as a UserError; `repo` is what was being asked for.

    Its cause is kept for `--debug`, unless that repeats the token.
    """
    again = "; nothing is lost: start the same command again" if may_pass(error) else ""
    told = UserError(reason(error, repo, token) + again)
    raise told from (None if token and any(token in str(one) for one in _chain(error)) else error)


def reason(error: BaseException, repo: str, token: str | None) -> str:
    """What went wrong, without the token, which a server may repeat."""
    line = _reason(error, repo)
    return line.replace(token, "***") if token else line


def _reason(error: BaseException, repo: str) -> str:
    status, wait = status_of(error), retry_after(error)
    lines = {
        401: "the Hub does not know who asks (401): log in with `hf auth login`, or set HF_TOKEN to a valid token",
        403: f"this account may not write to {repo} (403): give --namespace YOUR-NAME, or a token with write access",
        404: f"the Hub has no {repo} that this account can see (404): check the name, and the token",
        409: f"the Hub reports a conflict at {repo} (409): {_said(error)}; look there, then start again",
        412: f"{repo} was changed by someone else meanwhile (412)",
        429: f"too many requests to the Hub (429), it asks to wait {f'{wait} s' if wait else 'a while'}",
    }
    if status is not None:
        return lines.get(status, f"the Hub answers {status} for {repo} ({_said(error)})")
    if any(isinstance(one, OfflineModeIsEnabled) for one in _chain(error)):
        return "HF_HUB_OFFLINE is set, so nothing can be sent; unset it and start again"
    if unreached(error):
        return "the Hub cannot be reached, or the connection broke"
    return f"{repo}: {_line(error)}"


def _said(error: BaseException) -> str:
    for one in _chain(error):
        if message := getattr(one, "server_message", None):
            return _line(message)
    return "no reason given"


def _line(text: object) -> str:
    return " ".join(str(text).split())


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
