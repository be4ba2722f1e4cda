"""What ends a command from outside: signals, a lost process, a limit of time; and a terminal that knows ASCII alone."""

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from PIL import Image

import saliency_bench as sb
from saliency_bench.errors import UserError
from saliency_bench.utils.interrupts import time_limit

SLOW = ["gradcam", "rise:masks=1000"]
NAMES = ("records.parquet", "predictions.parquet")
# An explainer that never comes back, in three ways; the last one lets no other thread of Python run.
HANGS = {
    "loop": "while True: pass",
    "blocks": "import time; time.sleep(1000)",
    "C code": "import re; re.match('(a+)+$', 'a' * 60 + 'b')",
}
HANGING = """
import sys
from saliency_bench import cli, registry
real = registry.load
def load(kind, name, **more):
    module = real(kind, name, **more)
    if (kind, name) == ("{kind}", "{name}"):
        def hang(classifier, images, target, *, seeds):
            {body}
        def hang_metric(maps, masks, *, tolerance=0, ties="share"):
            {body}
        setattr(module, name, hang if kind == "explainers" else hang_metric)
    return module
registry.load = load
sys.exit(cli.main())
"""


def environment(tmp_path, **more):
    own = {"HF_DATASETS_CACHE": str(tmp_path / "caches"), "SALIENCY_BENCH_CACHE": str(tmp_path / "caches")}
    return os.environ | own | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"} | more


def words(shapes, resnet, *more, explainers=SLOW, metrics=("saliency_miou",), limit=24):
    return ["run", "--dataset", str(shapes), "--model", str(resnet), "--explainers", *explainers, "--metrics", *metrics,
            "--batch-size", "4", "--limit", str(limit), "--device", "cpu", "--json", "--out", "run", *more]  # fmt: skip


def started(command, tmp_path, launch=("-m", "saliency_bench"), **more):
    return subprocess.Popen(
        [sys.executable, *launch, *command], cwd=tmp_path, env=environment(tmp_path, **more),
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=heeding,
    )  # fmt: skip


def heeding():
    """Tests in the background, or under nohup, ignore these."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@pytest.fixture
def heeded():
    """Ctrl-C raises here, also in tests that run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def parts(tmp_path):
    return list((tmp_path / "run").glob("chunks/*/*.parquet"))


def wait_for(condition, process):
    until = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < until
        time.sleep(0.01)


def half_written(folder):
    return [path for path in folder.rglob("*") if path.suffix == ".tmp" or path.name.endswith(".part")]


@pytest.mark.parametrize(
    ("name", "limited"),  # under a limit of time, another process watches
    [("SIGTERM", False), ("SIGTERM", True), ("SIGHUP", False), ("SIGINT", False), ("SIGINT", True)],
)
def test_a_signal_ends_a_run_at_once_with_the_command_that_resumes(name, limited, shapes, resnet, tmp_path):
    number = getattr(signal, name)
    command = words(shapes, resnet, *["--chunk-timeout", "500"] * limited)
    process = started(command, tmp_path)
    wait_for(lambda: len(parts(tmp_path)) >= 2, process)
    os.kill(process.pid, number)
    start = time.monotonic()
    _, shown = process.communicate(timeout=60)
    assert time.monotonic() - start < 10
    assert process.returncode == 128 + number
    by = "" if name == "SIGINT" else f" by {name}"
    line = f"saliency-bench: stopped{by}; complete chunks are kept; go on with: saliency-bench {shlex.join(command)}"
    assert shown.strip().splitlines()[-1] == line
    assert shown.count("saliency-bench:") == 1
    assert "Traceback" not in shown
    assert half_written(tmp_path / "run") == []
    kept = {path: path.stat().st_mtime_ns for path in parts(tmp_path)}
    if name == "SIGTERM" and not limited:
        done = started(command, tmp_path)
        assert done.communicate(timeout=300) is not None
        assert done.returncode == 0
        assert all(path.stat().st_mtime_ns == before for path, before in kept.items() if path.exists())


def test_a_signal_that_is_ignored_stays_so(shapes, resnet, tmp_path):
    """As under nohup."""
    code = "import signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); from saliency_bench.cli import main; "
    process = started(words(shapes, resnet), tmp_path, ("-c", code + "sys.exit(main())"))
    wait_for(lambda: len(parts(tmp_path)) >= 1, process)
    os.kill(process.pid, signal.SIGHUP)
    count = len(parts(tmp_path))
    wait_for(lambda: len(parts(tmp_path)) > count, process)
    assert process.poll() is None
    process.kill()
    _, shown = process.communicate()
    assert "stopped" not in shown


