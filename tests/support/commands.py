"""Run commands in this process and capture their output."""

from saliency_bench.cli import main


def said(capsys, words, code=0):
    """Return the output of a command with these arguments, or its errors if the exit code is not 0."""
    assert main(words) == code
    shown = capsys.readouterr()
    return shown.err if code else shown.out
