"""A board that is reloaded when its repository changes. During the reload, the page displays the previous state."""

from collections.abc import Sequence
from pathlib import Path
from threading import Lock, Thread
from time import monotonic

from saliency_bench.board.view.archive import Archive, commit_of
from saliency_bench.board.view.board_page import Page
from saliency_bench.board.view.core import Core, core_of_board
from saliency_bench.errors import UserError
from saliency_bench.utils.messages import complain

EVERY = 300.0  # seconds between two checks for a newer commit


class Live:
    """A board's page that is updated in the background.

    Args:
        location: Location of the results, as for `Archive.load`.
        core: Core to use instead of the board's own core.
        every: Seconds between two checks for a newer commit.
        data: Folders of datasets, as for `Archive.load`.
        default: Core to use if the board has no core.

    Raises:
        UserError: The first attempt to load the board fails.
    """

    def __init__(
        self, location: str | Path, core: Core | None = None, every: float = EVERY, data: Sequence[str | Path] = (),
        default: Core | None = None,
    ):  # fmt: skip
        self.location, self.core, self.every, self.data, self.default = location, core, every, data, default
        self._page = self._read()
        self._checked_at, self._lock = monotonic(), Lock()

    @property
    def page(self) -> Page:
        """The newest loaded state.

        If a check for a newer state is due, each access also starts one in the background.
        """
        with self._lock:
            due = bool(self._page.archive.commit) and monotonic() - self._checked_at > self.every
            if due:
                self._checked_at = monotonic()
        if due:
            Thread(target=self.refresh, daemon=True).start()
        return self._page

    def refresh(self) -> None:
        """Reload the board if it has changed.

        If an error occurs, keep the previous state and log a one-line message.
        """
        try:
            if commit_of(str(self.location)) != self._page.archive.commit:
                self._page = self._read()
        except UserError as error:
            complain(f"the board could not be reloaded: {error}")

    def _read(self) -> Page:
        archive = Archive.load(self.location, self.data)
        return Page(archive, self.core or core_of_board(archive.source) or self.default)
