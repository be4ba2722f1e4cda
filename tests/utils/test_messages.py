"""Lines about what is wrong: where they go, by what the calling program has set up."""

import logging
import subprocess
import sys

import pytest

from saliency_bench.cli import main
from saliency_bench.utils.messages import LOGGER, complain
from saliency_bench.utils.progress import bar


@pytest.fixture
def logged(monkeypatch):
    monkeypatch.delattr(LOGGER, "hasHandlers")  # which tests/conftest.py sets


def test_without_logging_a_line_is_on_standard_error(capsys):
    complain("two\nlines")
    assert capsys.readouterr().err == "saliency-bench: two lines\n"


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
    monkeypatch.setattr(LOGGER, "hasHandlers", lambda: False)
    complain("something")
    assert (caplog.records, capsys.readouterr().err) == ([], "")
    monkeypatch.undo()
    LOGGER.manager._clear_cache()


def test_a_command_shows_its_lines_whatever_is_set_up(logged, caplog, capsys):
    assert main(["run", "--dataset", "nothing-of-this-name"]) == 2
    assert capsys.readouterr().err.startswith("saliency-bench: error: ")
    assert caplog.records == []
    assert LOGGER.propagate


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
