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


def test_without_logging_python_itself_prints_a_warning():
    code = "from saliency_bench.utils.messages import complain; complain('two\\nlines')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("", "two lines\n")
    code = f"import logging; logging.disable(logging.WARNING); {code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_a_command_prints_it_with_its_name(logged, capsys):
    with lines_shown():
        complain("two\nlines")
    assert capsys.readouterr().err == "saliency-bench: two lines\n"
    assert (LOGGER.propagate, LOGGER.handlers) == (True, [])


def test_with_logging_it_is_a_warning_of_the_place_that_complains(logged, caplog, capsys):
    complain("something")
    (record,) = caplog.records
    assert (record.name, record.levelname, record.getMessage()) == ("saliency_bench", "WARNING", "something")
    assert record.filename == "test_messages.py"
    assert capsys.readouterr().err == ""


def test_a_level_silences_it(logged, caplog, capsys, monkeypatch):
    monkeypatch.setattr(LOGGER, "level", logging.ERROR)
    LOGGER.manager._clear_cache()
    complain("something")
    with lines_shown():
        complain("something")
    assert (caplog.records, capsys.readouterr().err) == ([], "")
    monkeypatch.undo()
    LOGGER.manager._clear_cache()


def test_a_command_shows_its_lines_whatever_is_set_up(logged, caplog, capsys):
    assert main(["run", "--dataset", "nothing-of-this-name"]) == 2
    assert capsys.readouterr().err.startswith("saliency-bench: error: ")
    assert caplog.records == []
    assert LOGGER.propagate


@pytest.mark.slow
def test_importing_sets_up_nothing():
    code = "import logging, saliency_bench as sb; sb.run; sb.train; names = logging.root.manager.loggerDict; " \
           "print(logging.root.handlers, getattr(names.get('saliency_bench'), 'handlers', []))"  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[] []\n", done.stderr


def test_the_variable_of_tqdm_turns_bars_off():
    code = "from saliency_bench.utils.progress import bar; list(bar(range(3))); print('done')"
    environment = {"PATH": "", "TQDM_DISABLE": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert (done.stdout, done.stderr) == ("done\n", "")


def test_without_it_they_are_shown(capsys):
    assert list(bar(range(3))) == [0, 1, 2]
    assert "3/3" in capsys.readouterr().err


def test_no_call_shows_a_bar_that_was_turned_off(capsys):
    with without_bars():
        assert list(bar(range(3))) == [0, 1, 2]
        step("a line of progress")
        print("a result")
    with without_bars(False):
        step("another line")
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("a result\n", "another line\n")
