"""What a command says in this process."""

from saliency_bench.cli import main


def said(capsys, words, code=0):
    """What a command with these words prints, or, where it does not end with 0, its errors."""
    assert main(words) == code
    shown = capsys.readouterr()
    return shown.err if code else shown.out
