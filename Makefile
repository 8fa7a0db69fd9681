# Two commands: `make run` starts Parley, `make test` checks it. Both set up .venv
# themselves: `make run` with what Parley needs, `make test` with what its developers need as well.
# `make test-all` tries everything that `make test` tries a sample of, and measures the coverage.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
RUN_STAMP := $(VENV)/.installed-run
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# A private CA is one of the system's certificates, which uv only reads if told to (the second name is that of older versions).
export UV_SYSTEM_CERTS ?= 1
export UV_NATIVE_TLS ?= $(UV_SYSTEM_CERTS)
UV := $(or $(shell command -v uv),$(BIN)/uv)

SUPPLY := $(VENV)/supply

.PHONY: setup run cluster test test-all test-deep lint compile format bench lock clean advisories sbom
unexport PYTHONDONTWRITEBYTECODE

# Runs a command that is silent for long behind a word about it, with a dot for each second.
define step
@printf '%s ' '$(1)'; { $(2); } & pid=$$!; \
while kill -0 $$pid 2>/dev/null; do printf .; sleep 1; done; wait $$pid && echo ' done'
endef

# Installs with uv, which takes a tenth of pip's time; one that is not on PATH is put into .venv first. Where uv
# cannot do it (it does not read pip.conf, for one), pip does, and says what is wrong.
define install
{ [ -x "$(UV)" ] || $(PIP) --require-hashes -r requirements-installer.lock; } >/dev/null 2>&1 && \
	"$(UV)" pip install --quiet --python $(BIN)/python $(1) >/dev/null 2>&1 || $(PIP) $(1)
endef

setup: $(STAMP)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Parley needs Python 3.11 or newer; PYTHON=... names another one"; exit 1; }
	$(call step,making $(VENV),$(PYTHON) -m venv $(VENV))

$(STAMP): requirements-dev.lock requirements-installer.lock pyproject.toml | $(BIN)/python
	$(call step,installing what the tests need,$(call install,--require-hashes -r requirements-dev.lock))
	$(call step,installing parley,$(call install,--no-deps --no-build-isolation --editable .))
	@touch $@

$(RUN_STAMP): requirements.lock requirements-build.lock requirements-installer.lock pyproject.toml | $(BIN)/python
	$(call step,installing what Parley needs,$(call install,--require-hashes -r requirements.lock -r requirements-build.lock))
	$(call step,installing parley,$(call install,--no-deps --no-build-isolation --editable .))
	@touch $@

# What the tests need holds all that Parley needs, in the same versions.
run: $(if $(wildcard $(STAMP)),$(STAMP),$(RUN_STAMP))
	$(BIN)/parley run

# A cluster for trying out: PostgreSQL out of a wheel, N replicas with the offline model, one address.
N ?= 3
cluster: setup
	$(BIN)/python -m tests.support.cluster $(N)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# In one process and beside mypy, which keeps one core busy; else each worker of the tests compiles
# all there is. Once for a new .venv: later the workers compile what has changed. What cannot be
# collected is told by the tests themselves.
COMPILED := $(VENV)/.compiled
compile: $(COMPILED)
$(COMPILED): $(STAMP)
	@echo "compiling the tests and what they import"
	@$(BIN)/python -m pytest --collect-only --quiet tests > /dev/null 2>&1 || true
	@touch $@

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# More workers than this project's machines have cores (2): the end-to-end tests wait for platforms.
# Fewer where coverage is measured, which slows what must be done in time.
RUN = -n $(if $(filter --cov,$(1)),3,4) --dist worksteal $(1) tests
COVERED := --cov --cov-report=term
# Tests without an assertion fail. Pytest compiles asserts in another way for that.
ASSERTED := -o enable_assertion_pass_hook=true

# In CI `make test` measures the coverage, and `make test-all` runs the remaining tests (tests/rest.py).
test: setup
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target lint compile
	$(BIN)/python -m pytest $(call RUN,$(if $(CI),$(COVERED) $(ASSERTED)))

test-all: setup
	@$(BIN)/python -m pytest $(ASSERTED) --collect-only --quiet tests > /dev/null 2>&1 || true
	PARLEY_TEST_ALL=1 $(if $(CI),PARLEY_TEST_REST=1) $(BIN)/python -m pytest $(call RUN,$(if $(CI),,$(COVERED)) $(ASSERTED))
	@$(MAKE) --no-print-directory advisories sbom

# In an environment of their own: neither tool is to choose versions of what Parley runs with.
$(SUPPLY)/.installed: requirements-supply.lock | $(BIN)/python
	$(call step,installing what looks at the dependencies,$(BIN)/python -m venv $(SUPPLY) && $(SUPPLY)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-supply.lock)
	@touch $@

# Known holes of the locked dependencies, where the index gives advisories; says so where it does not.
advisories: $(SUPPLY)/.installed
	@rm -f $(SUPPLY)/advisories.json
	@$(SUPPLY)/bin/pip-audit --requirement requirements.lock --disable-pip --require-hashes --timeout 10 \
		--progress-spinner off --format json --output $(SUPPLY)/advisories.json > /dev/null 2>&1 || true
	@$(BIN)/python -m tests.supply $(SUPPLY)/advisories.json

# The bill of materials (CycloneDX) of what is installed to run Parley.
sbom: $(SUPPLY)/.installed
	@mkdir -p dist
	@$(SUPPLY)/bin/cyclonedx-py requirements requirements.lock --pyproject pyproject.toml --output-reproducible \
		--output-format JSON --output-file dist/parley.cdx.json
	@echo "dist/parley.cdx.json"

test-deep: setup
	PARLEY_TEST_DEEP=1 $(BIN)/python -m pytest -n 2 tests

# All sections; writes the tables of the pages. The last section takes a commit from git, installs it
# and runs it in turns with this one.
bench: setup
	$(BIN)/python -m tests.bench --write

# Maintainers: write the lock files anew from pyproject.toml (UPGRADE=--upgrade for newer versions). Extras stay in
# the names: pip before 23.3 takes the newest release for a bare `coverage[toml]`, whose hash nothing holds.
COMPILE = $(UV) pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header --no-strip-extras $(UPGRADE)
lock: setup
	$(COMPILE) pyproject.toml -o requirements.lock
	$(COMPILE) pyproject.toml --group dev -o requirements-dev.lock
	$(COMPILE) pyproject.toml --extra postgres -o requirements-cluster.lock
	$(COMPILE) --group build -o requirements-build.lock
	$(COMPILE) --group installer -o requirements-installer.lock
	$(COMPILE) --group supply -o requirements-supply.lock

clean:
	rm -rf $(VENV) build dist *.egg-info .coverage* .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
