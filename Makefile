# demo  Kafka, Redis, a worker and a feed on this machine    make demo [SECONDS=60] [FEED=path.csv.gz FORMAT=capmetro]
# test  everything the tests need, then the tests, against real servers
# docs  this project's pages as a site, in site/
# lint  ruff and mypy     bench  benchmarks as JSON, a line each    make bench [BENCHMARKS='ingest sse'] [HEXVEIL_BENCH_QUICK=1]
# release  build sdists and wheels into dist/, try each in a fresh environment (CONTRIBUTING.md)
# clean  what these targets made
# dashboard  build stream/serve/static from stream/serve/dashboard (Node 20.19 or newer with npm)
.PHONY: demo test lint bench docs dashboard release clean system jars packages
.DEFAULT_GOAL := test

PYTHON ?= python3
# One more than the two cores of a small machine: many tests wait for servers.
WORKERS ?= 3
BENCHMARKS ?= dashboard ingest mechanisms resolution scaling spatial spatial_tuning split_regret sse
BIN := .venv/bin
READY := .venv/.ready

# What the tests need beyond Python: "command package", Debian's names.
NEEDS := java:default-jre-headless mvn:maven chromium:chromium promtool:prometheus kcat:kcat

$(READY): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is older than Python 3.11; name a newer one: make PYTHON=python3.12" >&2; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv .venv || \
	  { echo "no virtual environment could be made (Debian: apt-get install python3-venv)" >&2; exit 1; }
	$(BIN)/pip install -q --disable-pip-version-check -c requirements.lock -e '.[dev,parquet,plot]'
	@touch $@

# As root on Debian the missing packages are installed; elsewhere this names them, and the tests that need them fail.
system:
	@missing=; for need in $(NEEDS); do \
	  command -v $${need%%:*} >/dev/null || missing="$$missing $${need##*:}"; done; \
	test -z "$$missing" && exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing >/dev/null; \
	else \
	  echo "Missing for the tests; install them (Debian: sudo apt-get install$$missing), or tests will fail." >&2; \
	fi

# A failure is told once, here, instead of by every test that wants the broker.
jars: $(READY) system
	@$(BIN)/python -c 'from stream.local import find_java, find_redis, kafka_jars; find_java(); kafka_jars(); find_redis()'

# Of the JavaScript example and the AsyncAPI validator; without npm their tests are skipped.
packages:
	@! command -v npm >/dev/null || npm ci --silent --prefix examples || \
	  echo "npm could not fetch what examples/ needs: its tests are skipped" >&2

test: $(READY) system jars packages
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -q

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

demo: $(READY)
	@$(BIN)/hexveil demo $(if $(SECONDS),--seconds $(SECONDS)) $(if $(FEED),--feed '$(FEED)') $(if $(FORMAT),--format $(FORMAT))

bench: $(READY) jars
	@set -e; for name in $(BENCHMARKS); do $(BIN)/hexveil bench $$name --json; done

docs: $(READY)
	$(BIN)/python -m mkdocs build --quiet

release: $(READY)
	$(BIN)/python -m tests.packaging.release
	rm -rf dist
	$(BIN)/python -m hatchling build -d dist
	cd dpcore && $(abspath $(BIN))/python -m hatchling build -d ../dist
	HEXVEIL_DIST=dist $(BIN)/python -m pytest -q tests/packaging

dashboard:
	cd stream/serve/dashboard && npm ci && npm test && npm run build

clean:
	rm -rf examples/node_modules stream/serve/dashboard/node_modules stream/serve/dashboard/.test .venv .local build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
