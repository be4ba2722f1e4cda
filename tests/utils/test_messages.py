"""Tests of messages: the stream depends on the logging configuration of the calling program."""

import logging
import subprocess
import sys

import pytest

from saliency_bench.cli import main
from saliency_bench.utils.messages import LOGGER, complain, lines_shown
from saliency_bench.utils.progress import bar, step, without_bars


@pytest.fixture
def logged(monkeypatch):
    """Configure logging as in a program that uses the package; tests/conftest.py uses another configuration."""
    monkeypatch.setattr(LOGGER, "propagate", True)
    monkeypatch.setattr(LOGGER, "handlers", [])


def test_warning_is_printed_without_logging_setup():
    code = "from saliency_bench.utils.messages import complain; complain('two\\nlines')"
    for before, line in (("", "two lines\n"), ("import logging; logging.disable(logging.WARNING); ", "")):
        done = subprocess.run([sys.executable, "-c", before + code], capture_output=True, text=True)
        assert (done.stdout, done.stderr) == ("", line)


def test_command_prints_warning_with_program_name(logged, capsys):
    with lines_shown():
        complain("two\nlines")
    assert capsys.readouterr().err == "saliency-bench: two lines\n"
    assert (LOGGER.propagate, LOGGER.handlers) == (True, [])


def test_warning_is_logged_with_its_origin(logged, caplog, capsys):
    complain("something")
    (record,) = caplog.records
    assert (record.name, record.levelname, record.getMessage()) == ("saliency_bench", "WARNING", "something")
    assert record.filename == "test_messages.py"
    assert capsys.readouterr().err == ""


def test_logging_level_silences_warnings(logged, caplog, capsys, monkeypatch):
    monkeypatch.setattr(LOGGER, "level", logging.ERROR)
    LOGGER.manager._clear_cache()
    complain("something")
    with lines_shown():
        complain("something")
    assert (caplog.records, capsys.readouterr().err) == ([], "")
    monkeypatch.undo()
    LOGGER.manager._clear_cache()


def test_command_prints_errors_with_any_logging_setup(logged, caplog, capsys):
    assert main(["run", "--dataset", "nothing-of-this-name"]) == 2
    assert capsys.readouterr().err.startswith("saliency-bench: error: ")
    assert caplog.records == []
    assert LOGGER.propagate


@pytest.mark.slow
def test_import_configures_no_logging():
    code = "import logging, saliency_bench as sb; sb.run; sb.train; names = logging.root.manager.loggerDict; " \
           "print(logging.root.handlers, getattr(names.get('saliency_bench'), 'handlers', []))"  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[] []\n", done.stderr


def test_tqdm_disable_turns_bars_off():
    code = "from saliency_bench.utils.progress import bar; list(bar(range(3))); print('done')"
    environment = {"PATH": "", "TQDM_DISABLE": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert (done.stdout, done.stderr) == ("done\n", "")


def test_without_bars_hides_progress(capsys):
    with without_bars():
        assert list(bar(range(3))) == [0, 1, 2]
        step("a line of progress")
        print("a result")
    with without_bars(False):
        step("another line")
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("a result\n", "another line\n")
