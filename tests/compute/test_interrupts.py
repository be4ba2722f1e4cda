"""Test interruptions of a command by signals or a lost process, and a terminal that supports only ASCII."""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

import saliency_bench as sb
from saliency_bench.cli import main

SLOW = ["gradcam", "rise:masks=500"]
NAMES = ("records.parquet", "predictions.parquet")


AT_ONCE = Path(__file__).parents[1] / "support" / "writing_at_once.py"


def environment(tmp_path, **more):
    own = {"HF_DATASETS_CACHE": str(tmp_path / "caches"), "SALIENCY_BENCH_CACHE": str(tmp_path / "caches")}
    return os.environ | own | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"} | more


def words(shapes, resnet, *more, explainers=SLOW, metrics=("saliency_miou",), limit=24):
    return ["run", "--dataset", str(shapes), "--model", str(resnet), "--explainers", *explainers, "--metrics", *metrics,
            "--batch-size", "4", "--limit", str(limit), "--device", "cpu", "--json", "--out", "run", *more]  # fmt: skip


def started(command, tmp_path, launch=(str(AT_ONCE),), **more):
    return subprocess.Popen([sys.executable, *launch, *command], cwd=tmp_path, env=environment(tmp_path, **more),
                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
                            preexec_fn=heeding)  # fmt: skip


def heeding():
    """Enable signals that tests in the background or under nohup would ignore."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@pytest.fixture
def heeded():
    """Make Ctrl-C raise KeyboardInterrupt, even in tests that run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def parts(tmp_path):
    return list((tmp_path / "run").glob("scores/*.parquet"))


def wait_for(condition, process):
    until = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.sample(0, 2)
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])
def test_a_signal_ends_a_run_at_once_with_the_command_that_resumes(name, shapes, resnet, tmp_path, monkeypatch):
    number = getattr(signal, name)
    command = words(shapes, resnet)
    process = started(command, tmp_path)
    wait_for(lambda: len(parts(tmp_path)) >= 2, process)
    os.kill(process.pid, number)
    start = time.monotonic()
    _, shown = process.communicate(timeout=60)
    assert time.monotonic() - start < 10
    assert process.returncode == 128 + number
    by = "" if name == "SIGINT" else f" by {name}"
    line = f"saliency-bench: stopped{by}; complete batches are kept; resume with: saliency-bench {shlex.join(command)}"
    assert shown.strip().splitlines()[-1] == line
    assert shown.count("saliency-bench:") == 1
    assert "Traceback" not in shown
    half = [path for path in (tmp_path / "run").rglob("*") if path.suffix == ".tmp" or path.name.endswith(".part")]
    assert half == []
    kept = {path: path.stat().st_mtime_ns for path in parts(tmp_path)}
    if name == "SIGTERM":
        monkeypatch.chdir(tmp_path)
        assert main(command) == 0
        assert all(path.stat().st_mtime_ns == before for path, before in kept.items() if path.exists())


@pytest.mark.thorough
def test_a_signal_that_is_ignored_stays_so(shapes, resnet, tmp_path):
    """Ignore the signal, as nohup does."""
    code = (
        "import signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); from saliency_bench.compute import writing; "
        "from saliency_bench.cli import main; writing.SECONDS = 0; "
    )
    process = started(words(shapes, resnet), tmp_path, ("-c", code + "sys.exit(main())"))
    wait_for(lambda: len(parts(tmp_path)) >= 1, process)
    os.kill(process.pid, signal.SIGHUP)
    count = len(parts(tmp_path))
    wait_for(lambda: len(parts(tmp_path)) > count, process)
    assert process.poll() is None
    process.kill()
    assert "stopped" not in process.communicate()[1]


@pytest.mark.slow
def test_a_second_signal_ends_what_does_not_end_by_itself(tmp_path):
    code = (
        "import sys, time; from saliency_bench import cli, registry\n"
        "def wait(args):\n"
        "    try:\n        print('ready', file=sys.stderr, flush=True)\n        time.sleep(1000)\n"
        "    finally:\n        time.sleep(1000)\n"
        "registry.load('push_scripts', 'list').main = wait\nsys.exit(cli.main())"
    )
    process = started(["list"], tmp_path, ("-c", code))
    assert process.stderr.readline().strip() == "ready"
    process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)  # send the signal again, as a launcher does
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.5)
    process.send_signal(signal.SIGTERM)
    _, shown = process.communicate(timeout=60)
    assert process.returncode == 143
    line = "stopped by SIGTERM; nothing is half-written; start again with: saliency-bench list"
    assert shown == f"saliency-bench: {line}\n"


