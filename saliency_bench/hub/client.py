"""Hub client: account, token and permissions. Messages never contain a token."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from huggingface_hub import HfApi, get_token
from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

import saliency_bench
from saliency_bench.hub.failures import reason

LOGIN = "not logged in: log in with `hf auth login`, or set HF_TOKEN; --dry-run needs neither"
READ_ONLY = "with this token, which only has read access"


@dataclass(frozen=True)
class Account:
    """The account that a token belongs to.

    Attributes:
        name: Name of the user.
        roles: {namespace: role}, for the user's own namespace and those of the user's organisations. A role is "admin",
            "write", "contributor" or "read".
        read_only: Whether the token has only read access.
        scopes: Namespaces and repositories that a fine-grained token may write to, or None if it may write to all.
    """

    name: str
    roles: dict[str, str]
    read_only: bool
    scopes: frozenset[str] | None

    def role(self, repo: str) -> str | None:
        """Return the account's role in a repository's namespace, or None. Case is ignored."""
        namespace = repo.partition("/")[0].casefold()
        return {name.casefold(): role for name, role in self.roles.items()}.get(namespace)

    def refusal(self, repo: str) -> str | None:
        """Return the reason why the account may not write to a repository, or None if it may.

        The repository need not exist yet.
        """
        namespace, role = repo.partition("/")[0], self.role(repo)
        if role is None:
            return f"{self.name} may not write to {repo}, which belongs to {namespace}"
        if self.read_only:
            return f"{self.name} may not write to {repo} {READ_ONLY}"
        if role == "read":
            return f"{self.name} may not write to {repo}, because the account has only read access to {namespace}"
        if self.scopes is not None and not {namespace, repo} & self.scopes:
            return (
                f"{self.name} may not write to {repo} with this fine-grained token, which does not include {namespace}"
            )
        return None


def account(api: HfApi) -> Account:
    """Return the account that the current token belongs to, as reported by the Hub.

    Errors from the Hub are raised unchanged.
    """
    info: dict[str, Any] = api.whoami(cache=True)  # the Hub limits how often this request may be sent
    token = info.get("auth", {}).get("accessToken", {})
    scoped = (token.get("fineGrained") or {}).get("scoped") if token.get("role") == "fineGrained" else None
    writing = [scope for scope in scoped or () if "repo.write" in scope.get("permissions", ())]
    orgs = {org["name"]: org.get("roleInOrg") or "write" for org in info.get("orgs", [])}
    return Account(
        info["name"], {info["name"]: "admin"} | orgs, token.get("role") == "read",
        None if scoped is None else frozenset(scope.get("entity", {}).get("name", "") for scope in writing),
    )  # fmt: skip


@dataclass(frozen=True)
class Rights:
    """Permission of an account to write to a repository.

    Attributes:
        may: Whether the account may write, or None if this is unknown.
        line: Line of text that is printed below the plan of an upload.
    """

    may: bool | None
    line: str


def rights(api: HfApi, repo: str) -> Rights:
    """Return the write permission of the current account.

    If the permission cannot be determined, no error is raised, because the Hub checks it again during the upload.
    """
    if (token := token_of(api)) is None:
        return Rights(None, "your permissions were not checked: you are not logged in")
    try:
        user = account(api)
    except Exception as error:
        return Rights(None, f"your permissions were not checked: {reason(error, repo, token)}")
    refusal = user.refusal(repo)
    return Rights(refusal is None, refusal or f"{user.name} may write to it")


def token_of(api: HfApi) -> str | None:
    """Return the token that a client sends, or None."""
    if api.token is False:
        return None
    return api.token if isinstance(api.token, str) else get_token()


def default_api() -> HfApi:
    """Return a client for the Hub at HF_ENDPOINT. It uses the token from `hf auth login` or HF_TOKEN."""
    return HfApi(library_name="saliency-bench", library_version=saliency_bench.__version__)


def shown_endpoint(api: HfApi) -> str:
    """Return the URL of the Hub, without any user name and password that HF_ENDPOINT may contain."""
    parts = urlsplit(api.endpoint)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


@contextmanager
def no_bars() -> Iterator[None]:
    """Disable the progress bars of huggingface_hub."""
    shown = not are_progress_bars_disabled()
    disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            enable_progress_bars()
