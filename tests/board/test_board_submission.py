"""Browser tests of submissions on the leaderboard: signing in with the Hub, valid and invalid runs, and privacy."""

import subprocess
import sys

import httpx
import pytest
from local_hub import FOUNDER, VISITOR, openid
from test_board_browser import PATIENCE, chromium, free_port, running  # noqa: F401
from test_board_uploads import BOARD, CARD, files_of, maps_of, packed

pytestmark = pytest.mark.slow
START = "from saliency_bench.spaces.leaderboard.app import main; main()"


@pytest.fixture(scope="module")
def space(shared_hub, tmp_path_factory):
    """Run the leaderboard as a Space with the local Hub, and return (address, folder).

    The folder contains `printed.txt` with the output, and `tmp` with temporary files.
    """
    hub, folder, port = shared_hub, tmp_path_factory.mktemp("space"), free_port()
    hub.api(FOUNDER).create_repo(BOARD, repo_type="dataset")
    hub.api(FOUNDER).upload_file(path_or_fileobj=CARD, path_in_repo="README.md", repo_id=BOARD, repo_type="dataset")
    environment = hub.env(None, **openid.environment(hub.url), SALIENCY_BENCH_RESULTS=BOARD) | {
        "GRADIO_SERVER_PORT": str(port), "GRADIO_SERVER_NAME": "127.0.0.1", "TMPDIR": str(folder / "tmp"),
        "PYTHONUNBUFFERED": "1"}  # fmt: skip
    (folder / "tmp").mkdir()
    with (
        (folder / "printed.txt").open("w") as file,
        running(
            [sys.executable, "-c", START], port, env=environment, cwd=folder, stdout=file, stderr=subprocess.STDOUT
        ) as address,
    ):
        yield address, folder


def test_hostile_requests_are_rejected_without_traceback(space):
    address, folder = space
    printed = folder / "printed.txt"
    files = {"files": ("run.zip", b"PK" * 1000)}
    before = printed.read_text().count("Traceback")

    def post(path, **given):
        answer = httpx.post(f"{address}gradio_api/{path}", **given)
        return answer.status_code, answer.text.strip()

    assert post("upload", files=files) == (403, "sign in first")
    assert post("upload", files=files, headers={"origin": "https://evil.example"})[0] == 403
    assert post("queue/join", json={"data": [], "fn_index": 1, "session_hash": "a"})[0] == 400
    assert post("component_server", content=b" " * 1_000_001)[0] == 413
    for asked in (None, "csv", ["csv"], {"kind": "../x", "query": ""}, {"kind": {}}, {"kind": None}):
        about = {"component_id": board_of(address), "fn_name": "export_rows", "session_hash": "a", "data": asked}
        assert post("component_server", json=about) == (
            400,
            '{"detail":"unknown export format; use one of csv, tex, bib"}',
        )
    assert printed.read_text().count("Traceback") == before
    assert not [path for path in (folder / "tmp").rglob("*") if path.is_file() and path.stat().st_size]


def board_of(address):
    """Return the index of the component that contains the board."""
    (found,) = (
        one["id"]
        for one in httpx.get(f"{address}config").json()["components"]
        if one["props"].get("elem_id") == "board"
    )
    return found


def check(page, path, words):
    if page.get_by_label("Clear").count():
        page.get_by_label("Clear").first.click()
    page.locator("input[type=file]").set_input_files(path)
    page.locator(f'a[download="{path.name}"]').wait_for()  # the name alone is displayed before the upload has finished
    page.get_by_role("button", name="Check", exact=True).click()
    page.locator(".lb-detail").filter(has_text=words).wait_for()


def test_visitor_signs_in_and_submits(space, shared_hub, run, chromium, tmp_path):  # noqa: F811
    (address, folder), hub = space, shared_hub
    elsewhere = []
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    homes = (address, hub.url, "ws://127.0.0.1", "data:", "blob:")
    page.on("request", lambda asked: None if asked.url.startswith(homes) else elsewhere.append(asked.url))
    page.goto(address)
    page.wait_for_selector(".lb-pages")
    page.get_by_role("tab", name="Submit").click()
    good = packed(tmp_path / "good.zip", files_of(run) | maps_of(tmp_path))
    page.locator("input[type=file]").set_input_files(good)
    page.get_by_text("HTTP 403: sign in first").wait_for()
    page.get_by_role("button", name="Check", exact=True).click()
    page.locator(".lb-detail").filter(has_text="sign in first").wait_for()
    page.goto(address)
    page.wait_for_selector(".lb-pages")
    page.get_by_role("tab", name="Submit").click()

    hub.server.openid.signed_in = VISITOR.name
    page.get_by_role("button", name="Sign in with the Hub").click()
    page.wait_for_selector(".lb-pages")
    page.get_by_role("tab", name="Submit").click()
    page.get_by_role("button", name="visitor").wait_for()
    bad = packed(tmp_path / "bad.zip", {"notes.txt": b"hello"})
    check(page, bad, "contains no summary.json")
    assert not page.get_by_role("button", name="Send as a pull request").is_enabled()
    for archive, words in ((good, "2 new rows by visitor"), (bad, "contains no summary.json")) * 2:
        check(page, archive, words)
    page.get_by_label("Also publish the maps").check()
    check(page, packed(tmp_path / "bare.zip", files_of(run)), "contains no maps")
    check(page, good, "2 new rows by visitor")
    assert len(unfolded_in(folder)) == 1
    page.get_by_role("button", name="Send as a pull request").click()
    page.get_by_text("The owner of the board will review the pull request").wait_for()
    pulls = hub.repo("datasets", BOARD).discussions
    assert [(pull.author, pull.status) for pull in pulls] == [("visitor", "open")]
    assert VISITOR.token not in page.content()
    sent = hub.api(FOUNDER).list_repo_files(BOARD, repo_type="dataset", revision="refs/pr/1")
    assert [path.rpartition("/")[2] for path in sent if path.endswith(".npz")] == ["maps-00000.npz"]
    context.close()
    assert elsewhere == []
    assert VISITOR.token not in (folder / "printed.txt").read_text()
    assert unfolded_in(folder) == []


def unfolded_in(folder):
    uploads = (path for path in (folder / "tmp").glob("saliency-bench-*") if "gradio" not in path.name)
    return [path for path in uploads if any(path.iterdir())]
