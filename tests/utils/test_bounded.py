"""Tests of a child process that reads untrusted data. If it crashes, hangs or grows, the caller gets one line."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from refusals import refused

from saliency_bench.utils import bounded as module
from saliency_bench.utils.bounded import ReaderDiedError, bounded

OS, MANY = "__import__('os')", 10**6
# {action of the child: text of the message}
DEATHS = {
    f"{OS}.abort()": "SIGABRT",  # like C++ `terminate`
    "__import__('ctypes').string_at(0)": "SIGSEGV",
    f"{OS}._exit(0)": "exit code 0",
    "__import__('sys').exit('bye')": "exit code 1",
    f"{OS}.closerange(0, 99)": "exit code 1",
    "max(__import__('itertools').count())": "takes more than 0.5 s",
    "__import__('time').sleep(99)": "takes more than 0.5 s",
    "__import__('numpy').ones((10**5, 10**5))": "MB of memory",
    f"bytes({MANY} + 1)": "unpacks to more than 1,000,000 bytes",
    "'no bytes'": "exit code 1",
}


@pytest.mark.parametrize("code", DEATHS)
def test_dying_child_gives_one_line_error(code):
    assert bounded(eval, "b'before'") == b"before"
    with pytest.raises(ReaderDiedError) as error:
        bounded(eval, code, seconds=0.5, most=MANY, memory=2**28)
    assert DEATHS[code] in str(error.value)
    assert str(error.value).isprintable()
    assert bounded(eval, "b'after'") == b"after"


def test_exception_gives_one_line_error_and_child_continues():
    process = bounded(eval, f"str({OS}.getpid()).encode()")
    refused("ZeroDivisionError: division by zero", bounded, eval, "1 / 0")
    refused("RecursionError", bounded, json.loads, "[" * 10**5)
    assert bounded(eval, f"str({OS}.getpid()).encode()") == process
    assert int(process) != os.getpid()


def test_child_output_is_ignored_and_file_size_is_limited(tmp_path):
    assert bounded(eval, "[print('x' * 9999), b'ok'][1]") == b"ok"
    write = f"str(__import__('pathlib').Path({str(tmp_path / 'file')!r}).write_bytes(b'x' * 999)).encode()"
    refused("File too large", bounded, eval, write)
    assert bounded(eval, write, files=1000) == b"999"


def test_child_sees_no_token_and_keeps_current_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setattr(module, "_idle", [])  # use a new child process
    monkeypatch.chdir(tmp_path)
    assert b"hf_secret" not in bounded(eval, f"str({OS}.environ).encode()")
    assert bounded(eval, f"{OS}.getcwd().encode()").decode() == str(tmp_path)
    module._end_all()


def test_child_imports_nothing_from_current_folder(tmp_path, monkeypatch):
    (tmp_path / "only_here.py").write_text("")
    monkeypatch.chdir(tmp_path)
    refused("No module named 'only_here'", bounded, eval, "__import__('only_here')")


def test_later_call_can_import_module_that_writes(tmp_path, monkeypatch):
    (tmp_path / "writing.py").write_text(
        "import tempfile\nwith tempfile.TemporaryFile() as file:\n    file.write(b'x' * 9)\n\n\n"
        "def answer() -> bytes:\n    return b'imported'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(module, "_idle", [])  # use a new child process
    from writing import answer

    assert bounded(eval, "b'first'") == b"first"
    assert bounded(answer) == b"imported"
    module._end_all()


def test_threads_have_separate_children():
    answers = {}

    def ask(name):
        answers[name] = bounded(eval, f"[__import__('time').sleep(0.2), b'{name}'][1]")

    threads = [threading.Thread(target=ask, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {"a": b"a", "b": b"b"}


@pytest.mark.slow
def test_busy_child_ends_with_killed_parent():
    code = f"""
from saliency_bench.utils.bounded import bounded
print(bounded(eval, "str({OS}.getpid()).encode()").decode(), flush=True)
bounded(eval, "__import__('time').sleep(200)")
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        child = int(parent.stdout.readline())
        time.sleep(0.5)  # wait until the call has started
        parent.kill()
    ends = time.monotonic() + 20
    while Path(f"/proc/{child}/stat").exists() and time.monotonic() < ends:
        time.sleep(0.1)
    assert not Path(f"/proc/{child}/stat").exists()
