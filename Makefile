# demo  Kafka, Valkey, a worker and a feed on this machine    make demo [SECONDS=120] [FLEET=300: buses] [KAFKA=1: or else fail]
# test  everything the tests need, then the tests, against real servers
# test-all  also those that take long, and every test of Redis on two servers; nightly on the hosting platform
# docs  this project's pages as a site, in site/
# lint  ruff and mypy     bench  benchmarks as JSON, a line each    make bench [BENCHMARKS='ingest sse'] [HEXVEIL_BENCH_QUICK=1]
# bench-quick  compares the cost of what the service does most with what is committed, and fails beyond 30 %
# planted-bugs  one-line bugs against privacy, each in a copy of the tree: every one must fail the test that names it
# evidence  audits, forced transcripts and planted bugs in one dated report, dist/evidence-DATE.html and .json; takes half an hour
# release  build sdists and wheels into dist/, try each in a fresh environment (CONTRIBUTING.md)
# lock  both lock files anew from pyproject.toml, newest versions with UPGRADE=--upgrade
# lowest  the core tests against the lowest versions that pyproject.toml names
# clean  what these targets made
# dashboard  build stream/serve/static from stream/serve/dashboard (Node 20.19 or newer with npm)
# pictures  the dashboard's pictures in docs/images, of a simulated city
.PHONY: demo test test-all planted-bugs evidence lint bench bench-quick docs dashboard pictures release clean lock lowest system-python system-demo system-test jars classes packages ready bytecode
.DEFAULT_GOAL := test

PYTHON ?= python3
# More than the two cores of a small machine, because many tests wait for servers and clocks; each costs 15 processor seconds.
WORKERS ?= 3
BENCHMARKS ?= city_windows closing dashboard defaults faults fuzz ingest ingest_steps intervals latency libraries mechanisms range_intervals ratios snapshots soak spatial sse two_workers workers
BIN := .venv/bin
DEMO := .venv/.demo
READY := .venv/.ready
STARTED := $(shell date +%s)
export PYTHON STARTED KAFKA
# Else each process of the tests compiles what it imports, and `bytecode` is made anew in every run.
unexport PYTHONDONTWRITEBYTECODE
# The tests run node and npm, which are there when the development lock is installed.
export PATH := $(CURDIR)/$(BIN):$(PATH)
# What this machine says about registries and certificates, where Debian's own npm looks for it.
export npm_config_globalconfig ?= /etc/npmrc

# First in every list below, so that what is missing is told, or installed, all at once.
system-python system-demo system-test:
	@.ci/prepare $(@:system-%=%)
ifdef SYSTEM
# Of `make test`: at the same time as what does not need it.
jars: $(SYSTEM) $(READY)
ifneq ($(shell $(PYTHON) -c 'import ensurepip, venv' 2>&1),)
system-python: $(SYSTEM)
endif
else
.NOTPARALLEL:
endif

$(DEMO): requirements.lock pyproject.toml | system-python
	@.ci/step "uv installs what a demo needs"
	@.ci/install $<
	@touch $@

$(READY): requirements-dev.lock pyproject.toml | system-python
	@.ci/step "uv installs what tests, documents and benchmarks need"
	@.ci/install $<
	@touch $@

# A failure is told once, here, instead of by every test that wants the broker.
jars:
	@test -f .local/kafka/jars/.complete || .ci/step "Maven fetches Kafka"
	@$(BIN)/python -c 'from stream.local.kafka import find_java, kafka_jars; from stream.local.server import find_redis; find_java(); kafka_jars(); find_redis()'

# With it the tests' brokers start in half the processor time.
classes: jars
	@test -f .local/kafka/classes.jsa || $(BIN)/python -m tests.support.broker_classes

# Of the JavaScript example, the AsyncAPI validator and the dashboard.
packages: $(patsubst %,%/node_modules/.package-lock.json,examples stream/serve/dashboard)

# npm writes this file last.
%/node_modules/.package-lock.json: %/package-lock.json | $(SYSTEM) $(READY)
	@.ci/step "npm fetches what the JavaScript tests of $* need"
	@npm ci --silent --prefix $* || echo "npm could not fetch what $* needs: its tests are skipped" >&2

