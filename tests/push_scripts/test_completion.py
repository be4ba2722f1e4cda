"""Tests of completion with the tab key, in separate processes as the shell starts them."""

import json
import subprocess
import sys

from saliency_bench import registry

REFUSING = """
import json, os, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name in ("torch", "datasets", "transformers", "huggingface_hub"):
            raise ImportError(f"{name} is not to be imported")
sys.meta_path.insert(0, Refuse())
from saliency_bench.cli import main
for number, line in enumerate(json.load(sys.stdin)):
    if not os.fork():
        os.environ |= {
            "_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\\n", "_ARGCOMPLETE_STDOUT_FILENAME": str(number),
            "COMP_LINE": line, "COMP_POINT": str(len(line)), "COMP_TYPE": "9", "_ARGCOMPLETE_SHELL": "bash"}
        main([])
    assert os.wait()[1] == 0
"""
OFFERED = {
    "": {*registry.names("push_scripts"), "help"}, "help tr": {"train"},
    "run --explainers ": set(registry.names("explainers")),
    "run --model net --explainers rise gradcam_": {"gradcam_plus_plus", "gradcam_vit"},
    "run --explainers rise:":
        {f"rise:{name}=" for name in ("masks", "cells", "p", "seed", "on", "reliability", "batch_size", "border")},
    "run --explainers rise:masks=10,c": {"rise:masks=10,cells="},
    "run --metrics saliency_po": {"saliency_pointing_game"},
    "run --precision f": {"fp32", "fp16"}, "run --dataset pe": {"pet-xai"},
    "run --model microsoft/resnet-1": {"microsoft/resnet-18"},
    "run --target pre": {"predicted"}, "run --limit ": set(), "run --out ru": {"runs/"},
    "build shapes": {"shapes-xai"}, "build shapes-xai --co": {"--count"},
    "install-metrics saliency_rec": {"saliency_recall"}, "list exp": {"explainers"},
}  # fmt: skip


def test_tab_completes_commands_options_and_values(tmp_path):
    (tmp_path / "runs").mkdir()
    lines = json.dumps([f"saliency-bench {line}" for line in OFFERED])
    done = subprocess.run([sys.executable, "-c", REFUSING], input=lines, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for number, (line, words) in enumerate(OFFERED.items()):
        found = {word.strip() for word in (tmp_path / str(number)).read_text().splitlines()}
        options = {word for word in found | words if word.startswith("-")}
        assert (words <= found, found - options) == (True, words - options), line


def test_entry_file_is_marked_for_argcomplete():
    from saliency_bench import cli

    with open(cli.__file__) as file:
        assert "PYTHON_ARGCOMPLETE_OK" in file.read(1024)