def test_a_signal_ends_what_waits_in_c_code(tmp_path):
    """A lock that never opens is left to Python in no step of its own."""
    code = (
        "import sys, threading; from saliency_bench import cli, registry\n"
        "def wait(args):\n    print('ready', file=sys.stderr, flush=True)\n    import select, ctypes\n"
        "    ctypes.CDLL(None).sleep(1000)\n    ctypes.CDLL(None).sleep(1000)\n"
        "registry.load('push_scripts', 'list').main = wait\nsys.exit(cli.main())"
    )
    process = started(["list"], tmp_path, ("-c", code))
    assert process.stderr.readline().strip() == "ready"
    process.send_signal(signal.SIGTERM)
    start = time.monotonic()
    _, shown = process.communicate(timeout=60)
    assert time.monotonic() - start < 20
    assert (process.returncode, shown.count("\n")) == (143, 1)
    line = "stopped by SIGTERM; nothing is half-written; start again with: saliency-bench list"
    assert shown == f"saliency-bench: {line}\n"


@pytest.mark.parametrize("what", ["build", "train"])
def test_a_build_and_a_training_say_what_is_kept(what, shapes, tmp_path, resnet):
    lines = {
        "build": ["build", "shapes-xai", "--count", "60000", "--size", "64", "--out", "shapes"],
        "train": ["train", "--dataset", str(shapes), "--model", str(resnet), "--epochs", "1000", "--size", "32",
                  "--limit", "32", "--device", "cpu", "--out", "model"],
    }  # fmt: skip
    process = started(lines[what], tmp_path)
    pattern = {"build": ".shapes.building/batches/*", "train": "model.training.pt"}[what]
    wait_for(lambda: list(tmp_path.glob(pattern)), process)
    process.send_signal(signal.SIGTERM)
    _, shown = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "Traceback" not in shown
    kept = {"build": "finished batches", "train": "complete epochs"}[what]
    last = shown.strip().splitlines()[-1]
    line = f"saliency-bench: stopped by SIGTERM; {kept} are kept; go on with: saliency-bench {shlex.join(lines[what])}"
    assert last.endswith(line)
    assert list(tmp_path.glob(pattern))
    assert not (tmp_path / "shapes").exists()
    assert not (tmp_path / "model").exists()


def children_of(process):
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True).stdout
    return [int(pid) for pid in found.split()]


def test_a_lost_process_of_torchrun_ends_the_others_with_how_to_resume(shapes, resnet, tmp_path):
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m", "saliency_bench")
    process = started(words(shapes, resnet), tmp_path, launch)
    wait_for(lambda: len(parts(tmp_path)) >= 2, process)
    os.kill(children_of(process)[-1], signal.SIGKILL)
    start = time.monotonic()
    _, shown = process.communicate(timeout=120)
    assert time.monotonic() - start < 60
    assert process.returncode != 0
    ours = [line for line in shown.splitlines() if "saliency-bench: " in line]
    assert any("torchrun" in line or "start the same command again" in line for line in ours), shown
    done = started(words(shapes, resnet), tmp_path, launch)
    _, shown = done.communicate(timeout=300)
    assert done.returncode == 0, shown


def test_a_library_call_leaves_signals_alone(shapes, resnet, tmp_path, heeded):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    seen = []

    def stops(classifier, images, target):
        seen.append([signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)])
        signal.raise_signal(signal.SIGINT)
        return images.mean(dim=1)

    settings = {"dataset": str(shapes), "model": str(resnet), "metrics": "saliency_miou", "out": tmp_path / "run"}
    with pytest.raises(KeyboardInterrupt):
        sb.run(**settings, explainers=[stops], limit=4, device="cpu", progress=False)
    assert seen == [before]


@pytest.fixture
def interrupted(kind, where, resnet):
    """(a model, an explainer), one of which gets a signal whose handler raises; the handler is there afterwards."""

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


@pytest.mark.parametrize("where", ["explainer", "model"])
@pytest.mark.parametrize("kind", [TimeoutError, SystemExit])
def test_what_a_handler_raises_ends_a_run_and_is_no_fault_of_a_sample(kind, interrupted, shapes, tmp_path):
    """As in the processes of a launcher: their handlers raise an Exception, which a sample would be left out for."""
    model, explainer = interrupted
    settings = {"dataset": str(shapes), "explainers": [explainer], "metrics": "saliency_miou", "out": tmp_path / "run"}
    with pytest.raises(kind, match="the launcher ends"):
        sb.run(**settings, model=model, limit=4, device="cpu", progress=False)
    assert list((tmp_path / "run").glob("chunks/*/*.parquet")) == []


@pytest.mark.parametrize("where", ["explainer", "model"])
@pytest.mark.parametrize("kind", [TimeoutError, ValueError, KeyError, SystemExit])
def test_what_a_handler_raises_reaches_who_explains_one_picture(kind, interrupted):
    model, explainer = interrupted
    with pytest.raises(kind, match="the launcher ends"):
        sb.explain(Image.new("RGB", (32, 32)), model, explainer)


# A limit of time for a chunk.


