"""Wrong command lines, one after the other: one line, exit code 2, nothing written, nothing loaded before."""

import json
import shlex
import subprocess
import sys
import time
from contextlib import chdir, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from test_reporting import make_run

from saliency_bench.cli import main

GOOD = "--dataset shapes --model net --explainers gradcam --metrics saliency_miou"
# What stands behind " | " is in the message. {commands}: for each of these.
LINES = """
rnu --model net | did you mean run
Run --model net | did you mean run
exlpane | unknown command
run --out X | --model
run --model net | --out
run --dataset shapes --model net --explainers --out X | --explainers
run {good} --out X --limit many | --limit
run {good} --out X --limit 0 | limit
run {good} --out X --limit -1 | limit
run {good} --out X --limit 1.5 | --limit
run {good} --out X --batch-size 0 | batch_size
run {good} --out X --batch-size big | --batch-size
run {good} --out X --seed one | --seed
run {good} --out X --precision fp8 | --precision
run {good} --out X --banana 3 | --banana
run {good} --out X extra | extra
run {good} --out X --device banana | unknown device 'banana'
run {good} --out X --device cuda:99 | cuda:99
run {good} --out X --device mps | mps
run {good} --out file.txt | file.txt
run {good} --out file.txt/run | file.txt
run {good} --out shapes | shapes
run {good} --out net | net
run {good} --out full | full
run {good} --out . | another --out
run {good} --out / | another --out
run {good} --out /proc/nothing | /proc/nothing
run {good} --out X --target nowhere.csv | nowhere.csv
run {good} --out X --target labels | did you mean label
run {good} --out X --target Predicted | did you mean predicted
run {good} --out X --target contrast | did you mean contrast:second
run {good} --out X --target full | full
run {good} --out X --label-map nowhere.json | nowhere.json
run {good} --out X --label-map voc-to-imagenet | voc_to_imagenet
run {good} --out X --label-map file.txt | file.txt
run {good} --out X --label-map full | full
run {good} --out X --groups nowhere.json | nowhere.json
run {good} --out X --groups broken.json | broken.json
run {good} --out X --groups full | full
run {good} --out X --split tset | split
run --dataset nope --model net --out X | there is no such folder either
run --dataset pets --model net --out X | did you mean pet-xai
run --dataset shapes-xia --model net --out X | did you mean shapes-xai
run --dataset ./nowhere --model net --out X | ./nowhere
run --dataset a/b/c --model net --out X | a/b/c
run --dataset file.txt --model net --out X | file.txt
run --dataset  '' --model net --out X | dataset
run --dataset shapes --model ./nowhere --out X | ./nowhere
run --dataset shapes --model a/b/c --out X | a/b/c
run --dataset shapes --model file.txt --out X | file.txt
run --dataset shapes --model full --out X | full
run --dataset shapes --model torchvision:resnet17 --out X | did you mean resnet18
run --dataset shapes --model '' --out X | model
run --model net --explainers gradcan --out X | did you mean gradcam
run --model net --explainers GradCAM --out X | did you mean gradcam
run --model net --explainers gradcam,random --out X | gradcam random
run --model net --explainers gradcam, random --out X | separated by spaces
run --model net --explainers '' --out X | explainer
run --model net --explainers ig --out X | did you mean integrated_gradients
run --model net --explainers saliency_miou --out X | saliency_miou is a metric
run --model net --explainers rise:mask=3 --out X | did you mean masks
run --model net --explainers rise:masks --out X | masks
run --model net --explainers rise:masks=many --out X | many
run --model net --explainers rise:masks=0 --out X | masks
run --model net --explainers rise:p=2 --out X | 0 < p
run --model net --explainers gradcam:layer=3 --out X | layer
run --model net --explainers gradcam:on=Logit --out X | logit
run --model net --explainers random:steps=3 --out X | random
run --model net --explainers integrated_gradients:steps=0 --out X | steps
run --model net --explainers integrated_gradients:steps=2.5 --out X | steps
run --model net --explainers occlusion:window=0 --out X | window
run --model net --explainers centre:sigma=-1 --out X | above 0
run --model net --explainers random --explainers centre --out X | --explainers
run --model net --metrics saliency_miou --metrics saliency_iosr --out X | --metrics
run --model net --model net --explainers random --out X | --model
run --model net --metrics miou --out X | did you mean saliency_miou
run --model net --metrics saliency_miou,saliency_iosr --out X | saliency_miou saliency_iosr
run --model net --metrics Saliency_mIoU --out X | did you mean saliency_miou
run --model net --metrics PG --out X | did you mean saliency_pointing_game
run --model net --metrics gradcam --out X | gradcam is an explainer
run --model net --metrics saliency_miou:threshold=2 --out X | threshold
run --model net --metrics saliency_miou:thresh=0.3 --out X | did you mean threshold
run --model net --metrics saliency_insertion:steps=2.5 --out X | steps
run --model net --metrics saliency_pointing_game:ties=all --out X | ties
run --model net --metrics saliency_miou:threshold=high --out X | threshold
train --dataset nope --model net --out X | unknown dataset
train --dataset shapes --out X | --model
train --dataset shapes --model net | --out
train --dataset shapes --model ./nowhere --out X | ./nowhere
train --dataset shapes --model nowhere/config.json --out X | config.json
train --dataset shapes --model net --out X --epochs 0 | epochs
train --dataset shapes --model net --out X --epochs -3 | epochs
train --dataset shapes --model net --out X --epochs few | --epochs
train --dataset shapes --model net --out X --learning-rate 0 | learning-rate
train --dataset shapes --model net --out X --learning-rate nan | learning-rate
train --dataset shapes --model net --out X --size 0 | size
train --dataset shapes --model net --out X --limit 0 | limit
train --dataset shapes --model net --out X --batch-size 0 | batch-size
train --dataset shapes --model net --out X --device banana | banana
train --dataset shapes --model net --out full | full
train --dataset shapes --model net --out file.txt | file.txt
train --dataset shapes --model net --out file.txt/model | file.txt
template shapes net | --out
template shapes --out X | MODEL
template nope net --out X | unknown dataset
template shapes ./nowhere --out X | ./nowhere
template shapes net --out full | full
template shapes net --out file.txt | file.txt
template shapes net --out file.txt/t | file.txt
template shapes net --out X --images jpg | --images
template shapes net --out X --limit 0 | limit
template shapes net --out X --target nowhere.csv | nowhere.csv
template shapes net --out X --groups nowhere.csv | nowhere.csv
template shapes net --out X --device banana | banana
run {good} --out X --only correct --only banana=1 | banana
analyse | RUN
analyse done | --what
analyse done --what banana | --what
analyse nowhere --what rank | nowhere
analyse full --what rank | full
analyse done --what sweep | several values
check | RUN
check done | --require
check nowhere --require gradcam:saliency_miou>=0.3 | nowhere
check full --require gradcam:saliency_miou>=0.3 | full
check done --require gradcam | EXPLAINER:METRIC
check done --require gradcam:saliency_miou>=0.3 --against full | full
report | RUN
report nowhere | nowhere
report full | full
report file.txt | file.txt
report done nowhere --out X.html | nowhere
report done other | --out
report done other --out file.txt/page.html | file.txt

submit | RUN|MAPS
submit nowhere | nowhere
submit full --dry-run | full
submit file.txt --dry-run | file.txt
submit done --dry-run --name mine | name
submit done --dry-run --partial | partial
submit done --dry-run --metrics saliency_miou | metrics
submit maps --name mine --dry-run | template
submit maps --template nowhere --name mine --dry-run | nowhere
submit done --dry-run --namespace a/b | a/b
submit done --dry-run --namespace '' | namespace
push | kind
push banana shapes | banana
push dataset nowhere --dry-run | nowhere
push dataset full --dry-run | full
push dataset file.txt --dry-run | file.txt
push dataset shapes --dry-run --note hello | --note
push dataset shapes --dry-run --license mit | --license
push dataset shapes --dry-run --eval-results | --eval-results
push dataset shapes --dry-run --name a/b | a/b
push metric miou --dry-run | did you mean saliency_miou
push metric saliency_miou --dry-run --name mine | --name
push model nowhere --dry-run --license mit | nowhere
push model full --dry-run --license mit | full
push model net --dry-run | training_log.json

push results nowhere --dry-run | nowhere
push results done --dry-run --name mine | --name
build | NAME
build nope --out X | nope
build shapes --out X | did you mean shapes-xai
build shapes-xai | --out
build shapes-xai --out X --count 0 | count
build shapes-xai --out X --count -5 | count
build shapes-xai --out X --count few | --count
build shapes-xai --out X --size 0 | size
build shapes-xai --out X --colour red | --colour
build shapes-xai --out X --workers 0 | workers
build shapes-xai --out X --source nowhere | source
build shapes-xai --out full | full
build shapes-xai --out file.txt | file.txt
build shapes-xai --out file.txt/data | file.txt
build pet-xai --out X | --source
build pet-xai --source nowhere --out X | nowhere
build pet-xai --source file.txt --out X | file.txt
build pet-xai --source full --out X | full
build pet-xai --source full --out full/X --seed many | --seed
new | kind
new banana mine | banana
new explainer | NAME
new explainer Mine-Is | Mine-Is
new explainer mine | checkout
new metric mine | saliency_mine
new explainer mine --asks masks | --asks
list banana | banana
list explainers metric | unknown explainer 'metric'
install-metrics miou | did you mean saliency_miou
install-metrics saliency_miou nope | nope
demo --limit 0 --out X | limit
demo --batch-size 0 --out X | batch_size
demo --device banana --out X | banana
demo --out file.txt | file.txt
demo --out file.txt/demo | file.txt
demo extra | extra
"""


