"""Tests of invalid command lines: they end with one line and exit code 2, before anything is loaded or written."""

import json
import shlex
import subprocess
import sys
import time
from contextlib import chdir, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

import hostile_lines
import numpy as np
import pytest
from hostile import typed
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from test_reporting import make_run

from saliency_bench import registry
from saliency_bench.cli import main

GOOD = "--dataset shapes --model net --explainers gradcam --metrics saliency_miou"
# {template: "text for _ | part of the message; ..."}. {good}: the settings above.
LINES = {
    "run {good} --out X _": """
        --limit 0 | limit; --limit 1.5 | --limit; --batch-size 0 | batch_size; --seed one | --seed; extra | extra;
        --device banana | unknown device 'banana'; --device cuda:99 | cuda:99; --device mps | mps;
        --target nowhere.csv | nowhere.csv; --target Predicted | did you mean predicted;
        --target contrast | did you mean contrast:second; --target full | full;
        --label-map voc-to-imagenet | voc_to_imagenet; --label-map file.txt | file.txt; --label-map full | full;
        --groups nowhere.json | nowhere.json; --groups broken.json | broken.json;
        --split tset | split; --only correct --only banana=1 | banana""",
    "run {good} --out _": """
        file.txt | file.txt; file.txt/run | file.txt; shapes | shapes; net | net; full | full; . | different --out;
        / | different --out; /proc/nothing | /proc/nothing""",
    "run --dataset _ --model net --out X": """
        nope | no folder with this name either; pets | did you mean pet-xai; ./nowhere | ./nowhere; a/b/c | a/b/c;
        file.txt | file.txt; '' | dataset""",
    "run --dataset shapes --model _ --out X": """
        ./nowhere | ./nowhere; a/b/c | a/b/c; file.txt | file.txt; full | full;
        torchvision:resnet17 | did you mean resnet18; '' | model""",
    "run --model net --explainers _ --out X": """
        GradCAM | did you mean gradcam; gradcam,random | gradcam random; gradcam, random | separate names with spaces;
        '' | explainer; ig | did you mean integrated_gradients; saliency_miou | saliency_miou is a metric;
        rise:mask=3 | did you mean masks; rise:masks | masks; rise:masks=many | many; rise:p=2 | 0 < p;
        gradcam:layer=3 | layer; gradcam:on=Logit | logit; random:steps=3 | random;
        integrated_gradients:steps=2.5 | steps; random --explainers centre | --explainers""",
    "run --model net --metrics _ --out X": """
        saliency_miou --metrics saliency_iosr | --metrics; saliency_miou,saliency_iosr | saliency_miou saliency_iosr;
        PG | did you mean saliency_pointing_game; gradcam | gradcam is an explainer;
        saliency_miou:threshold=2 | threshold; saliency_miou:thresh=0.3 | did you mean threshold;
        saliency_insertion:steps=2.5 | steps; saliency_pointing_game:ties=all | ties""",
    "run _": """
        --dataset shapes --model net --explainers --out X | --explainers;
        --model net --model net --explainers random --out X | --model""",
    "train --dataset shapes --model net --out X _": """
        --epochs 0 | epochs; --learning-rate 0 | learning-rate; --learning-rate nan | learning-rate; --size 0 | size;
        --limit 0 | limit; --batch-size 0 | batch-size; --device banana | banana""",
    "train --dataset shapes --model net --out _": "full | full; file.txt | file.txt; file.txt/model | file.txt",
    "train _": """
        --dataset nope --model net --out X | unknown dataset; --dataset shapes --model net | --out;
        --dataset shapes --model ./nowhere --out X | ./nowhere;
        --dataset shapes --model nowhere/config.json --out X | config.json""",
    "template shapes net --out X _": """
        --images jpg | --images; --limit 0 | limit; --target nowhere.csv | nowhere.csv;
        --groups nowhere.csv | nowhere.csv; --device banana | banana""",
    "template shapes net --out _": "full | full; file.txt | file.txt; file.txt/t | file.txt",
    "template _": """
        shapes --out X | MODEL; nope net --out X | unknown dataset; shapes ./nowhere --out X | ./nowhere""",
    "analyse _": """
        done | --what; done --what banana | --what; nowhere --what rank | nowhere; full --what rank | full;
        done --what sweep | more than one value""",
    "check _": """
        done | --require; nowhere --require gradcam:saliency_miou>=0.3 | nowhere;
        full --require gradcam:saliency_miou>=0.3 | full;
        done --require gradcam:saliency_miou>=0.3 --against full | full""",
    "report _": """
        nowhere | nowhere; full | full; file.txt | file.txt; done nowhere --out X.html | nowhere;
        -- -nowhere | -nowhere is not the folder of a finished run;
        done other | --out; done other --out file.txt/page.html | file.txt""",
    "submit _": """
        nowhere | nowhere; full --dry-run | full; file.txt --dry-run | file.txt; done --dry-run --name mine | name;
        done --dry-run --partial | partial; done --dry-run --metrics saliency_miou | metrics;
        maps --name mine --dry-run | template; maps --template nowhere --name mine --dry-run | nowhere;
        done --dry-run --namespace a/b | a/b; done --dry-run --namespace '' | namespace""",
    "push dataset shapes --dry-run _": """
        --note hello | --note; --license mit | --license; --eval-results | --eval-results; --name a/b | a/b""",
    "push _": """
        banana shapes | banana; dataset nowhere --dry-run | nowhere; dataset full --dry-run | full;
        dataset file.txt --dry-run | file.txt; metric miou --dry-run | did you mean saliency_miou;
        metric saliency_miou --dry-run --name mine | --name; model nowhere --dry-run --license mit | nowhere;
        model full --dry-run --license mit | full; model net --dry-run | training_log.json;
        results nowhere --dry-run | nowhere; results done --dry-run --name mine | --name""",
    "build shapes-xai --out X _": """
        --count 0 | count; --count few | --count; --size 0 | size; --colour red | --colour;
        --workers 0 | workers; --source nowhere | source""",
    "build _": """
        nope --out X | nope; shapes --out X | did you mean shapes-xai; shapes-xai | --out;
        shapes-xai --out full | full; shapes-xai --out file.txt | file.txt; shapes-xai --out loop | loop;
        shapes-xai --out file.txt/data | file.txt; pet-xai --out X | --source;
        pet-xai --source file.txt --out X | file.txt; pet-xai --source nowhere --out X | source folder;
        pet-xai --source full --out X | full; pet-xai --source full --out full/X --seed many | --seed""",
    "new _": """
        banana mine | banana; explainer | NAME; explainer Mine-Is | Mine-Is; explainer mine | checkout;
        metric mine | saliency_mine; explainer mine --asks masks | --asks""",
    "list _": "banana | banana; explainers metric | unknown explainer 'metric'; models risee | did you mean rise",
    "help _": "rnu | or command 'rnu'; miou | unknown explainer, metric, dataset or command 'miou'",
    "install-metrics _": "miou | did you mean saliency_miou; saliency_miou nope | nope",
    "demo _": """
        --limit 0 --out X | limit; --batch-size 0 --out X | batch_size; --device banana --out X | banana;
        --out file.txt | file.txt; --out file.txt/demo | file.txt; extra | extra""",
    "_": """
        Run --model net | did you mean run; exlpane | unknown command;
        --quiet list | options must follow the command, as in saliency-bench list --quiet;
        analyse | RUN; check | RUN; report | RUN; submit | RUN|MAPS; push | kind; build | NAME; new | kind""",
}


