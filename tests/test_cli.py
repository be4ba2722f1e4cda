"""What a person sees at the terminal: exit codes, one-line errors, JSON."""

import json
import re

import pytest

import saliency_bench
from saliency_bench import registry
from saliency_bench.cli import main
from saliency_bench.utils.messages import complain


def test_overview_lists_every_command(capsys):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in registry.names("push_scripts"))


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == saliency_bench.__version__


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("rnu", "unknown command 'rnu'; did you mean run"),
        ("build shapes-xia --out X", "did you mean shapes-xai"),
        ("build pet-xai --source nowhere --out X", "source folder"),
        ("run --dataset nope --model m --out X", "unknown dataset 'nope'"),
        ("run --explainers gradcan --model m --out X", "did you mean gradcam"),
        ("run --metrics miou --model m --out X", "unknown metric 'miou'"),
        ("train --dataset nope --model m --out X", "unknown dataset"),
        ("report nowhere", "nowhere"),
    ],
)
def test_what_a_user_can_mend_is_one_line_and_exit_code_2(line, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(line.split()) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("saliency-bench: error: ")
    assert words in shown.err
    assert shown.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_names_of_strangers_move_no_cursor_and_stay_short(capsys, tmp_path):
    line = ["run", "--dataset", "nope\x1b[2J\u202e", "--model", "m", "--out", str(tmp_path / "run")]
    assert main(line) == 2
    shown = capsys.readouterr().err
    assert shown.strip("\n").isprintable()
    assert r"nope\x1b[2J\u202e" in shown
    complain("\x1b[31m two\nlines " + "x" * 10**5)
    shown = capsys.readouterr().err
    assert shown.strip("\n").isprintable()
    assert len(shown) < 2100


def test_debug_shows_the_traceback():
    with pytest.raises(saliency_bench.errors.UserError):
        main(["run", "--dataset", "nope", "--model", "m", "--out", "X", "--debug"])


@pytest.mark.parametrize("line", ["run", "train --model m", "run --model m --out X --limit many"])
def test_missing_or_malformed_options_exit_with_2(line, capsys):
    assert main(line.split()) == 2
    shown = capsys.readouterr().err
    assert f"saliency-bench {line.split()[0]} --help shows an example" in shown
    assert shown.count("\n") == 1


def test_ctrl_c_is_one_line(capsys, monkeypatch):
    def stop(args):
        raise KeyboardInterrupt

    monkeypatch.setattr(registry.load("push_scripts", "list"), "main", stop)
    assert main(["list"]) == 130
    line = "saliency-bench: stopped; nothing is half-written; go on with: saliency-bench list\n"
    assert capsys.readouterr().err == line


def test_list_as_text_and_as_json(capsys):
    assert main(["list"]) == 0
    text = capsys.readouterr().out
    assert main(["list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"datasets", "explainers", "metrics", "commands", "models"}
    for room, kind in {"explainers": "explainers", "metrics": "metrics", "hub_builders": "datasets"}.items():
        assert set(found[kind]) == set(registry.names(room))
        assert all(name in text for name in found[kind])
        assert all(found[kind].values())


def test_listed_explainers_tell_their_paper_what_they_need_and_their_passes(capsys):
    assert main(["list", "explainers", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["explainers"]
    for name, about in listed.items():
        module = registry.load("explainers", name)
        told, bracket, costs = about.rpartition(" [")
        assert bracket, name
        options = dict(saliency_bench.load_explainer(name).options)
        assert costs.startswith(f"{module.NEEDS}; {module.passes(options, 224, 224)}"), name
        needs = set(re.split(", | or ", module.NEEDS))
        assert needs <= {"gradients", "activations", "attention", "outputs", "nothing"}, name
        is_baseline = getattr(module, "BASELINE", False)
        assert is_baseline == (needs == {"nothing"}), name
        assert is_baseline or re.search(r"\b(19|20)\d\d\b|\bP[0-4]\b", told), name


def test_the_main_commands_one_after_the_other(shapes, resnet, tmp_path, capsys):
    folder = str(tmp_path / "run")
    line = [
        "run",
        "--dataset",
        str(shapes),
        "--model",
        str(resnet),
        "--explainers",
        "gradcam",
        "random",
        "--limit",
        "8",
    ]
    assert main([*line, "--metrics", "saliency_miou", "--device", "cpu", "--out", folder, "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert len(summary["cells"]) == 2
    assert main([*line, "--metrics", "saliency_miou", "--device", "cpu", "--out", folder]) == 0
    shown = capsys.readouterr().out
    assert "gradcam" in shown
    assert "report.html" in shown
    assert main(["report", folder]) == 0
    assert "report.html" in capsys.readouterr().out
