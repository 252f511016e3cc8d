# Everything runs in a virtual environment that is made here: .venv for the default Python, .venv-X.Y for
# another one (PYTHON=python3.8 make test). Packages are installed again when pyproject.toml changes.

PYTHON ?= python3
SDK_PYTHON ?= python3.8
TESTS = tests
ARGS =

VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
VENV := .venv$(if $(filter-out python3,$(PYTHON)),-$(VERSION))
RUN := $(VENV)/bin/python
READY := $(VENV)/ready-$(VERSION)

# Small matrices, and tests that run side by side: one thread each is fastest.
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1

.PHONY: help digits test test-long test-sdk-python lint bench venv clean
.SILENT:

help:
	echo "make digits           train the digits example (ARGS=\"--plot loss.png\" draws the loss)"
	echo "make test             the whole test suite (TESTS=tests/test_x.py for a part of it)"
	echo "make test-long        the same with many more random examples"
	echo "make test-sdk-python  the suite less its slow tests on $(SDK_PYTHON), the Python of the Poplar SDK"
	echo "make lint             ruff, mypy, and vermin for Python 3.8"
	echo "make bench            the benchmarks"
	echo "make venv             only make the virtual environment, for all of the above"
	echo "make clean            remove what these commands made"

digits: $(READY)-examples
	$(ONE_THREAD) $(RUN) examples/digits.py $(ARGS)

test: $(READY)-test
	echo "pytest on Python $(VERSION)"
	$(ONE_THREAD) $(RUN) -m pytest -n 2 $(TESTS) $(ARGS)

test-long: $(READY)-test
	echo "pytest on Python $(VERSION), long random runs"
	$(ONE_THREAD) $(RUN) -m pytest -n 2 --hypothesis-profile=long $(TESTS) $(ARGS)

test-sdk-python:
	$(MAKE) --no-print-directory test PYTHON='$(SDK_PYTHON)' ARGS='-m "not slow" $(ARGS)'

lint: $(READY)-test $(READY)-dev
	echo "ruff, mypy, vermin"
	status=0; \
	$(RUN) -m ruff check --quiet --output-format concise . || status=1; \
	$(RUN) -m mypy --no-error-summary || status=1; \
	$(VENV)/bin/vermin --quiet --no-tips --backport typing_extensions --violations --target=3.8- \
		popfn tests $(wildcard benchmarks examples) || status=1; \
	exit $$status

bench: $(READY)-test
	set -e; for file in benchmarks/[!_]*.py; do echo "$$file"; $(ONE_THREAD) $(RUN) $$file $(ARGS); done

venv: $(READY)-test $(READY)-dev

clean:
	rm -rf .venv .venv-* .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY):
	test -n "$(VERSION)" || { echo "$(PYTHON) does not run; name another with PYTHON=..." >&2; exit 1; }
	echo "making $(VENV) with $(PYTHON) (Python $(VERSION))"
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "$(PYTHON) cannot make virtual environments: install its venv module" >&2; exit 1; }
	$(RUN) -m pip install -qq --disable-pip-version-check --upgrade pip
	touch $@

$(READY)-%: pyproject.toml | $(READY)
	echo "installing popfn[$*] into $(VENV)"
	$(RUN) -m pip install -qq --disable-pip-version-check --editable '.[$*]'
	touch $@
