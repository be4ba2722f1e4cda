"""Run the code blocks of a Markdown page, in order and in the current folder: `python run_page.py PAGE`.

This is a separate process, so that Python and shell share one environment, which the Hub client reads on import. `<!--
skip: next -->` skips the next block.
"""

import subprocess
import sys
from pathlib import Path

from sybil import Example, Sybil
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser, SkipParser

STEP = "STEP "
NOT_HERE = "<!-- test command -->"  # this page runs the tests, so it is not tested


def shell(example: Example) -> None:
    if not example.document.text[: example.region.start].rstrip().endswith(NOT_HERE):
        subprocess.run(["sh", "-ec", str(example.parsed)], check=True)


def main(page: Path) -> None:
    document = Sybil([CodeBlockParser("sh", shell), PythonCodeBlockParser(), SkipParser()]).parse(page)
    document.namespace["__name__"] = "__main__"
    examples = list(document.examples())
    if page.name == "README.md":  # the page starts with Python code that needs the result of its first command
        examples.sort(key=lambda example: example.region.lexemes.get("arguments") == "python")
    for example in examples:
        for stream in (sys.stdout, sys.stderr):
            print(f"{STEP}{page.name}, line {example.line}", file=stream, flush=True)
        example.evaluate()
        sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
