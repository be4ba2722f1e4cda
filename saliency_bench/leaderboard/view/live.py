"""A board that is read again when its repository has changed, while the page keeps showing the last state."""

from collections.abc import Sequence
from pathlib import Path
from threading import Lock, Thread
from time import monotonic

from saliency_bench.errors import UserError
from saliency_bench.leaderboard.view.archive import Archive, commit_of
from saliency_bench.leaderboard.view.core import Core
from saliency_bench.leaderboard.view.page import Page
from saliency_bench.utils.messages import complain

EVERY = 300.0  # seconds between two checks for a newer commit


class Live:
    """The page of a board in its newest state.

    Args:
        location: as for `Archive.load`.
        core: as for `Page`.
        every: seconds between two checks for a newer commit.
        data: as for `Archive.load`.

    Raises:
        UserError: The board cannot be read at first.
    """

    def __init__(
        self, location: str | Path, core: Core | None = None, every: float = EVERY, data: Sequence[str | Path] = ()
    ):
        self.location, self.core, self.every, self.data = location, core, every, data
        self._page = Page(Archive.load(location, data), core)
        self._checked_at, self._lock = monotonic(), Lock()

    @property
    def page(self) -> Page:
        """The newest state that has been read; looks for a newer one in the background now and then."""
        with self._lock:
            due = bool(self._page.archive.commit) and monotonic() - self._checked_at > self.every
            if due:
                self._checked_at = monotonic()
        if due:
            Thread(target=self.refresh, daemon=True).start()
        return self._page

    def refresh(self) -> None:
        """Read the board again if it has changed. On an error keep the last state and log a line that says why."""
        try:
            if commit_of(str(self.location)) != self._page.archive.commit:
                self._page = Page(Archive.load(self.location, self.data), self.core)
        except UserError as error:
            complain(f"the board could not be read again: {error}")
