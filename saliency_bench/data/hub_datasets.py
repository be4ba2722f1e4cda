"""Datasets on the Hub: downloaded once, loaded from the cache when the Hub cannot be reached."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import datasets
from datasets import Dataset
from huggingface_hub import HfApi, get_token
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

from saliency_bench.data.build_report import REPORT, read_report
from saliency_bench.data.names import alternative_to
from saliency_bench.errors import UserError
from saliency_bench.hub.client import no_bars
from saliency_bench.hub.errors import is_network_error, refuse


def load_from_hub(repo: str, split: str, revision: str | None, config: str | None = None) -> Dataset:
    """One split of a repository, or of its cached copy if the Hub cannot be reached.

    Raises: UserError for a dataset, revision or split that does not exist, or a connection that breaks.
    """
    reached = _is_reachable(repo)
    try:
        with _offline(not reached):
            return datasets.load_dataset(repo, config, split=split, revision=revision)
    except (ConnectionError, FileNotFoundError) as error:
        problem = f"the Hub has no usable dataset {repo}" if reached else f"the Hub cannot be reached for {repo}"
        raise UserError(f"{problem}; {alternative_to(repo)}") from error
    except (ValueError, OSError, datasets.exceptions.DatasetGenerationError) as error:
        raise loading_error(error, f"{repo} cannot be loaded; {alternative_to(repo)}", config) from error
    except Exception as error:
        if not is_network_error(error):
            raise
        raise UserError(
            f"the connection to the Hub broke while loading {repo} ({one_line(error)}); load it again"
        ) from error


def published_report(repo: str, revision: str | None = None, api: HfApi | None = None) -> dict[str, Any]:
    """The `build_report.json` of a repository; {} if there is none, or if it is neither cached nor reachable."""
    try:
        with no_bars():
            path = (api or HfApi()).hf_hub_download(repo, REPORT, repo_type="dataset", revision=revision)
        return read_report(Path(path).parent)
    except (HfHubHTTPError, OSError):  # no such file, or no network and no cached copy
        return {}


def loading_error(error: Exception, otherwise: str, config: str | None = None) -> UserError:
    """A readable error for one raised by `datasets`, which lists the splits itself when one is unknown."""
    if isinstance(error, UserError):
        return error
    if config and f"BuilderConfig '{config}' not found" in str(error):
        return UserError("this dataset comes with its images; leave out `source`")
    return UserError(one_line(error) if "split" in str(error).lower() else f"{otherwise} ({one_line(error)})")


def one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _is_reachable(repo: str) -> bool:
    """One short request; `datasets` would retry for half a minute. Raises: UserError if there is no such dataset."""
    if datasets.config.HF_HUB_OFFLINE:
        return False
    try:
        HfApi().dataset_info(repo, timeout=10)
    except HfHubHTTPError as error:
        if isinstance(error, RepositoryNotFoundError) and not isinstance(error, GatedRepoError):
            raise UserError(f"the Hub has no dataset {repo} (or it is private); {alternative_to(repo)}") from error
        refuse(error, repo, get_token())
    except ValueError as error:
        raise UserError(f"'{repo}' is neither a folder nor a dataset on the Hub: {one_line(error)}") from error
    except Exception:  # no network: the class of the error belongs to the HTTP library in use
        return False
    return True


@contextmanager
def _offline(offline: bool) -> Iterator[None]:
    """Inside, `datasets` makes no request if `offline`, or if it already made none."""
    before = datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = before or offline
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = before
