"""The Hub's refusals in one line that says how to mend it; no token is ever part of one."""

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from huggingface_hub import HfApi, constants, get_token
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from saliency_bench.errors import UserError

LOGIN = "log in with `hf auth login` (a token with write access), or set HF_TOKEN"


def connect() -> HfApi:
    """The client of everything that is published; `HF_ENDPOINT` and `HF_TOKEN` are its own settings."""
    return HfApi(library_name="saliency-bench")


@contextmanager
def one_line(doing: str, repo: str) -> Iterator[None]:
    """Inside, what the Hub refuses or the network loses becomes a UserError: "cannot `doing` `repo`: why; mend"."""
    try:
        yield
    except UserError:
        raise
    except (HfHubHTTPError, httpx.HTTPError, OfflineModeIsEnabled, LocalTokenNotFoundError, LocalEntryNotFoundError,
            HFValidationError, ConnectionError, TimeoutError) as error:  # fmt: skip
        line = f"cannot {doing} {repo}: {_why(error, repo)}"
        # The chain of causes would show what a server said word for word, and a server may repeat what it was sent.
        raise UserError(_without_token(line)) from None


def _why(error: Exception, repo: str) -> str:
    if isinstance(error, OfflineModeIsEnabled) or constants.is_offline_mode():
        return "HF_HUB_OFFLINE is set and it was not loaded before; unset it to reach the Hub"
    if isinstance(error, LocalTokenNotFoundError):
        return f"you are not logged in; {LOGIN}"
    if isinstance(error, HFValidationError):
        return f"that is no name of a repository; {_line(error)}"
    if isinstance(error, HfHubHTTPError) and error.response is not None:
        return _refusal(error, error.response.status_code, repo)
    return f"the Hub ({constants.ENDPOINT}) cannot be reached; check the network and start again"


def _refusal(error: HfHubHTTPError, status: int, repo: str) -> str:
    said = f" ({error.server_message})" if getattr(error, "server_message", None) else ""
    if isinstance(error, RevisionNotFoundError):
        return "it has no such revision; leave out the revision, or name a branch, tag, commit or refs/pr/N"
    if status == 401 and get_token() is None:
        return f"it does not exist, or you must log in to see it; {LOGIN}"
    if status == 401:
        return f"the Hub does not accept your token; {LOGIN}"
    if status == 403:
        return f"your token may not do this{said}; {LOGIN}, or publish elsewhere with --namespace YOUR-NAME"
    if status == 404 or isinstance(error, RepositoryNotFoundError):
        return "it does not exist, or is private; check the name, or publish elsewhere with --namespace YOUR-NAME"
    if status == 409:
        return f"somebody changed it at the same moment{said}; start again"
    if status == 429:
        wait = error.response.headers.get("Retry-After", "") if error.response is not None else ""
        pause = f"in {wait} seconds" if wait.isdecimal() else "later"
        return f"the Hub asks for fewer requests; start again {pause}"
    if status >= 500:
        return f"the Hub is in trouble (status {status}); start again later"
    return f"status {status}{said}"


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _without_token(text: str) -> str:
    token = get_token()
    return " ".join((text.replace(token, "***") if token else text).split())
