"""Tests of the command line: exit codes, one-line errors and JSON."""

import json
import os
import pty
import re
import shutil
import subprocess
import sys
from contextlib import suppress

import pytest
from commands import refusal, said
from PIL import Image

import saliency_bench
from saliency_bench import registry
from saliency_bench.cli import SECTIONS, main
from saliency_bench.push_scripts import new
from saliency_bench.push_scripts._people import LINKS
from saliency_bench.terminal import fitted
from saliency_bench.utils import progress
from saliency_bench.utils.messages import complain


@pytest.mark.parametrize("line", [[], ["--help"]])
def test_overview_lists_every_command_under_a_heading(line, capsys):
    shown = said(capsys, line)
    assert all(f"  {name} " in shown for name in registry.names("push_scripts"))
    assert [title for title in SECTIONS if f"\n\n{title}:\n" not in shown] == []
    assert "other:" not in shown


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_version_option_prints_the_version(flag, capsys):
    assert (main([flag]), capsys.readouterr().out.strip()) == (0, saliency_bench.__version__)


@pytest.mark.parametrize("name", ["run", "build pet-xai"])
def test_help_is_equal_in_all_four_spellings(name, capsys):
    texts = []
    for line in (f"{name} --help", f"help {name}", f"--help {name}", f"{name} -h"):
        with pytest.raises(SystemExit, match="0"):
            main(line.split())
        texts.append(capsys.readouterr().out)
    assert set(texts) == {texts[0]}
    assert texts[0].startswith(f"usage: saliency-bench {name} ")


@pytest.mark.parametrize(("line", "words"), [
    ("run --out X --model", "argument --model: expected one argument; saliency-bench run --help shows"),
    ("run --model m --out X --precision fp23", "argument --precision: invalid choice: 'fp23' (choose from"),
    ("list explainer", "or command 'explainer'; did you mean explainers"),
    ("run", "the following arguments are required: --model, --out"),
    ("run --model m --explainer x --out X", "'--explainer' of saliency-bench run; did you mean --explainers?"),
    ("run --modle=m --out X", "'--modle' of saliency-bench run; did you mean --model?"),
    ("run -model m --out X", "'-model' of saliency-bench run; did you mean --model?"),
    ("build shapes-xai --ouput X", "'--ouput' of saliency-bench build shapes-xai; did you mean --out"),
])  # fmt: skip
def test_argument_errors_are_one_line_with_a_hint(line, words, capsys):
    shown = refusal(capsys, line.split())
    assert words in shown
    assert shown.endswith(("--help shows an example\n", "?\n"))


def test_untrusted_text_is_printable_and_short(capsys, tmp_path):
    line = ["run", "--dataset", "nope\x1b[2J\u202e", "--model", "m", "--out", str(tmp_path / "run")]
    shown = said(capsys, line, 2)
    assert shown.strip("\n").isprintable()
    assert r"nope\x1b[2J\u202e" in shown
    complain("\x1b[31m two\nlines " + "x" * 10**5)
    shown = capsys.readouterr().err
    assert shown.strip("\n").isprintable()
    assert len(shown) < 2100


def test_debug_shows_the_traceback():
    with pytest.raises(saliency_bench.errors.UserError):
        main(["run", "--dataset", "nope", "--model", "m", "--out", "X", "--debug"])


@pytest.mark.sample(2, 4)
@pytest.mark.parametrize("line", ["--help", "list", "list --json", "run --help"])
@pytest.mark.parametrize("merged", [False, True])
def test_closed_output_is_not_an_error(line, merged, tmp_path):
    """Test a pipe that is closed before anything is printed, as with `| head -1`; `2>&1` closes both streams."""
    reading, writing = os.pipe()
    os.close(reading)
    with (tmp_path / "errors").open("wb") as errors:
        words = [sys.executable, "-m", "saliency_bench", *line.split()]
        done = subprocess.run(words, stdout=writing, stderr=writing if merged else errors, check=False)
    os.close(writing)
    assert (done.returncode, (tmp_path / "errors").read_text()) == (0, "")


def test_broken_pipe_elsewhere_is_an_error(monkeypatch, capsys):
    monkeypatch.setattr("saliency_bench.cli._main", lambda argv: (_ for _ in ()).throw(BrokenPipeError(32, "broken")))
    assert "broken" in said(capsys, ["list"], 2)


