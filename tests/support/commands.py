"""Run commands in this process and capture their output."""

from saliency_bench.cli import main


def said(capsys, words, code=0):
    """Return the output of a command with these arguments, or its errors if the exit code is not 0."""
    assert main(words) == code
    shown = capsys.readouterr()
    return shown.err if code else shown.out


def refusal(capsys, words):
    """Return the only line that a command with these arguments prints before it ends with exit code 2."""
    assert main(list(map(str, words))) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert shown.err.startswith("saliency-bench: error: ")
    return shown.err
