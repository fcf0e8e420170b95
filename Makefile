# Two commands do all the set-up: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt

# What is imported is compiled then, and kept; pip would compile all files of all packages, which takes it longer than
# all else that it does.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test lint docs bench clean
.DELETE_ON_ERROR:

demo: $(VENV)/.package
	mkdir -p out
	$(BIN)/flare schedule --cell paper --deadline 1s --seed 3 --compare --plot out/schedule.png
	$(BIN)/flare compare examples/demo.toml --seeds 3 --out out/demo --force \
		--entry flare:exact --entry flare:greedy --entry fedavg:greedy \
		--entry fedavg:ps --entry fedavg:cp --entry fedavg:dm --entry fedavg:cm

# One thread a process, since no test needs more: the tests fill the cores by running side by side. Two processes more
# than there are cores, for tests that wait; tests/conftest.py says who begins with what.
WORKERS := $(shell echo $$(( $$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2) + 2 )))

test: $(VENV)/.test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

lint: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The site for readers, out/site/index.html. The variable keeps mkdocs-material from speaking of its successor.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

bench: $(VENV)/.test
	$(BIN)/python benchmarks/scheduling.py
	$(BIN)/python benchmarks/policies.py
	$(BIN)/python benchmarks/simulation.py
	$(BIN)/python benchmarks/uplink.py
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/flower.py
	$(BIN)/python benchmarks/dispatch.py
	$(BIN)/python benchmarks/service.py

clean:
	rm -rf $(VENV) out

# With a pip that looks packages up in half the time that the one of Python 3.11 takes.
$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(PIP) pip

# Each set is installed at one go, and FLARE itself comes with all of them.
$(VENV)/.%: $(VENV)/bin/python pyproject.toml constraints.txt
	$(MEANWHILE) $(FIRST) $(PIP) -e '.$(EXTRAS)' && wait
	touch $@

$(VENV)/.test: EXTRAS = [test,flower]
$(VENV)/.test: MEANWHILE = $(BIN)/python tests/compiling.py &
# Most of it by four pips at once, since one mostly waits for answers: they take the first part of the versions, sixteen
# at a time and those with PyTorch first, and do not ask what needs what. What they do not get, for whatever reason, is
# left to the pip after them, which asks, and tells.
$(VENV)/.test: FIRST = sed '/^$$/q' constraints.txt | grep == | grep -v '^pip=' | sort -fr | xargs -n 16 -P 4 $(PIP) --no-deps >/dev/null 2>&1;
$(VENV)/.docs: EXTRAS = [docs,flower]
$(VENV)/.lint: EXTRAS = [lint,flower]
