"""Tests of README.md and the documentation: code runs unchanged, the site builds offline, and links are valid.

Some commands are shortened by an option: the demo explains fewer samples, a training takes one epoch, and doctor stops
after a few seconds.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from local_hub import LocalHub, User
from transformers import ResNetConfig, ResNetForImageClassification, ViTImageProcessor

import saliency_bench as sb
from saliency_bench import registry

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = sorted((ROOT / "docs").glob("*.md"))
QUICKSTART, TUTORIAL = ROOT / "docs" / "quickstart.md", ROOT / "docs" / "tutorial.md"
CODE = [page for page in PAGES if re.search(r"^```(sh|python)$", page.read_text(encoding="utf-8"), flags=re.M)]
YOU = User("ada", "hf_AdAsSeCrEtToKeN0123456789abcdefgh")
OTHERS = User("others", "hf_OtHeRsSeCrEtToKeN0123456789abcdef", orgs=("microsoft",))
SHORTER = {
    README: {"saliency-bench demo": "saliency-bench demo --limit 16 --epochs 4"},
    ROOT / "docs" / "analyses.md": {"--limit 64": "--limit 16"},
    ROOT / "docs" / "your_model.md": {"--within 30s": "--within 5s"},
    ROOT / "docs" / "publishing.md": {
        "--out models/resnet-18-pet": "--out models/resnet-18-pet --epochs 1 --size 32",
        "--explainers gradcam random --out runs/pet": "--explainers gradcam random --limit 4 --out runs/pet",
    },
    # The user types the token, which is not in the environment afterwards.
    TUTORIAL: {"hf auth login\n": f"hf auth login --token {YOU.token}\n"},
}


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def commands(page: Path) -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```", text_of(page), flags=re.M | re.S)


def test_inline_commands_are_in_executed_blocks():
    inline = [command for page in (README, *PAGES)
              for command in re.findall(r"`(saliency-bench [^`]+)`", without_blocks(page))]  # fmt: skip
    # Two or three words name a command; words in capitals are placeholders.
    long = [command for command in inline if len(command.split()) > 3 or " -" in command]
    assert [command for command in long if not re.search("[A-Z]{2}|--help", command)] == []


def test_shortened_commands_are_in_their_pages():
    shorter = [(page, long) for page, texts in SHORTER.items() for long in texts]
    assert [long for page, long in shorter if not any(long in text for text in commands(page))] == []


def test_documented_clone_installation_is_editable():
    """Test imports in a clone: Python searches the current folder first, which contains only the core."""
    for page in (README, QUICKSTART, TUTORIAL):
        installs = re.findall(r"pip install .*?-c constraints.txt (.*?)(?: &&|$)", text_of(page), flags=re.M)
        assert installs
        assert all(what.startswith(("-e ", "torch torchvision --index-url")) for what in installs)


def test_clone_works_without_installation():
    code = "import sys; sys.path.append(sys.argv[1]); from saliency_bench import registry as r; " \
           "print(r.load('push_scripts', 'list').__name__, *r.names('explainers'))"  # fmt: skip
    libraries = sysconfig.get_path("purelib")
    done = subprocess.run([sys.executable, "-S", "-c", code, libraries], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == ["saliency_bench.push_scripts.list", *registry.names("explainers")], done.stderr


def test_tutorial_has_ten_commands():
    assert len(commands(TUTORIAL)) == 10
    assert all(text.count("\n") == 1 for text in commands(TUTORIAL))
    assert [int(number) for number in re.findall(r"^\*\*(\d+)\.", text_of(TUTORIAL), flags=re.M)] == [*range(1, 11)]


def test_readme_is_short_with_correct_badges_and_counts():
    text = text_of(README)
    assert text.count("\n") < 150
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    kind = "Programming Language :: Python :: "
    tested = [one.removeprefix(kind) for one in project["classifiers"] if one.startswith(kind)]
    assert f"![Python {' | '.join(tested)}]" in text
    assert f"python-{'%20%7C%20'.join(tested)}-" in text
    assert f"![Licence {project['license']}]" in text
    assert (ROOT / "saliency_bench" / "py.typed").exists()
    yours = {"folder", "coco-json", "yolo", "masks"}
    counts = [len(set(registry.names(kind)) - yours) for kind in ("explainers", "metrics", "hub_builders")]
    assert "{} explainers · {} metrics · {} datasets and your own".format(*counts) in text
    for name, package in {"Captum": "captum", "Quantus": "quantus", "pytorch-grad-cam": "grad-cam"}.items():
        assert re.search(rf"\[{name}\]\(\S+\) {re.escape(version(package))} \|", text), name


WRITTEN = [ROOT / name for name in ("CONTRIBUTING.md", "hub_builders/README.md", "explainers/README.md")]


def test_links_of_pages_lead_to_files():
    for page in (README, *WRITTEN, *PAGES):
        links = re.findall(r"\]\((?!https?://)([^)#\s]*)(?:#([^)\s]+))?[^)]*\)", without_blocks(page))
        assert [link for link, _ in links if not (page.parent / link).exists()] == [], page
        targets = [(page.parent / link if link else page, anchor) for link, anchor in links if anchor]
        assert [anchor for target, anchor in targets if anchor not in anchors(target)] == [], page


def without_blocks(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", text_of(page), flags=re.M | re.S)


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings as GitHub and Sphinx create them."""
    headings = re.findall(r"^#+ (.+)$", without_blocks(page), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_readme_pictures_are_small():
    pictures = re.findall(r"!\[[^\]]+\]\((docs/pictures/[^)]+)\)", text_of(README))
    assert len(pictures) == 2
    assert all((ROOT / picture).stat().st_size < 150_000 for picture in pictures)


def test_reference_lists_every_public_name():
    text = text_of(ROOT / "docs" / "api.md").partition("## Explainers composed of explainers")[0]
    named = set(re.findall(r"auto(?:function|class|exception):: (\w+)(?:\(\))?$", text, flags=re.M))
    named |= set(re.findall(r"^\| `sb\.(\w+)` \|", text, flags=re.M))
    assert named == set(sb.__all__) - {"__version__", "targets"}


@pytest.mark.slow
def test_site_builds_offline_without_warnings(tmp_path):
    pytest.importorskip("sphinx", reason='needs pip install -e ".[docs]"')
    options = ["-W", "--keep-going", "-n", "-q", "-d", tmp_path / "trees", "-b", "html"]
    site = tmp_path / "html"
    # No proxy listens at this port, so any network request fails.
    offline = os.environ | dict.fromkeys(
        ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9"
    )
    line = [sys.executable, "-m", "sphinx", *options, ROOT / "docs", site]
    done = subprocess.run(line, env=offline, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    broken = []
    for page in site.rglob("*.html"):
        html = text_of(page)
        assert not re.search(r"<(script|img|iframe)[^>]+src=\"(https?:)?//", html), page
        assert not re.search(r"<link rel=\"stylesheet\"[^>]+href=\"(https?:)?//", html), page
        for link in re.findall(r"(?:href|src)=\"([^\"#?]+)[^\"]*\"", html):
            if not re.match(r"[a-z]+:", link) and not (page.parent / link).exists():
                broken.append(f"{page.name}: {link}")
    assert broken == []


# Code


@pytest.fixture
def hub(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    with LocalHub(tmp_path, users=(YOU, OTHERS)) as running:
        api = running.api(OTHERS)
        api.create_repo("microsoft/resnet-18")
        api.upload_folder(repo_id="microsoft/resnet-18", folder_path=small_resnet(tmp_path / "pretrained"))
        yield running


def small_resnet(folder: Path) -> Path:
    """Create the network on the local Hub that the first pages use."""
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], layer_type="basic", num_labels=5)
    ResNetForImageClassification(config).save_pretrained(folder)
    ViTImageProcessor(size={"height": 64, "width": 64}).save_pretrained(folder)
    return folder


def hf_command(folder: Path) -> Path:
    """Create the command `hf` in environments whose libraries are elsewhere."""
    folder.mkdir(exist_ok=True)
    (folder / "hf").write_text(f'#!/bin/sh\nexec {sys.executable} -m huggingface_hub.cli.hf "$@"\n')
    (folder / "hf").chmod(0o755)
    return folder


def run_page(page: Path, folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess:
    pytest.importorskip("sybil", reason='needs pip install -e ".[test]"')
    text = re.sub(r"\bME\b|YOUR-NAME", YOU.name, text_of(page))
    for long, short in SHORTER.get(page, {}).items():
        text = text.replace(long, short)
    copy = folder.parent / page.name
    copy.write_text(text, encoding="utf-8")
    path = f"{hf_command(folder.parent / 'bin')}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    line = [sys.executable, Path(__file__).parents[1] / "support" / "run_page.py", copy]
    done = subprocess.run(line, cwd=folder, env=environment | {"PATH": path}, capture_output=True, text=True)
    last = [part.rpartition("STEP ")[2][-6000:] for part in (done.stdout, done.stderr)]
    assert done.returncode == 0, "\n".join(last)
    assert "Traceback" not in done.stderr
    return done


def cost(page: Path) -> pytest.MarkDecorator:
    """Return the marker of a page: the code of one page runs in each pull request, and of all other pages at night."""
    return pytest.mark.slow if page.name == "maintainers.md" else pytest.mark.thorough


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> Path:
    """Return (folder of a clone in which the README was followed, output)."""
    folder = tmp_path_factory.mktemp("readme")
    clone = folder / "clone"
    files = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in files.stdout.splitlines():
        if (ROOT / name).is_file():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, clone / name)
    environment = os.environ | {
        # The libraries are already installed, so pip installs only the package, offline.
        "PYTHONPATH": sysconfig.get_path("purelib"), "PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(folder / "hf"), "SALIENCY_BENCH_CACHE": str(folder / "cache")}  # fmt: skip
    (clone / "shown.txt").write_text(run_page(README, clone, environment).stdout, encoding="utf-8")
    return clone


def demo_table(text: str) -> list[str]:
    lines = text.splitlines()
    first = next(number for number, line in enumerate(lines) if re.match(r"explainer +saliency_miou .*insertion", line))
    return [line.rstrip() for line in lines[first : first + 7]]


@pytest.mark.slow
def test_readme_commands_work(demo):
    for written in ("saliency-bench-demo/run/report.html", "runs/first/report.html"):
        assert (demo / written).is_file(), written
    promised, shown = demo_table(text_of(QUICKSTART)), demo_table(text_of(demo / "shown.txt"))
    assert promised[0].split() == shown[0].split()  # of fewer samples, without ranks
    names, others = ([row.split()[0] for row in table[2:]] for table in (promised, shown))
    assert set(names) == set(others)  # the network was trained for a shorter time, so the order differs
    assert others.index("gradcam") < others.index("random")


@pytest.mark.parametrize("page", [pytest.param(page, marks=cost(page), id=page.name) for page in CODE])
def test_page_code_works(page, demo, hub, source, tmp_path):
    folder = tmp_path / "home" / "work"
    folder.mkdir(parents=True)
    shutil.copytree(demo / "saliency-bench-demo", folder / "saliency-bench-demo")
    shutil.copytree(source, folder / "oxford-iiit-pet")
    # In the tutorial the user logs in; other pages assume that this has been done.
    done = run_page(page, folder, hub.env(None if page == TUTORIAL else YOU) | {"OMP_NUM_THREADS": "1"})
    check = CHECKS.get(page.name)
    if check:
        check(hub, folder, done.stdout)


def check_quickstart(hub, folder, shown):
    for written in ("runs/first/report.html", "comparison.html", "gradcam.png"):
        assert (folder / written).is_file(), written
    page = text_of(folder / "comparison.html")
    assert "first + own" in page
    assert "brightness" in page


def check_continuous_integration(hub, folder, shown):
    assert re.findall(r"^(\w+) +(gradcam|random):saliency_miou [<>]= 0.2", shown, flags=re.M) == [
        ("met", "gradcam"),
        ("met", "random"),
    ]


def check_publishing(hub, folder, shown):
    assert ("models", "ada/resnet-18-pet") in hub.store.repos
    assert hub.repo("datasets", "ada/results").discussions[0].status == "open"


def check_tutorial(hub, folder, shown):
    steps = shown.split("STEP ")
    run = next(text for text in steps if "saliency_miou" in text and "random" in text)
    assert re.search(r" #\d", run), "there are enough samples to rank"
    assert "my-method" in steps[-1]
    assert "['ada']" in steps[-1]
    assert hub.repo("datasets", "ada/results").discussions[0].status == "merged"
    assert "create the public dataset ada/results" in shown
    assert re.search(r"submitted: http://.*/datasets/ada/results/discussions/1", shown)
    assert (folder / "first" / "report.html").exists()
    assert YOU.token not in shown
    written = [path for path in folder.rglob("*") if path.is_file()]
    assert not [path for path in written if YOU.token.encode() in path.read_bytes()]


CHECKS = {"quickstart.md": check_quickstart, "publishing.md": check_publishing, "tutorial.md": check_tutorial,
          "continuous_integration.md": check_continuous_integration}  # fmt: skip


def test_quickstart_lists_every_extra():
    """Test that each extra is a row of the table in the quickstart, except extras for developers."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"].keys() - {"docs", "test"}
    table = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8").partition("## Extras")[2]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.M)) == extras