@pytest.mark.parametrize("kind", HANGS)
def test_an_explainer_that_hangs_ends_the_command_and_is_named(kind, shapes, resnet, tmp_path):
    code = HANGING.format(kind="explainers", name="random", body=HANGS[kind])
    line = words(shapes, resnet, "--chunk-timeout", "8", explainers=["gradcam", "random"])
    process = started(line, tmp_path, ("-c", code))
    _, shown = process.communicate(timeout=120)
    assert process.returncode == 2, shown
    last = shown.strip().splitlines()[-1]
    assert last.startswith("saliency-bench: error: the explainer random on the chunk of image")
    assert "takes longer than 8 s (--chunk-timeout)" in last
    assert len(parts(tmp_path)) == 1 or kind == "C code"  # of gradcam; no thread runs that could write it
    assert half_written(tmp_path / "run") == [] or kind == "C code"  # nor one that is ended between two steps
    others = started(words(shapes, resnet, explainers=["gradcam"]), tmp_path)
    _, shown = others.communicate(timeout=120)
    assert others.returncode == 0, shown
    assert half_written(tmp_path / "run") == []


def test_a_metric_that_hangs_is_named_with_the_explainer(shapes, resnet, tmp_path):
    code = HANGING.format(kind="metrics", name="saliency_pointing_game", body=HANGS["loop"])
    line = words(shapes, resnet, "--chunk-timeout", "8", explainers=["random"], metrics=["saliency_pointing_game"])
    process = started(line, tmp_path, ("-c", code))
    _, shown = process.communicate(timeout=120)
    assert process.returncode == 2, shown
    assert "error: the metric saliency_pointing_game of random on the chunk of image" in shown


@pytest.mark.parametrize("kind", ["loop", "blocks"])
def test_in_a_library_call_the_caller_gets_an_error(kind, shapes, resnet, tmp_path):
    def hang(classifier, images, target):
        exec(HANGS[kind])

    settings = {"dataset": str(shapes), "model": str(resnet), "metrics": "saliency_miou", "out": tmp_path / "run",
                "limit": 4, "device": "cpu", "progress": False}  # fmt: skip
    start = time.monotonic()
    with pytest.raises(UserError, match=r"hang on the chunk of images \S+ \.\.\. \S+ \(16 images\) .*longer than 1 s"):
        sb.run(**settings, explainers=["centre", hang], chunk_timeout=1)
    assert time.monotonic() - start < 30
    assert len(parts(tmp_path)) == 1
    assert sb.run(**settings, explainers=["centre"]).summary["faults"] == {}


def test_a_thread_is_interrupted_too_and_what_cannot_be_is_said(monkeypatch, capsys):
    monkeypatch.setattr("saliency_bench.utils.interrupts.GRACE", 0.2)
    caught = []

    def work():
        try:
            with time_limit(0.2, "the work"):
                time.sleep(1.5)  # a system call, which only the main thread leaves early
                while True:
                    pass
        except UserError as error:
            caught.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(30)
    assert caught == [line for line in caught if line.startswith("the work takes longer than 0.2 s")] != []
    assert "the work takes longer than 0.2 s" in capsys.readouterr().err


def test_work_in_time_is_left_alone_and_inner_limits_do_not_count():
    with time_limit(0.3, "all"), time_limit(0.01, "inner"):
        time.sleep(0.1)
    time.sleep(0.5)
    with time_limit(None, "all"):
        pass
    with pytest.raises(KeyError), time_limit(5, "all"):
        raise KeyError
    with pytest.raises(KeyboardInterrupt), time_limit(5, "all"):
        raise KeyboardInterrupt


# Text where the locale knows ASCII alone.


@pytest.mark.parametrize("output", [{}, {"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "latin-1"}])
def test_every_text_is_printed_whatever_the_locale(output, shapes, resnet, tmp_path):
    plain = {key: value for key, value in environment(tmp_path).items() if key not in ("LANG", "PYTHONIOENCODING")}
    plain |= {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"} | output
    lines = [
        [word for word in words(shapes, resnet, explainers=["random", "centre"], limit=4) if word != "--json"],
        ["list"],
        ["list", "--json"],
        ["build", "--help"],
        ["run", "--dataset", "nö", "--model", "m", "--out", "x"],
    ]
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


def test_no_file_is_opened_in_the_encoding_of_the_locale(shapes, resnet, tmp_path):
    """Python warns where an encoding is left out; a library may, our files may not."""
    line = words(shapes, resnet, explainers=["random"], limit=4)
    done = subprocess.run(
        [sys.executable, "-X", "warn_default_encoding", "-W", "default::EncodingWarning",
         "-m", "saliency_bench", *line],
        cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    root = str(Path(sb.__file__).parents[1])
    ours = [line for line in done.stderr.splitlines() if "EncodingWarning" in line and root in line]
    assert [line for line in ours if "site-packages" not in line] == []  # an environment may lie inside the checkout