def lines():
    for line in filter(None, LINES.strip().splitlines()):
        command, _, words = line.replace("{good}", GOOD).rpartition(" | ")
        yield command, words


@pytest.fixture(scope="module")
def prepared(tmp_path_factory, shapes, resnet):
    """A folder with a dataset, a model, two runs and what is none of these."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "shapes").symlink_to(shapes)
    (folder / "net").symlink_to(resnet)
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
    """What is expensive was loaded."""


@pytest.fixture
def nothing_loads(monkeypatch):
    """Neither a dataset nor a network is read, and the Hub is not asked."""

    def refuse(*args, **kwargs):
        raise LoadedError(str(args)[:200])

    for name in (
        "datasets.load_dataset", "datasets.Dataset.from_parquet", "safetensors.safe_open", "torch.load",
        "transformers.AutoModelForImageClassification.from_pretrained", "requests.Session.send", "httpx.Client.send",
    ):  # fmt: skip
        monkeypatch.setattr(name, refuse)


NEEDS_LOADING = ("--split tset",)  # what the dataset itself must say


@pytest.mark.sample(1)
@pytest.mark.parametrize(("line", "words"), lines())
def test_one_line_and_nothing_written(line, words, prepared, capsys, monkeypatch, request):
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
    assert all("is the folder" in text for text in others), others  # which folder a name was taken for
    assert shown.out == ""
    assert inside(prepared) == before
    assert seconds < 3, seconds


# What is known to whoever has imported torch: values of options of explainers and metrics, which devices there are,
# names in torchvision.
NEEDS_TORCH = (
    "--device cuda:99", "--device mps", "rise:masks=", "rise:p=", "gradcam:on=", "gradcam:layer=",
    "integrated_gradients:", "occlusion:", "centre:", "saliency_miou:threshold=",
    "saliency_insertion:", "saliency_pointing_game:", "torchvision:",
    "--target full", "--split", "--dataset full", "template shapes net --out X --limit 0",
    "submit", "push", "build", "report", "check", "analyse nowhere", "analyse full", "--what sweep",
    "--only", "install-metrics", "train --dataset shapes --model net --out", "--label-map", "--groups", "demo",
)  # fmt: skip
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
def test_names_files_and_folders_are_checked_before_torch_is_imported(prepared):
    early = [line for line, _ in lines() if not any(part in line for part in NEEDS_TORCH)]
    assert len(early) > 80
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], input=json.dumps(early), cwd=prepared, text=True,
                          capture_output=True, check=True)  # fmt: skip
    assert {line: code for line, code in json.loads(done.stdout).items() if code != 2} == {}, done.stderr


@settings(max_examples=60)
@given(st.lists(st.sampled_from([*(word for line, _ in lines() for word in shlex.split(line))]), max_size=6), st.data())
def test_whatever_is_typed_is_one_line(words, data):
    """Words of these lines in any order, behind any command that writes only where it is told."""
    command = data.draw(st.sampled_from(["run", "template", "report", "build", "push", "submit", "new", "train"]))
    shown = StringIO()
    with TemporaryDirectory() as folder, chdir(folder), redirect_stderr(shown), redirect_stdout(StringIO()):
        code = main([command, *words, "--limit", "few"])
    assert code == 2
    assert shown.getvalue().count("\n") == 1
    assert "unexpected error" not in shown.getvalue()
