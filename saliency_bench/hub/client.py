"""Who asks the Hub, and what can go wrong on the way, in one line each; no line ever holds a token."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from huggingface_hub import HfApi, get_token
from huggingface_hub.errors import OfflineModeIsEnabled
from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

import saliency_bench
from saliency_bench.errors import UserError

PASSING = (408, 412, 429, 500, 502, 503, 504)  # may be gone when asked again
NETWORK = ("httpx", "httpx2", "httpcore", "requests", "urllib3")  # libraries that huggingface_hub speaks HTTP with
LOGIN = "not logged in: log in with `hf auth login`, or set HF_TOKEN; --dry-run needs neither"


@dataclass(frozen=True)
class Account:
    """Whom a token speaks for.

    name        of the user
    roles       {namespace: role}: of the user and the organisations, as "admin", "write", "contributor" or "read"
    read_only   whether the token may only read
    scopes      of a fine-grained token the namespaces and repositories that it may write to; None: all
    """

    name: str
    roles: dict[str, str]
    read_only: bool
    scopes: frozenset[str] | None

    def role(self, repo: str) -> str | None:
        """In the namespace of a repository, in whatever case it is written; None for a stranger."""
        namespace = repo.partition("/")[0].casefold()
        return {name.casefold(): role for name, role in self.roles.items()}.get(namespace)

    def refusal(self, repo: str) -> str | None:
        """Why it may not write to a repository, whether that exists or not; None if it may."""
        namespace, role = repo.partition("/")[0], self.role(repo)
        if role is None:
            return f"{self.name} may not write to {repo}: it belongs to {namespace}"
        if self.read_only:
            return f"{self.name} may not write to {repo} with this token, which may only read"
        if role == "read":
            return f"{self.name} may not write to {repo}, as a member of {namespace} who may only read"
        if self.scopes is not None and not {namespace, repo} & self.scopes:
            return f"{self.name} may not write to {repo} with this fine-grained token, which does not name {namespace}"
        return None


def account(api: HfApi) -> Account:
    """Asks the Hub. Raises: what the Hub refuses."""
    told: dict[str, Any] = api.whoami()
    token = told.get("auth", {}).get("accessToken", {})
    scoped = (token.get("fineGrained") or {}).get("scoped") if token.get("role") == "fineGrained" else None
    writing = [scope for scope in scoped or () if "repo.write" in scope.get("permissions", ())]
    orgs = {org["name"]: org.get("roleInOrg") or "write" for org in told.get("orgs", [])}
    return Account(
        told["name"], {told["name"]: "admin"} | orgs, token.get("role") == "read",
        None if scoped is None else frozenset(scope.get("entity", {}).get("name", "") for scope in writing),
    )  # fmt: skip


@dataclass(frozen=True)
class Rights:
    """Whether the one who asks `may` write to a repository, None where that is not known; and that in words."""

    may: bool | None
    line: str


def rights(api: HfApi, repo: str) -> Rights:
    """Never an error: the Hub has the last word."""
    if (token := token_of(api)) is None:
        return Rights(None, "rights not checked: not logged in")
    try:
        who = account(api)
    except Exception as error:
        return Rights(None, f"rights not checked: {reason(error, repo, token)}")
    refusal = who.refusal(repo)
    return Rights(refusal is None, refusal or f"{who.name} may write to it")


def token_of(api: HfApi) -> str | None:
    if api.token is False:
        return None
    return api.token if isinstance(api.token, str) else get_token()


def client() -> HfApi:
    """With the token of `hf auth login` or HF_TOKEN, at HF_ENDPOINT."""
    return HfApi(library_name="saliency-bench", library_version=saliency_bench.__version__)


@contextmanager
def no_bars() -> Iterator[None]:
    """Inside, huggingface_hub shows no progress bars of its own."""
    shown = not are_progress_bars_disabled()
    disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            enable_progress_bars()


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
    if status == 403 and _was_reading(error):
        return f"the Hub lets this account not see {repo} (403): ask for access on its page, or use another token"
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


def _was_reading(error: BaseException) -> bool:
    """Whether what was refused was a look, and nothing that writes."""
    responses = (getattr(one, "response", None) for one in _chain(error))
    return any(response.request.method in ("GET", "HEAD") for response in responses if response is not None)


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
