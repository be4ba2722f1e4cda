"""Upload files to the Hub.

The plan is shown first, only changed files are sent, and interrupted uploads can be resumed.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.utils import validate_repo_id

from saliency_bench.errors import UserError
from saliency_bench.hub.client import LOGIN, default_api, rights, shown_endpoint, token_of
from saliency_bench.hub.patience import patiently
from saliency_bench.hub.upload_plan import Publication, UploadPlan, plan_if_reachable, upload_plan


@dataclass(frozen=True)
class Published:
    """The result of `publish`.

    Attributes:
        commit: Latest commit of the repository, or None after a dry run.
        changed: Whether any file was sent.
    """

    plan: UploadPlan
    url: str
    commit: str | None
    changed: bool
    dry_run: bool

    def __str__(self) -> str:
        if self.dry_run:
            return "dry run: nothing was sent"
        return f"{'published' if self.changed else 'nothing changed'}: {self.url} (commit {self.commit})"

    def as_dict(self) -> dict[str, Any]:
        """Return the result as JSON data."""
        return self.plan.as_dict() | {
            "url": self.url,
            "commit": self.commit,
            "changed": self.changed,
            "dry_run": self.dry_run,
        }


def publish(
    publication: Publication,
    *,
    private: bool = False,
    dry_run: bool = False,
    api: HfApi | None = None,
    say: Callable[[str], object] = lambda line: None,
) -> Published:
    """Update a repository so that it contains the files of `publication`. Unchanged files are not sent.

    An interrupted upload is resumed in this call or in a later one: files that were already uploaded are not sent
    again, and all changes are made in one commit.

    Args:
        publication: Intended content of the repository.
        private: Whether to make a new repository private.
        dry_run: If true, show the plan and send nothing.
        api: `HfApi` client. Defaults to a client for the logged-in account.
        say: Function that is called with each line of the plan before any file is sent.

    Raises:
        UserError: The account may not write, the Hub rejects the upload, the connection is broken, or the repository is
            public although `private` is requested.
    """
    api = api or default_api()
    _check(publication, api, dry_run)
    url, started = f"{shown_endpoint(api)}/{publication.url_path}", False

    def attempt() -> Published:
        nonlocal started
        plan = (plan_if_reachable if dry_run else upload_plan)(publication, private, api)
        if not started:
            plan = plan if plan.nothing else replace(plan, rights=rights(api, publication.repo))
            for line in plan.lines():
                say(line)
        if dry_run:
            return Published(plan, url, None, False, True)
        if plan.nothing:
            return Published(plan, url, plan.head, started, False)
        if plan.rights and plan.rights.may is False:
            raise UserError(
                f"{plan.rights.line}; use --namespace YOUR-NAME, or log in with a token that has write access"
            )
        started = True
        return Published(plan, url, _send(plan, api), True, False)

    return patiently(attempt, publication.repo, api, say)


def _check(publication: Publication, api: HfApi, dry_run: bool) -> None:
    """Raise UserError if the repository name is invalid, or if a token is needed but not available."""
    try:
        validate_repo_id(publication.repo)
    except ValueError as error:
        raise UserError(f"'{publication.repo}' is not a valid repository name on the Hub: {error}") from error
    if not dry_run and token_of(api) is None:
        raise UserError(LOGIN)


def _send(plan: UploadPlan, api: HfApi) -> str:
    """Commit all changes on top of the commit that the plan was compared with. Return the id of the new commit.

    The repository is created if it does not exist.
    """
    publication, head = plan.publication, plan.head
    if head is None:
        sdk = publication.sdk if publication.kind == "space" else None
        api.create_repo(
            publication.repo, repo_type=publication.kind, private=plan.private, exist_ok=True, space_sdk=sdk
        )
        info = api.repo_info(publication.repo, repo_type=publication.kind)
        if plan.private and not info.private:  # another process may have created it in the meantime
            raise UserError(
                f"{publication.repo} is public, not private, so nothing was sent; make it private in its settings"
            )
        head = info.sha
    commit = api.create_commit(
        publication.repo,
        _operations(plan),
        commit_message=f"saliency-bench push {publication.kind}",
        repo_type=publication.kind,
        parent_commit=head,
    )
    return commit.oid


def _operations(plan: UploadPlan) -> list[CommitOperationAdd | CommitOperationDelete]:
    files = plan.publication.files
    return [
        CommitOperationDelete(path)
        if change == "removed"
        else CommitOperationAdd(path, content if isinstance(content := files[path], bytes) else str(content))
        for path, change in plan.changes.items()
        if change != "unchanged"
    ]
