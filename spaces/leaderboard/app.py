"""Gradio app that shows the leaderboard, on a Space or on a local machine (`saliency-bench leaderboard`).

`saliency_bench.board.view` generates the page for the query string in a URL, and `board.js` displays it. On a Space,
the board is NAMESPACE/results, where NAMESPACE is the Space's owner, or the board that the environment variable
SALIENCY_BENCH_RESULTS names.
"""

import os
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # must be set before gradio is imported

import gradio as gr
from fastapi import HTTPException
from gradio.utils import get_upload_folder
from starlette.middleware import Middleware
from uvicorn.config import HTTP_PROTOCOLS

from saliency_bench.board.view.core import read_core
from saliency_bench.board.view.live import Live
from saliency_bench.board.view.received import MOST_PACKED
from saliency_bench.errors import UserError
from saliency_bench.spaces.leaderboard import submission
from saliency_bench.spaces.leaderboard.guard import KEPT_FOR, Guard, Uploads
from saliency_bench.spaces.pages.origins import OwnHosts
from saliency_bench.spaces.pages.requests import TimedProtocol

# Gradio has no option for uvicorn's protocol, and the default protocol waits forever for an incomplete request head.
HTTP_PROTOCOLS["auto"] = f"{TimedProtocol.__module__}:{TimedProtocol.__name__}"
HERE = Path(__file__).parent
CORE = HERE / "core.yaml"
FONTS = ("system-ui", "sans-serif")  # installed fonts, so that no fonts are downloaded
THEME = gr.themes.Base(font=FONTS, font_mono=("ui-monospace", "monospace"))


def build(live: Live) -> gr.Blocks:
    """Return the app that shows a board."""

    def show(query: object) -> dict[str, str]:
        return live.page.show(query)

    def export_rows(request: object) -> dict[str, str]:
        """Export rows as a file. `request` is {"kind", "query", "address"}, because Gradio passes a single argument."""
        fields = request if isinstance(request, dict) else {}
        try:
            return live.page.export(fields.get("kind"), fields.get("query"), fields.get("address"))
        except UserError as error:
            raise HTTPException(400, str(error)) from error  # gradio would respond to any other error with 500

    title, cleaning = f"Leaderboard of {live.page.archive.name}", (KEPT_FOR // 6, KEPT_FOR)
    with gr.Blocks(title=title, analytics_enabled=False, delete_cache=cleaning) as demo:
        if not submission.is_possible():
            _board(live, [show, export_rows])
            return demo
        with gr.Tab("Leaderboard"):
            _board(live, [show, export_rows])
        with gr.Tab("Submit"):
            submission.tab(live)
    return demo


def _board(live: Live, functions: list[Callable]) -> None:
    gr.HTML(
        _frame(live), js_on_load=(HERE / "board.js").read_text(encoding="utf-8"),
        server_functions=functions, apply_default_css=False, elem_id="board",
    )  # fmt: skip


def _frame(live: Live) -> str:
    """Return the HTML of the initial page, which is busy until the script replaces its parts according to the URL."""
    first = live.page.show("")
    return (
        '<div class="lb"><h1>Saliency maps you can trust</h1>'
        f'<div data-part="head">{first["head"]}</div><div data-part="form">{first["form"]}</div>'
        '<p class="lb-problem" data-part="problem" role="alert"></p>'
        f'<div data-part="body" aria-busy="true">{first["body"]}</div></div>'
    )


def launch(live: Live, **options: object) -> None:
    """Serve the app until it is stopped.

    Args:
        live: The board.
        **options: Arguments for Gradio's `launch`.
    """
    css = (HERE / "board.css").read_text(encoding="utf-8")
    demo = build(live)
    demo.space_id = None  # otherwise gradio's page loads a header and fonts from other hosts
    uploads = Uploads(Path(get_upload_folder())) if submission.is_possible() else None
    calls = {number: len(function.inputs) for number, function in demo.fns.items() if function.fn is not None}
    components = {number for number, block in demo.blocks.items() if getattr(block, "server_fns", None)}
    guard = Middleware(Guard, uploads=uploads, calls=calls, components=components)
    guarded = {"middleware": [Middleware(OwnHosts, host=str(options.get("server_name"))), guard]}
    demo.launch(theme=THEME, css=css, footer_links=[], max_file_size=MOST_PACKED, app_kwargs=guarded, **options)


def main() -> None:
    """Serve the board of the Space's owner."""
    owner = os.environ.get("SPACE_AUTHOR_NAME", "saliency-bench")
    launch(Live(os.environ.get("SALIENCY_BENCH_RESULTS", f"{owner}/results"), default=read_core(CORE)))


if __name__ == "__main__":
    main()