def test_restart_hint_omits_printed_invitations(capsys, monkeypatch):
    """Test a study that has not printed its invitations yet.

    Without the option, the study would be open to everybody.
    """
    words = ["annotate", "--dataset", "d", "--store", "s", "--owner", "--invite", "3", "--port=1"]
    module = registry.load("push_scripts", "annotate")
    printed = []

    def stop(args):
        args.links = LINKS if printed else {}
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "main", stop)
    main(words)
    assert capsys.readouterr().err.endswith(f"again with: saliency-bench {' '.join(words)}\n")
    printed.append(True)
    for invited in (["--invite", "3"], ["--invite=3"]):
        main([*words[:6], *invited, "--port=1"])
        end = "annotate --dataset d --store s --port=1; the printed links stay valid\n"
        assert capsys.readouterr().err.endswith(end)


KEPT = {"run": ("complete batches", "out/scores/000000-0123456789abcdef.parquet"),
        "train": ("complete epochs", "out.training.pt"),
        "build": ("finished batches", ".out.building/batches/0.parquet")}  # fmt: skip


@pytest.mark.parametrize(("command", "out"), [("run", "--out=out"), ("train", "--out ./out"), ("build", "--out out")])
def test_stopped_command_reports_what_is_kept(command, out, tmp_path, capsys, monkeypatch):
    def stop(args):
        raise KeyboardInterrupt

    monkeypatch.setattr(registry.load("push_scripts", command), "main", stop)
    monkeypatch.chdir(tmp_path)
    words = {"run": "run --model m", "train": "train --model m", "build": "build shapes-xai"}[command].split()
    words += out.split()
    assert main(words) == 130
    again = f"saliency-bench: stopped; no incomplete file remains; start again with: saliency-bench {' '.join(words)}\n"
    assert capsys.readouterr().err == again
    what, file = KEPT[command]
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).touch()
    assert main(words) == 130
    line = f"saliency-bench: stopped; {what} are kept; resume with: saliency-bench {' '.join(words)}\n"
    assert capsys.readouterr().err == line


PROSE = """Title that is short.

Source: a folder that holds, as downloaded and unpacked,

- one thing that has a long description, so long that
  it takes two lines;
- another.

how it is made:
  The label is the answer where a model accepts it, and this
  sentence goes on.

a-name   a text of several words, all of which belong to the second column
b        short

example:
  saliency-bench run --dataset shapes-xai --model models/resnet-18-shapes
"""
FITTED = """Title that is short.

Source: a folder that holds, as
downloaded and unpacked,

- one thing that has a long description,
  so long that it takes two lines;
- another.

how it is made:
  The label is the answer where a model
  accepts it, and this sentence goes on.

a-name   a text of several words, all of
         which belong to the second
         column
b        short

example:
  saliency-bench run --dataset shapes-xai --model models/resnet-18-shapes"""


def test_help_text_wraps_at_the_terminal_width():
    assert (fitted(PROSE, 40), fitted(FITTED, 40), fitted("one\ntwo", 10**6)) == (FITTED, FITTED, "one two")
    commands = "    saliency-bench list\n    saliency-bench demo"
    assert fitted(commands, 40) == commands, "each command has its own line"


def test_help_lines_fit_the_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = [[name, "--help"] for name in registry.names("push_scripts")]
    lines += [["build", name, "--help"] for name in registry.names("hub_builders")]
    for line in [*lines, ["--help"], ["list"]]:
        with suppress(SystemExit):
            assert main(line) == 0
        shown = capsys.readouterr().out
        assert [text for text in shown.splitlines() if len(text) > 80] == [], line
        assert re.findall(r"\bP[0-4]\b", shown) == [], line  # numbers that the project uses for its papers
        assert "default: )" not in shown
        assert line[0] != "build" or ") (default: " not in shown


