# Two commands do all the set-up: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test lint bench clean
.DELETE_ON_ERROR:

demo: $(VENV)/.package
	mkdir -p out
	$(BIN)/flare schedule --cell paper --deadline 1s --seed 3 --compare --plot out/schedule.png
	$(BIN)/flare compare examples/demo.toml --seeds 3 --out out/demo --force \
		--entry flare:exact --entry flare:greedy --entry fedavg:greedy \
		--entry fedavg:ps --entry fedavg:cp --entry fedavg:dm --entry fedavg:cm

# One thread a process, which no test needs: the tests fill the cores by running side by side. One more of them than
# there are cores, for some wait; the longest first (tests/conftest.py), each when a process is free.
WORKERS := $(shell echo $$(( $$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2) + 1 )))

test: $(VENV)/.test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist load --maxschedchunk=4

lint: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.test
	$(BIN)/python benchmarks/scheduling.py
	$(BIN)/python benchmarks/simulation.py
	$(BIN)/python benchmarks/uplink.py
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/flower.py

clean:
	rm -rf $(VENV) out

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.package: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) -e .
	touch $@

$(VENV)/.test: $(VENV)/.package
	$(PIP) -e '.[test,flower]'
	touch $@

$(VENV)/.lint: $(VENV)/.package
	$(PIP) -e '.[lint,flower]'
	touch $@