def lines():
    for template, entries in LINES.items():
        for entry in entries.strip().split(";"):
            value, _, words = entry.rpartition("| ")
            yield template.replace("_", value.strip(), 1).replace("{good}", GOOD).strip(), words


@pytest.fixture(scope="module")
def prepared(tmp_path_factory, shapes, resnet):
    folder = tmp_path_factory.mktemp("place")
    (folder / "shapes").symlink_to(shapes)
    (folder / "net").symlink_to(resnet)
    (folder / "loop").symlink_to("loop")
    (folder / "file.txt").write_text("hello\n")
    (folder / "broken.json").write_text('{"a": [1')
    (folder / "full").mkdir()
    (folder / "full" / "letter.txt").write_text("hello\n")
    (folder / "maps").mkdir()
    np.save(folder / "maps" / "a.npy", np.zeros((32, 32)))
    Image.new("RGB", (8, 8)).save(folder / "picture.png")
    make_run(folder / "done", samples=12, pictures=False)
    make_run(folder / "other", samples=12, seed=1, pictures=False)
    return folder


def inside(folder: Path) -> dict[str, tuple]:
    return {str(path): (path.lstat().st_mtime_ns, path.lstat().st_size) for path in sorted(folder.rglob("*"))}


class LoadedError(Exception):
    """Raised if a dataset or network is loaded."""


