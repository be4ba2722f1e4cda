"""The leaderboard's tab in which users who are signed in with the Hub can submit a run."""

import os
from pathlib import Path

import gradio as gr
from huggingface_hub import HfApi

from saliency_bench.board.published_maps import PUBLISHED
from saliency_bench.board.view.board_page import preview
from saliency_bench.board.view.live import Live
from saliency_bench.board.view.received import MOST_PACKED, Limits, proposal, unfold
from saliency_bench.errors import UserError
from saliency_bench.spaces.leaderboard.guard import KEPT_FOR
from saliency_bench.spaces.leaderboard.unfolded import Folders, remove

SIGN_IN = ("SPACE_ID", "OAUTH_CLIENT_ID", "OAUTH_CLIENT_SECRET", "OAUTH_SCOPES", "OPENID_PROVIDER_URL")
ABOUT = f"""<div class="lb"><h2>Submit a run</h2>
<p class="lb-lead">Sign in, upload the folder of a finished run as a .zip, check the preview, and send it as a pull
request in your name. By sending a run, you publish the results under CC-BY-4.0. The archive may have at most
{MOST_PACKED // 10**6} MB. Only <code>summary.json</code>, <code>run.json</code>, <code>timings.json</code>,
<code>records.parquet</code> and, if selected, the maps in <code>{PUBLISHED}</code> are read. You can also submit from a
terminal with <code>saliency-bench submit RUN</code>.</p></div>"""


def is_possible() -> bool:
    """Return whether users can sign in, which requires a Space with `hf_oauth: true` in its card."""
    return os.environ.get("SYSTEM") == "spaces" and all(os.environ.get(name) for name in SIGN_IN)


def tab(live: Live) -> None:
    """Add the tab's contents to the page."""
    limits, folders = Limits(), Folders(2 * KEPT_FOR)

    def check(
        archive: str | None, previous: str | None, maps: bool, note: str, link: str,
        profile: gr.OAuthProfile | None, token: gr.OAuthToken | None,
    ):  # fmt: skip
        """Unpack and check a run.

        Return a preview, the folder of the run, and the button that sends the run. `previous` is the folder of the
        previously checked run, which must be deleted here because Gradio does not call `delete_callback` for it.
        """
        folder = None
        remove(previous)
        try:
            if profile is None or token is None:
                raise UserError("sign in first")
            if archive is None:
                raise UserError("first upload a .zip file that contains the folder of a run")
            limits.count(profile.username)
            folder = folders.make(profile.username)
            unfold(Path(archive), Path(folder), maps)
            proposed = _proposed(live, folder, note, link, token)
        except UserError as error:
            remove(folder)
            return preview(problem=str(error)), None, gr.Button(interactive=False)
        return preview(proposed=proposed), folder, gr.Button(interactive=not proposed.nothing)

    def send(folder: str | None, note: str, link: str, profile: gr.OAuthProfile | None, token: gr.OAuthToken | None):
        """Send the checked run. Return the result, None as the folder, and a disabled button."""
        try:
            if profile is None or token is None or folder is None:
                raise UserError("first sign in and check a run")
            if not Path(folder).is_dir():
                raise UserError("the checked run has expired; check the run again")
            proposed = _proposed(live, folder, note, link, token)
            limits.check_pulls(proposed.submission.result.submitter, proposed.repo, proposed.api)
            address = proposed.publish() or proposed.pending
            shown = (
                preview(sent=address) if address else preview(problem="the board already contains all of these results")
            )
        except UserError as error:
            shown = preview(problem=str(error))
        remove(folder)
        return shown, None, gr.Button(interactive=False)

    gr.HTML(ABOUT)
    gr.LoginButton("Sign in with the Hub")
    archive = gr.File(label="Folder of a run, as .zip", file_types=[".zip"], type="filepath")
    maps = gr.Checkbox(
        label="Also publish the maps", info=f"the maps in {PUBLISHED}/, which `submit --with-maps` writes"
    )
    note = gr.Textbox(label="Note for readers (optional)", max_length=500)
    link = gr.Textbox(label="Code or paper of your own method (optional)", max_length=500, placeholder="https://")
    folder = gr.State(None, time_to_live=KEPT_FOR, delete_callback=remove)
    look = gr.Button("Check", variant="primary")
    shown = gr.HTML()
    button = gr.Button("Send as a pull request", interactive=False)
    look.click(
        check,
        [archive, folder, maps, note, link],
        [shown, folder, button],
        api_visibility="private",
        concurrency_limit=2,
    )
    button.click(send, [folder, note, link], [shown, folder, button], api_visibility="private", concurrency_limit=2)


def _proposed(live: Live, folder: str, note: str, link: str, token: gr.OAuthToken):
    """Plan the submission of an unpacked run. If its maps were unpacked, they are included."""
    archive, has_maps = live.page.archive, (Path(folder) / PUBLISHED).is_dir()
    api = HfApi(token=token.token, library_name="saliency-bench")
    return proposal(Path(folder), archive.name, api, archive.known, note.strip(), link.strip(), has_maps)
