# make demo and make test do all set-up on a machine with Python 3.11+ and make.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALL := $(PIP) install -q --no-compile -c constraints.txt

# What is imported is compiled once and kept. Many images set this, and then each of the hundreds of processes that the
# tests start would compile its libraries anew: 3.7 s in place of 1 s for scikit-learn alone
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-fast slowest coverage mutants format check docs dist spark bench bench-extras bench-ray bench-gateway bench-ledger soak \
	soak-ledger conformance proto reproduce frontier browser clean

help:
	@echo "make demo   install what the demo needs and run it"
	@echo "make test   install everything and run the whole test suite; FILE=tests/test_veil.py for one file"
	@echo "make test-fast  the suite for every day: without slow tests, browser, PostgreSQL and Ray"
	@echo "make slowest    the whole suite, then the twenty tests that take most processor time, as the table of CONTRIBUTING.md"
	@echo "make coverage   the fast suite, then the share of lines and branches it runs; SUITE= for the whole suite"
	@echo "make mutants    change one thing in the modules that carry promises; print what no test notices. OPTIONS='--sample 200'"
	@echo "make format  write the code as ruff does"
	@echo "make check  lint, types, import contracts"
	@echo "make dist   source distribution and wheel in dist/, checked, and tried in an empty environment"
	@echo "make docs   build the site, every warning an error; part of make check"
	@echo "make spark  test the Spark integration (installs pyspark; needs Java)"
	@echo "make bench  measure speed and memory; writes benchmarks/speed/veil.json and docs/benchmarks.md"
	@echo "make bench-gateway  measure scoreveil serve; writes benchmarks/speed/gateway.json and the table of docs/serve.md"
	@echo "make soak   half an hour at half load: errors, memory"
	@echo "make conformance    real MLServer, MLflow, kserve client (installs them), 10,000 generated requests"
	@echo "make reproduce  the paper's experiments, small; OPTIONS='--profile standard --dataset all' and others: experiments/README.md"
	@echo "make frontier   every defense compared, in training and of the scores; writes results/defenses and docs/rivals.md"
	@echo "make bench-ledger  rows a second that the ledgers charge"
	@echo "make soak-ledger   kill workers and repeat requests; count what the ledgers lost"

demo: $(VENV)/demo.stamp
	@$(BIN)/scoreveil demo

test: $(VENV)/dev.stamp browser
	$(BIN)/python -m pytest -n 2 --dist worksteal $(FILE)

test-fast: $(VENV)/dev.stamp
	$(BIN)/python -m pytest -n 2 --dist worksteal --fast

slowest: $(VENV)/dev.stamp browser
	$(BIN)/python -m pytest -n 2 --dist worksteal --junitxml build/tests.xml
	$(BIN)/python .ci/slowest.py build/tests.xml

# processes that the tests start are measured too: see [tool.coverage] in pyproject.toml
coverage: SUITE = --fast
coverage: $(VENV)/dev.stamp
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n 2 --dist worksteal $(SUITE)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --skip-covered --sort=cover

mutants: $(VENV)/dev.stamp
	$(BIN)/python -m tests.mutation $(OPTIONS)

format: $(VENV)/dev.stamp
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

dist: $(VENV)/dev.stamp
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python .ci/try_wheel.py dist/*.whl

check: $(VENV)/dev.stamp docs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/dev.stamp
	$(BIN)/python -m benchmarks veil

bench-gateway: $(VENV)/dev.stamp
	$(BIN)/python -m benchmarks gateway

soak: $(VENV)/dev.stamp
	$(BIN)/python -m benchmarks gateway --soak 30

conformance: $(VENV)/dev.stamp
	$(BIN)/python conformance/run.py

bench-ledger: $(VENV)/dev.stamp
	$(BIN)/python -m benchmarks ledger

# workers killed under load, and requests repeated: each exits with 1 where a charge is lost or made twice
soak-ledger: $(VENV)/dev.stamp
	for kind in sqlite postgres; do \
		$(BIN)/python -m benchmarks kills $$kind --kills 1000 && \
		$(BIN)/python -m benchmarks kills $$kind --kills 1000 --idempotent && \
		$(BIN)/python -m benchmarks retries $$kind --tries 100000 || exit 1; \
	done

reproduce: OPTIONS = --profile quick
reproduce: $(VENV)/dev.stamp
	$(BIN)/python -m experiments $(OPTIONS)

frontier: OPTIONS = --dataset all
frontier: $(VENV)/dev.stamp
	$(BIN)/python -m experiments --profile defenses -o results/defenses $(OPTIONS)
	$(BIN)/python -m experiments.frontier.page

# the messages of gRPC, compiled from their description
proto: $(VENV)/dev.stamp
	cd src/scoreveil/inference_protocol && $(abspath $(BIN))/python -m grpc_tools.protoc -I. \
		--descriptor_set_out=open_inference.binpb open_inference.proto

# the tests look at the audit's report in a real browser
browser:
	@command -v chromium >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
		&& apt-get update -qq && apt-get install -y -qq -o DPkg::Lock::Timeout=300 chromium >/dev/null; } \
		|| { echo "The tests need Chromium, as a command named chromium: install it first." >&2; exit 1; }

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; set PYTHON=..." >&2; exit 1; }
	@echo "Making an environment in $(VENV) …"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/demo.stamp: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing what the demo needs into $(VENV) …"
	@$(INSTALL) -e '.[demo]'
	@touch $@

$(VENV)/dev.stamp: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) .venv-* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage* build dist

# the site, with every warning an error: build/site/index.html. The tests take it from here where nothing changed since
docs: $(VENV)/dev.stamp
	$(BIN)/python docs/commands.py --check
	$(BIN)/python tests/doc_pages.py

# Spark needs Java and half a gigabyte, so it has an environment of its own
spark: .venv-spark/stamp
	@command -v java >/dev/null || { echo "Spark needs Java 17 or newer, as a command named java: install it first." >&2; exit 1; }
	.venv-spark/bin/python -m pytest heavy/test_spark.py -W default

.venv-spark/stamp: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-spark
	.venv-spark/bin/python -m pip --disable-pip-version-check install -q -c constraints.txt -e '.[spark]' pytest
	@touch $@

# size and time of each extra: writes docs/integrations/extras.md
bench-extras: $(VENV)/dev.stamp
	$(BIN)/python -m benchmarks extras

# two Ray workers against one, 100 million vectors
bench-ray: $(VENV)/dev.stamp
	$(BIN)/python -m benchmarks ray_scale
