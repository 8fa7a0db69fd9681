# Two commands: `make run` starts Parley, `make test` checks everything. Both set up .venv themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup run test test-deep lint compile format bench lock clean
unexport PYTHONDONTWRITEBYTECODE

setup: $(STAMP)

$(STAMP): requirements-dev.lock pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

run: setup
	$(BIN)/parley run

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# In one process and beside mypy, which keeps one core busy; else each worker of the tests compiles
# all there is. What cannot be collected is told by the tests themselves.
compile: setup
	@echo "compiling the tests and what they import"
	@$(BIN)/python -m pytest --collect-only --quiet tests > /dev/null 2>&1 || true

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# One worker more than this project's machines have cores: the end-to-end tests wait for platforms.
test: setup
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target lint compile
	$(BIN)/python -m pytest -n 3 --dist worksteal --cov --cov-report=term tests

test-deep: setup
	PARLEY_TEST_DEEP=1 $(BIN)/python -m pytest -n 2 tests

bench: setup
	$(BIN)/python -m tests.bench

# Maintainers: write the lock files anew from pyproject.toml (UPGRADE=--upgrade for newer versions).
COMPILE = $(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header $(UPGRADE)
lock: setup
	$(BIN)/python -m pip install --quiet uv
	$(COMPILE) pyproject.toml -o requirements.lock
	$(COMPILE) pyproject.toml --group dev -o requirements-dev.lock
	$(COMPILE) --group build -o requirements-build.lock

clean:
	rm -rf $(VENV) build dist *.egg-info .coverage* .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