@pytest.fixture
def nothing_loads(monkeypatch):
    """Fail if a dataset or a network is loaded, or if a request is sent to the Hub."""

    def refuse(*args, **kwargs):
        raise LoadedError(str(args)[:200])

    for name in (
        "datasets.load_dataset", "datasets.Dataset.from_parquet", "safetensors.safe_open", "torch.load",
        "transformers.AutoModelForImageClassification.from_pretrained", "requests.Session.send", "httpx.Client.send",
    ):  # fmt: skip
        monkeypatch.setattr(name, refuse)


NEEDS_LOADING = ("--split tset",)  # errors that require the dataset


@pytest.mark.parametrize(("line", "words"), lines())
def test_wrong_line_gives_one_error_and_writes_nothing(line, words, prepared, capsys, monkeypatch, request):
    if not any(part in line for part in NEEDS_LOADING):
        request.getfixturevalue("nothing_loads")
    monkeypatch.chdir(prepared)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    before = inside(prepared)
    started = time.process_time()
    code = main(shlex.split(line))
    seconds = time.process_time() - started
    shown = capsys.readouterr()
    assert code == 2, (shown, words)
    errors = [text for text in shown.err.splitlines() if "error:" in text]
    assert len(errors) == 1, shown.err
    assert words in errors[0]
    assert "Traceback" not in shown.err
    others = [text for text in shown.err.splitlines() if "error:" not in text]
    assert all("is loaded from the folder" in text for text in others), others  # the folder with this name
    assert (shown.out, inside(prepared)) == ("", before)
    assert seconds < 3, seconds


# Values that are known only after importing torch: options of explainers and metrics, devices, and names in
# torchvision.
NEEDS_TORCH = ("--device cuda:99", "--device mps", "rise:masks=", "rise:p=", "gradcam:on=", "gradcam:layer=",
               "integrated_gradients:", "occlusion:", "centre:", "saliency_miou:threshold=", "saliency_insertion:",
               "saliency_pointing_game:", "torchvision:", "--target full", "--split", "--dataset full",
               "template shapes net --out X --limit 0", "submit", "push", "build", "report", "check",
               "analyse nowhere", "analyse full", "--what sweep", "--only", "install-metrics",
               "train --dataset shapes --model net --out", "--label-map", "--groups", "demo")  # fmt: skip
WITHOUT_TORCH = """
import json, shlex, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "datasets", "transformers"):
            raise ImportError(f"{name} is not to be imported")
sys.meta_path.insert(0, Refuse())
from saliency_bench.cli import main
codes = {line: main(shlex.split(line)) for line in json.load(sys.stdin)}
print(json.dumps(codes))
"""


@pytest.mark.slow
def test_names_and_paths_are_checked_before_importing_torch(prepared):
    early = [line for line, _ in lines() if not any(part in line for part in NEEDS_TORCH)]
    assert len(early) > 60
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], input=json.dumps(early), cwd=prepared, text=True,
                          capture_output=True, check=True)  # fmt: skip
    assert {line: code for line, code in json.loads(done.stdout).items() if code != 2} == {}, done.stderr


@settings(max_examples=60)
@given(st.lists(st.sampled_from([*(word for line, _ in lines() for word in shlex.split(line))]), max_size=6), st.data())
def test_random_arguments_give_one_line(words, data):
    """Test random sequences of these words after any command that only writes to given paths."""
    command = data.draw(st.sampled_from(["run", "template", "report", "build", "push", "submit", "new", "train"]))
    shown = StringIO()
    with TemporaryDirectory() as folder, chdir(folder), redirect_stderr(shown), redirect_stdout(StringIO()):
        code = main([command, *words, "--limit", "few"])
    assert (code, shown.getvalue().count("\n")) == (2, 1)
    assert "unexpected error" not in shown.getvalue()


@pytest.mark.thorough
def test_hostile_command_lines_end_with_one_line(tmp_path):
    """Test lines of benchmarks/hostile.py, which end soon and leave no partial files."""
    shown = []
    found = typed(60, tmp_path, shown=shown.append)
    assert shown == []
    assert found["exit code 2"] >= 30


def test_hostile_lines_cover_every_command():
    seen = [line[0] for line, _ in zip(hostile_lines.lines(["file.txt"]), range(100), strict=False)]
    assert set(seen) >= set(registry.names("push_scripts"))
