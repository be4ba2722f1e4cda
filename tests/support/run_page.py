"""Runs the code blocks of one Markdown page, in its order and in the current folder: `python run_page.py PAGE`.

A process of its own, so that Python and shell see one environment, which the Hub's client reads when it is imported.
`<!-- skip: next -->` leaves out the block that follows.
"""

import subprocess
import sys
from pathlib import Path

from sybil import Example, Sybil
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser, SkipParser

STEP = "STEP "
NOT_HERE = "<!-- test command -->"  # it runs the tests, so no test runs it


def shell(example: Example) -> None:
    if not example.document.text[: example.region.start].rstrip().endswith(NOT_HERE):
        subprocess.run(["sh", "-ec", str(example.parsed)], check=True)


def main(page: Path) -> None:
    document = Sybil([CodeBlockParser("sh", shell), PythonCodeBlockParser(), SkipParser()]).parse(page)
    document.namespace["__name__"] = "__main__"
    examples = list(document.examples())
    if page.name == "README.md":  # it opens with Python, which needs what its first command makes
        examples.sort(key=lambda example: example.region.lexemes.get("arguments") == "python")
    for example in examples:
        for stream in (sys.stdout, sys.stderr):
            print(f"{STEP}{page.name}, line {example.line}", file=stream, flush=True)
        example.evaluate()
        sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
