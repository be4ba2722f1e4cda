"""Uploads files to the Hub: shows the plan first, sends only what differs, resumes an interrupted upload."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants
from huggingface_hub.utils import are_progress_bars_disabled, validate_repo_id
from tqdm.contrib.logging import logging_redirect_tqdm

from saliency_bench.errors import UserError
from saliency_bench.hub.client import LOGIN, default_api, no_bars, rights, token_of
from saliency_bench.hub.errors import may_pass, reason, refuse, retry_after
from saliency_bench.hub.plan import Publication, UploadPlan, plan_if_reachable, upload_plan
from saliency_bench.utils.progress import bar

PAUSES = (2, 8)  # seconds before a retry; huggingface_hub itself retries each file several times
LONGEST_WAIT = 300  # seconds; a longer Retry-After ends the upload


@dataclass(frozen=True)
class Published:
    """The result of `publish`. `commit`: head of the repository; None after a dry run. `changed`: anything was sent."""

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
        """Return it as JSON holds it."""
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
    """Make the repository contain the files of `publication`; unchanged files are not sent.

    An interrupted upload resumes, now or in a later call: files that arrived are not sent again, and there is one
    commit.

    Args:
        publication: what it is to contain.
        private: for a repository that does not exist yet.
        dry_run: send nothing.
        api: client of the Hub; None: of the account that is logged in.
        say: gets each line of the plan before anything is sent.

    Raises:
        UserError: The account may not write, the Hub refuses, a connection stays broken, or the repository is public
            and `private` is asked for.
    """
    api = api or default_api()
    _check(publication, api, dry_run)
    url, started = f"{api.endpoint}/{publication.url_path}", False
    for pause in (*PAUSES, None):
        try:
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
                raise UserError(f"{plan.rights.line}; give --namespace YOUR-NAME, or log in with a token that may")
            started = True
            return Published(plan, url, _send(plan, api), True, False)
        except UserError:
            raise
        except Exception as error:
            wait = retry_after(error) or pause
            if pause is None or wait is None or wait > LONGEST_WAIT or not may_pass(error):
                refuse(error, publication.repo, token_of(api))
            say(f"{reason(error, publication.repo, token_of(api))}; trying again in {wait} s")
            time.sleep(wait)
    raise AssertionError("the last try returns or raises")


def _check(publication: Publication, api: HfApi, dry_run: bool) -> None:
    """Raise UserError for an account that may not write to the repository."""
    try:
        validate_repo_id(publication.repo)
    except ValueError as error:
        raise UserError(f"'{publication.repo}' is not a valid repository name on the Hub: {error}") from error
    if not dry_run and token_of(api) is None:
        raise UserError(LOGIN)


def _send(plan: UploadPlan, api: HfApi) -> str:
    """Make one commit on top of the compared one; return its id."""
    publication, head = plan.publication, plan.head
    if head is None:
        sdk = publication.sdk if publication.kind == "space" else None
        api.create_repo(
            publication.repo, repo_type=publication.kind, private=plan.private, exist_ok=True, space_sdk=sdk
        )
        head = api.repo_info(publication.repo, repo_type=publication.kind).sha
    operations = _operations(plan)
    with _one_bar(operations):
        commit = api.create_commit(
            publication.repo,
            operations,
            commit_message=f"saliency-bench push {publication.kind}",
            repo_type=publication.kind,
            parent_commit=head,
        )
    return commit.oid


class _Addition(CommitOperationAdd):
    """A file to send that reports to `on_read` how many more bytes were read; bytes sent again do not count."""

    furthest = 0

    @staticmethod
    def on_read(count: int) -> object:
        """Count bytes that were read; replaced by the progress bar."""

    @contextmanager
    def as_file(self, with_tqdm: bool = False) -> Iterator[Any]:
        """Open the content, counting what is read."""
        with super().as_file() as file:
            if with_tqdm:  # set by huggingface_hub when it sends the file
                read = file.read

                def counted(size: int = -1) -> bytes:
                    data = read(size)
                    more = max(file.tell() - self.furthest, 0)
                    self.furthest += more
                    self.on_read(more)
                    return data

                file.read = counted  # type: ignore[method-assign]
            yield file

    def b64content(self) -> bytes:
        """Return the content for a small file, counted as read."""
        content = super().b64content()  # of a small file, which is sent inside the commit
        self.on_read(self.upload_info.size - self.furthest)
        self.furthest = self.upload_info.size
        return content


def _operations(plan: UploadPlan) -> list[_Addition | CommitOperationDelete]:
    """Return what the commit does."""
    files = plan.publication.files
    return [
        CommitOperationDelete(path)
        if change == "removed"
        else _Addition(path, content if isinstance(content := files[path], bytes) else str(content))
        for path, change in plan.changes.items()
        if change != "unchanged"
    ]


@contextmanager
def _one_bar(operations: Sequence[_Addition | CommitOperationDelete]) -> Iterator[None]:
    """Show one progress bar for all files together, where huggingface_hub shows one per file.

    Hf_xet has a joint one.
    """
    xet = find_spec("hf_xet") is not None and not constants.HF_HUB_DISABLE_XET
    if xet or are_progress_bars_disabled():
        yield
        return
    additions = [operation for operation in operations if isinstance(operation, _Addition)]
    total = sum(addition.upload_info.size for addition in additions)
    with (
        no_bars(),
        bar(desc="sending", total=total, unit="B", unit_scale=True, leave=False) as sending,
        logging_redirect_tqdm([logging.getLogger("huggingface_hub")]),  # its messages about retries get their own line
    ):
        for addition in additions:
            addition.on_read = sending.update  # type: ignore[method-assign]
        yield
