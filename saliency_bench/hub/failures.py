"""Convert Hub errors and network errors to one readable line.

The line never contains the token, although a server may include it in its response.
"""

from collections.abc import Iterator
from typing import NoReturn

from huggingface_hub.errors import OfflineModeIsEnabled
from huggingface_hub.utils import parse_ratelimit_headers

from saliency_bench.errors import UserError, one_line

PASSING = (408, 412, 429, 500, 502, 503, 504)  # HTTP status codes of requests that may succeed when retried
NETWORK = ("httpx", "httpx2", "httpcore", "requests", "urllib3")  # HTTP libraries that huggingface_hub may use


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status of an error or of its cause, or None if neither has one."""
    for item in _chain(error):
        status = getattr(getattr(item, "response", None), "status_code", None)
        if isinstance(status, int):
            return status
    return None


def is_network_error(error: BaseException) -> bool:
    """Return whether an error means that the network failed, and not that the Hub responded with an error."""
    return status_of(error) is None and any(
        isinstance(item, ConnectionError | TimeoutError) or type(item).__module__.partition(".")[0] in NETWORK
        for item in _chain(error)
    )


def may_pass(error: BaseException) -> bool:
    """Return whether repeating the failed request could succeed."""
    return not _is_offline(error) and (status_of(error) in PASSING or is_network_error(error))


def is_from_hub(error: BaseException) -> bool:
    """Return whether an error is a response from the Hub, or means that the Hub did not respond."""
    return status_of(error) is not None or is_network_error(error) or _is_offline(error)


def retry_after(error: BaseException) -> int | None:
    """Return the number of seconds that the Hub asks clients to wait, or None if it does not state a number."""
    for item in _chain(error):
        headers = getattr(getattr(item, "response", None), "headers", {})
        if (seconds := headers.get("Retry-After", "")).isdigit():
            return int(seconds)
        if status_of(item) == 429 and (limit := parse_ratelimit_headers(headers)):
            return limit.reset_in_seconds
    return None


def refuse(error: BaseException, repo: str, token: str | None) -> NoReturn:
    """Raise a UserError that names the fix. `repo` is the repository of the failed request.

    The original error remains the cause, so that `--debug` can show it, unless it contains the token.
    """
    again = "; nothing is lost: run the same command again" if may_pass(error) else ""
    holds_token = token and any(token in str(item) for item in _chain(error))
    raise UserError(reason(error, repo, token) + again) from (None if holds_token else error)


def reason(error: BaseException, repo: str, token: str | None) -> str:
    """Return a description of an error. It does not contain the token."""
    line = _reason(error, repo)
    return line.replace(token, "***") if token else line


def _reason(error: BaseException, repo: str) -> str:
    status, wait = status_of(error), retry_after(error)
    if status == 403 and _was_reading(error):
        return f"this account may not read {repo} (403): request access on its page, or use a different token"
    lines = {
        401: "the Hub rejects the credentials (401): log in with `hf auth login`, or set HF_TOKEN to a valid token",
        403: f"this account may not write to {repo} (403): use --namespace YOUR-NAME, or a token with write access",
        404: f"the Hub has no repository {repo} that this account can read (404): check the name and the token",
        409: f"the Hub reports a conflict in {repo} (409): {_server_message(error)}; resolve it and try again",
        412: f"{repo} was changed by someone else in the meantime (412)",
        429: f"too many requests to the Hub (429): wait {f'{wait} s' if wait else 'a while'}",
    }
    if status is not None:
        return lines.get(status, f"the Hub returned status {status} for {repo} ({_server_message(error)})")
    if _is_offline(error):
        return "HF_HUB_OFFLINE is set, so the Hub is not contacted; unset this variable and try again"
    if is_network_error(error):
        return "the Hub cannot be reached, or the connection broke"
    return f"{repo}: {one_line(error)}"


def _is_offline(error: BaseException) -> bool:
    """Return whether no request was sent because HF_HUB_OFFLINE is set."""
    return any(isinstance(item, OfflineModeIsEnabled) for item in _chain(error))


def _was_reading(error: BaseException) -> bool:
    responses = (getattr(item, "response", None) for item in _chain(error))
    return any(response.request.method in ("GET", "HEAD") for response in responses if response is not None)


def _server_message(error: BaseException) -> str:
    for item in _chain(error):
        if message := getattr(item, "server_message", None):
            return one_line(message)
    return "no reason given"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