QUICK = {
    "analyse": "analyse done --what correlation --out out",
    "choose": "choose --dataset ./shapes --model ./net --metrics saliency_miou --explainers gradient --limit 16 "
    "--device cpu --out out",
    "check": "check done --require centre:saliency_miou>=0",
    "doctor": "doctor --dataset ./shapes --model ./net --limit 8 --within 1s --device cpu --out out/doctor.json",
    "draw": "draw done --what classes --explainers gradient --device cpu --out out/classes.png",
    "explain": "explain picture.png --model net --explainers gradcam --device cpu --out out/strip.png",
    "build": "build shapes-xai --size 32 --count 20 --out out",
    "install-metrics": "install-metrics saliency_miou",
    "list": "list",
    "new": "new explainer mine",
    "power": "power --spread 0.2 --difference 0.05",
    "push": "push metric saliency_miou --dry-run",
    "report": "report done",
    "run": "run --dataset ./shapes --model ./net --explainers centre --metrics saliency_miou --limit 4 --out out",
    "submit": "submit done --dry-run",
    "suite": "suite p0-table1 --smoke --out out",
    "template": "template ./shapes ./net --limit 4 --out out",
    "train": "train --dataset ./shapes --model ./net --epochs 1 --size 32 --limit 8 --out out",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory, shapes, resnet):
    root = tmp_path_factory.mktemp("place")
    for part in new.PARTS:
        (root / part).mkdir(parents=True) if "." not in part else (root / part).parent.mkdir(exist_ok=True)
    (root / "saliency_bench/registry.py").touch()
    (root / "tests/explainers").mkdir()
    shutil.copytree(shapes, root / "shapes")
    shutil.copytree(resnet, root / "net")
    Image.new("RGB", (40, 30), "red").save(root / "picture.png")
    saliency_bench.run(dataset=str(shapes), model=str(resnet), explainers=["centre"], metrics=["saliency_miou"],
                       limit=12, device="cpu", out=root / "done", progress=False)  # fmt: skip
    return root