# Once, instead of once in each process of the tests. What cannot be collected is told by the tests.
bytecode: $(READY)
	@.ci/step "Python compiles the tests"
	@test -d tests/__pycache__ || $(BIN)/python -m pytest --collect-only -q >/dev/null 2>&1 || true

ready: $(SYSTEM) jars classes packages bytecode

test test-all:
	@$(MAKE) --no-print-directory --jobs=4 SYSTEM=system-test ready
	@.ci/step "the tests begin"
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -q $(if $(filter test-all,$@),--all)

planted-bugs: $(READY)
	$(BIN)/python -m tests.planted_bugs

evidence: $(READY) jars
	$(BIN)/python -m tests.evidence

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

demo: system-demo $(DEMO) $(if $(KAFKA),jars)
	@.ci/step "the demo begins"
	@$(BIN)/hexveil demo $(if $(SECONDS),--seconds $(SECONDS)) $(if $(FLEET),--fleet $(FLEET)) $(if $(KAFKA),--kafka)

# requirements.lock: what runs a service or a demo. requirements-dev.lock: the same versions, and all else.
COMPILE = $(BIN)/uv pip compile -q pyproject.toml --universal --python-version 3.11.2 --fork-strategy fewest \
  --generate-hashes --custom-compile-command 'make lock' --group build $(UPGRADE)

lock: $(READY)
	$(COMPILE) --extra dev --extra gtfs --extra mqtt --extra parquet --extra plot -o requirements-dev.lock
	$(COMPILE) --extra parquet -c requirements-dev.lock --no-annotate -o requirements.lock

# The tests of what every deployment runs, on the lowest versions of its dependencies; the tools of the tests are recent.
LOWEST := .venv-lowest
CORE := tests/dpcore $(addprefix tests/stream/,app/test_worker.py cli config ingestion messages protocol sources statistics storage \
  test_golden.py test_local.py serve/test_serve.py serve/test_serve_http.py serve/test_serve_stream.py)
lowest: $(READY) jars
	$(BIN)/uv venv -q --clear $(LOWEST)
	$(BIN)/uv pip compile -q pyproject.toml --extra gtfs --extra mqtt --extra parquet --resolution lowest-direct -o $(LOWEST)/lowest.txt
	$(BIN)/uv pip install -q --python $(LOWEST) -r $(LOWEST)/lowest.txt axe-playwright-python hypothesis jsonschema matplotlib opendp playwright psutil \
	  pyogrio pytest pytest-asyncio pytest-timeout pytest-xdist shapely trustme
	$(LOWEST)/bin/python -m pytest -n $(WORKERS) --dist worksteal -q $(CORE)

bench: $(READY) jars
	@set -e; for name in $(BENCHMARKS); do $(BIN)/python -m bench $$name --json; done

bench-quick:
	@$(MAKE) --no-print-directory SYSTEM=system-demo KAFKA=1 jars
	$(BIN)/python -m bench ratios --json
	@set -e; for name in closing ingest latency workers; do $(BIN)/python -m bench $$name --quick --json; done

docs: $(READY)
	$(BIN)/python -m mkdocs build --quiet

release: $(READY)
	$(BIN)/python -m tests.packaging.release
	rm -rf dist
	$(BIN)/python -m hatchling build -d dist
	cd dpcore && $(abspath $(BIN))/python -m hatchling build -d ../dist
	HEXVEIL_DIST=dist $(BIN)/python -m pytest -q --all tests/packaging

pictures: $(READY)
	$(BIN)/python -m tests.stream.serve.screenshots .local/pictures

dashboard: $(READY)
	$(BIN)/python .ci/api-types >stream/serve/dashboard/src/schemas.d.ts
	cd stream/serve/dashboard && npm ci && npm test && npm run build

clean:
	rm -rf examples/node_modules stream/serve/dashboard/node_modules stream/serve/dashboard/.test .venv .venv-lowest .local build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