def test_a_library_call_leaves_signals_alone(shapes, resnet, tmp_path, heeded):
    def handlers():
        return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]

    before, seen = handlers(), []

    def stops(classifier, images, target):
        seen.append(handlers())
        signal.raise_signal(signal.SIGINT)
        return images.mean(dim=1)

    settings = {"dataset": str(shapes), "model": str(resnet), "metrics": "saliency_miou", "out": tmp_path / "run"}
    with pytest.raises(KeyboardInterrupt):
        sb.run(**settings, explainers=[stops], limit=4, device="cpu", progress=False)
    assert seen == [before]


@pytest.fixture
def interrupted(kind, where, resnet):
    """Return (model, explainer), one of which receives a signal. The handler raises an error and stays installed."""

    def tell(number, frame):
        raise kind("the launcher ends")

    def stop(here):
        if here == where:
            signal.raise_signal(signal.SIGTERM)

    def explainer(classifier, images, target):
        stop("explainer")
        return images.mean(dim=1)

    model = sb.load_classifier(str(resnet), device="cpu")
    model.model.register_forward_pre_hook(lambda *given: stop("model"))
    before = signal.signal(signal.SIGTERM, tell)
    try:
        yield model, explainer
        assert signal.getsignal(signal.SIGTERM) is tell
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.sample(1)
@pytest.mark.parametrize("where", ["explainer", "model"])
@pytest.mark.parametrize("kind", [TimeoutError, SystemExit])
def test_what_a_handler_raises_ends_a_run_and_is_no_fault_of_a_sample(kind, interrupted, shapes, tmp_path):
    """Handlers in launched processes raise an Exception. A run must not record it as an error of a sample."""
    model, explainer = interrupted
    settings = {"dataset": str(shapes), "explainers": [explainer], "metrics": "saliency_miou", "out": tmp_path / "run"}
    with pytest.raises(kind, match="the launcher ends"):
        sb.run(**settings, model=model, limit=4, device="cpu", progress=False)
    assert parts(tmp_path) == []


@pytest.mark.parametrize("where", ["explainer", "model"])
@pytest.mark.parametrize("kind", [TimeoutError, ValueError, KeyError, SystemExit])
def test_what_a_handler_raises_reaches_who_explains_one_picture(kind, interrupted):
    model, explainer = interrupted
    with pytest.raises(kind, match="the launcher ends"):
        sb.explain(Image.new("RGB", (32, 32)), model, explainer)


# Text with a locale that supports only ASCII.


@pytest.mark.thorough
@pytest.mark.parametrize("output", [{}, {"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "latin-1"}])
def test_every_text_is_printed_whatever_the_locale(output, shapes, resnet, tmp_path):
    plain = {key: value for key, value in environment(tmp_path).items() if key not in ("LANG", "PYTHONIOENCODING")}
    plain |= {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"} | output
    first = [word for word in words(shapes, resnet, explainers=["random", "centre"], limit=4) if word != "--json"]
    last = ["run", "--dataset", "nö", "--model", "m", "--out", "x"]
    lines = [first, ["list"], ["list", "--json"], ["build", "--help"], last]
    for number, line in enumerate(lines):
        done = subprocess.run([sys.executable, "-m", "saliency_bench", *line], cwd=tmp_path, env=plain,
                              capture_output=True)  # fmt: skip
        assert b"Unicode" not in done.stderr, (line, done.stderr)
        assert done.returncode == (2 if number == 4 else 0), (line, done.stderr)
        if number == 0:
            arrow = "\N{UPWARDS ARROW}"
            assert (arrow if not output else ascii(arrow)[1:-1]).encode() in done.stdout
    page = (tmp_path / "run" / "report.html").read_bytes().decode("utf-8")
    assert "\N{UPWARDS ARROW}" in page


@pytest.mark.thorough
def test_no_file_is_opened_in_the_encoding_of_the_locale(shapes, resnet, tmp_path):
    """Python warns about a missing encoding. A library may cause this warning, but files of the package may not."""
    line = words(shapes, resnet, explainers=["random"], limit=4)
    start = [sys.executable, "-X", "warn_default_encoding", "-W", "default::EncodingWarning", "-m", "saliency_bench"]
    done = subprocess.run([*start, *line], cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    root = str(Path(sb.__file__).parents[1])
    ours = [line for line in done.stderr.splitlines() if "EncodingWarning" in line and root in line]
    assert [line for line in ours if "site-packages" not in line] == []  # a virtual environment may be here