@pytest.fixture
def sandbox(place, tmp_path, monkeypatch):
    for path in place.iterdir():
        shutil.copytree(path, tmp_path / path.name) if path.is_dir() else shutil.copy(path, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    for name in progress.NO_BARS:
        monkeypatch.setenv(name, "0")  # monkeypatch restores it afterwards
    return tmp_path


def words_of(command):
    on_cpu = ["--device", "cpu"] * (command in ("run", "suite", "train", "template"))
    return [*QUICK[command].split(), *on_cpu, "--quiet"]


@pytest.mark.sample(2, 4)
@pytest.mark.parametrize("command", sorted(set(QUICK) - {"train"}))
def test_quiet_command_prints_nothing_and_writes_results(command, sandbox, capsys, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert (main(words_of(command)), capsys.readouterr()) == (0, ("", ""))
    assert (sandbox / "out").exists() == ("--out" in QUICK[command])


@pytest.mark.thorough
def test_quiet_training_shows_no_library_bars(sandbox):
    """Test in a separate process, because libraries read this setting only once."""
    done = subprocess.run([sys.executable, "-P", "-m", "saliency_bench", *words_of("train")], capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert (sandbox / "out/model.safetensors").exists()


def test_every_command_has_a_quiet_test(capsys):
    # leaderboard, recompute and review need submissions: test_board_page, test_review; launch needs a Hub:
    # test_launch; pages are tested in studies/
    elsewhere = {"annotate", "assess", "demo", "launch", "leaderboard", "peekaboom", "recompute", "review"}
    assert set(QUICK) | elsewhere == set(registry.names("push_scripts"))
    assert "--quiet: not allowed with argument --json" in said(capsys, ["list", "--json", "--quiet"], 2)


def test_quiet_command_keeps_errors_and_exit_codes(shapes, resnet, tmp_path, capsys, monkeypatch):
    refusal(capsys, ["report", str(tmp_path / "nowhere"), "--quiet"])
    line = ["run", "--dataset", str(shapes), "--model", str(resnet), "--explainers", "cebp", "--limit", "4",
            "--metrics", "saliency_miou", "--device", "cpu", "--out", str(tmp_path / "run")]  # fmt: skip
    broken = saliency_bench.explainer(version=1)(lambda classifier, images, target: 1 / 0)
    monkeypatch.setattr(registry.load("explainers", "cebp"), "cebp", broken)
    assert refusal(capsys, [*line, "--quiet"]).startswith("saliency-bench: error: 4 records were left out")


@pytest.mark.slow
def test_list_groups_items_without_importing_torch(capsys):
    code = "import sys; from saliency_bench.cli import main; main(['list']); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    headings = re.findall(r"^  (\S.*)$", done.stdout, re.MULTILINE)
    assert headings.index("attention of a vision transformer") < headings.index("agreement with a mask")
    under = done.stdout.partition("  agreement with a mask\n")[2].partition("\n  response")[0]
    needs = {name: saliency_bench.load_metric(name).inputs for name in registry.names("metrics")}
    expected = {name for name, inputs in needs.items() if "masks" in inputs and "other" not in inputs}
    assert set(re.findall(r"^    (saliency_\w+)", under, re.MULTILINE)) == expected


@pytest.fixture
def terminal(monkeypatch):
    """Return the output of a command on a terminal of 100 columns."""

    def shown(*words, **env):
        reading, writing = pty.openpty()
        settings = {"TERM": "xterm", "COLUMNS": "100"} | env
        kept = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR")}
        code = "import sys; from saliency_bench.cli import main; sys.exit(main())"
        done = subprocess.Popen([sys.executable, "-P", "-c", code, *words], stdout=writing, stderr=writing,
                                env=kept | settings)  # fmt: skip
        os.close(writing)
        parts = []
        with suppress(OSError):  # raised if the other end is closed
            while part := os.read(reading, 2**16):
                parts.append(part)
        done.wait()
        os.close(reading)
        return b"".join(parts).decode().replace("\r\n", "\n")

    return shown


COLOURED = re.compile(r"\x1b\[[0-9;]*3[0-7]m")


@pytest.mark.slow
def test_terminal_output_is_coloured_unless_disabled(terminal):
    for words in (["list", "models"], ["--help"], ["run", "--help"], ["rnu"]):
        assert COLOURED.search(terminal(*words)), words
        assert not COLOURED.search(terminal(*words, NO_COLOR="1")), words
        assert "\x1b" not in terminal(*words, TERM="dumb"), words


@pytest.mark.thorough
def test_terminal_table_shows_the_same_cells(terminal, place):
    drawn = re.sub(r"\x1b\[[0-9;]*m", "", terminal("report", str(place / "done")))
    plain = subprocess.run([sys.executable, "-P", "-m", "saliency_bench", "report", str(place / "done")],
                           capture_output=True, text=True, check=True).stdout  # fmt: skip
    assert "\x1b" not in plain
    assert "─────" in drawn
    assert "-----" in plain
    row = next(line for line in plain.splitlines() if line.startswith("centre"))
    assert row.split() in [line.split() for line in drawn.splitlines()]


def test_list_shows_the_same_items_as_json(capsys):
    text = said(capsys, ["list"])
    found = json.loads(said(capsys, ["list", "--json"]))
    assert set(found) == {"datasets", "explainers", "metrics", "commands", "models", "suites"}
    for room, kind in {"explainers": "explainers", "metrics": "metrics", "hub_builders": "datasets"}.items():
        assert set(found[kind]) == set(registry.names(room))
        assert all(name in text for name in found[kind])
        assert all(found[kind].values())


def test_listed_explainers_state_paper_needs_and_passes(capsys):
    listed = json.loads(said(capsys, ["list", "explainers", "--json"]))["explainers"]
    for name, about in listed.items():
        explainer = saliency_bench.load_explainer(name)
        declared = explainer.declaration
        _, bracket, costs = about.rpartition(" [")
        assert bracket, name
        assert costs.startswith(f"{declared.needs}; {declared.passes_of(dict(explainer.options), 224, 224)}"), name
        paper = registry.load("explainers", name).__doc__.partition("\n")[0]
        assert declared.baseline or re.search(r"\b(19|20)\d\d\b|\bP[0-4]\b", paper), name


@pytest.mark.slow
def test_run_resumes_extends_and_reports(shapes, resnet, tmp_path, capsys):
    folder = str(tmp_path / "run")
    line = f"run --dataset {shapes} --model {resnet} --explainers gradcam random --limit 8 --device cpu".split()
    line += ["--out", folder, "--metrics", "saliency_miou"]
    assert len(json.loads(said(capsys, [*line, "--json"]))["cells"]) == 2
    assert main(line) == 0
    shown, bars = capsys.readouterr()
    assert f"nothing to do: {folder} already contains every requested score" in shown
    assert "explain:" not in bars
    assert "gradcam" in shown
    assert main([*line, "saliency_iosr"]) == 0
    shown, bars = capsys.readouterr()
    assert "nothing to do" not in shown
    assert "explain: 100%" in bars
    assert "report.html" in shown
    assert "report.html" in said(capsys, ["report", folder])


@pytest.mark.thorough
def test_piped_table_fits_columns(place):
    command = [sys.executable, "-P", "-m", "saliency_bench", "report", str(place / "done")]
    for width in (50, 70):
        wide = os.environ | {"COLUMNS": str(width)}
        shown = subprocess.run(command, capture_output=True, text=True, check=True, env=wide)
        rows = shown.stdout[shown.stdout.index("explainer") :].partition("\n\n")[0].splitlines()
        assert max(map(len, rows)) <= width
        assert any(row.startswith("centre") for row in rows)
        assert "\x1b" not in shown.stdout
