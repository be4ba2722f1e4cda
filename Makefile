# Everything runs in .venv; PYTHON picks the interpreter that makes it (3.11 or later), CONSTRAINTS the versions in it.
PYTHON ?= python3
CONSTRAINTS ?= constraints.txt
CODE = saliency_bench explainers metrics hub_builders push_scripts

.PHONY: install demo test slow thorough lint types coverage docs site linkcheck clean

install: .venv/bin/saliency-bench
.venv/bin/saliency-bench: pyproject.toml setup.py $(CONSTRAINTS)
	$(PYTHON) -m venv .venv
	.venv/bin/pip install --quiet -c $(CONSTRAINTS) -e ".[test]"
	touch $@

.venv/bin/sphinx-build: .venv/bin/saliency-bench
	.venv/bin/pip install --quiet -c $(CONSTRAINTS) -e ".[demo,docs]"

# The wheels of Spaces with a study (Linux x86-64, Python 3.11) by their hashes; torch, for the CPU, has an index of its own.
spaces/requirements.txt: pyproject.toml constraints.txt
	$(PYTHON) -m pip install --dry-run --ignore-installed --only-binary :all: --quiet --report - -c constraints.txt \
	  ".[studies,lime,onnx,postgres,segment]" | $(PYTHON) -c 'import json, re, sys; [print(item["metadata"]["name"].lower() \
	  + "==" + item["metadata"]["version"], "--hash=sha256:" + item["download_info"]["archive_info"]["hashes"]["sha256"]) \
	  for item in sorted(json.load(sys.stdin)["install"], key=lambda item: item["metadata"]["name"].lower()) \
	  if not re.match("saliency|torch|nvidia|cuda|triton", item["metadata"]["name"])]' >$@

demo: install
	.venv/bin/saliency-bench demo
test: install
	.venv/bin/pytest -n 2
slow: install
	.venv/bin/pytest -n 2 --dist loadfile -m "slow and not thorough"
thorough: install
	.venv/bin/pytest -n 2 --dist loadfile -m thorough
lint: install
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/codespell
types: install
	.venv/bin/mypy $(CODE)
coverage: install
	.venv/bin/pytest -n 2 --cov --cov-report=term
docs: .venv/bin/sphinx-build
	.venv/bin/sphinx-build -W --keep-going -n -b html docs docs/_build/html
# The site as it is published, with pictures: two networks are trained whose maps the pages of explainers and metrics show.
site: .venv/bin/sphinx-build
	.venv/bin/sphinx-build -W --keep-going -n -t pictures -b html docs docs/_build/html
linkcheck: .venv/bin/sphinx-build
	.venv/bin/sphinx-build -q -b linkcheck docs docs/_build/linkcheck
clean:
	rm -rf .venv build dist docs/_build docs/metric_cards docs/generated docs/notebooks *.egg-info .coverage .mypy_cache .pytest_cache .ruff_cache .hypothesis
