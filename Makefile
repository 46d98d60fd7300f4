# `make` prints the targets. Anything longer than a line lives in scripts/.
.DEFAULT_GOAL := help
SHELL := /bin/bash
export PYTHON
# Some images turn Python's cache of compiled modules off. The tests start hundreds of processes and rewrite the
# assertions of every test, so without that cache they take half as long again.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
STAMP := .venv/.stamp
INPUTS := pyproject.toml requirements-dev.lock scripts/bootstrap.sh $(wildcard setup.py src/polybus/*/*.pyx src/polybus/*/*.pxd) \
	$(patsubst %.pxd,%.py,$(wildcard src/polybus/*/*.pxd))
COMPILE = "$$(scripts/bootstrap.sh uv)" pip compile --quiet --universal --python-version 3.11 --no-annotate \
	--no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock' $(ARGS)
SECONDS := 60
RUNS := 5
KILLS := 200
SAMPLE := 200
SEED := 1
# What may be compiled is tested a second time as plain Python.
PLAIN_TESTS := tests/unit/core tests/unit/wire tests/unit/dialects tests/unit/server tests/property tests/simulation
# Twice as many as there are processors where there are two: most of the long tests wait for something.
JOBS := 4

$(STAMP): $(INPUTS)
	@scripts/bootstrap.sh && touch $@

.PHONY: help setup demo test test-long test-plain lint format types contracts conformance matrix bridge browser fuzz crash store-faults mutants bench-broker \
	bench-jobs bench-fanout bench-dashboard bench-pipeline pipeline-check pipeline-kills cluster-check idle-workers idle-nodes figures docs-check diagrams reference lock clean

help: ## print this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## make .venv with polybus and all development tools (PYTHON=… chooses the interpreter)
	@$(BIN)/python tests/support/interop_env.py

demo: $(STAMP) ## start a broker, peers of every dialect, and show them talking to each other
	$(BIN)/polybus demo $(ARGS)

test: $(STAMP) ## run the tests (ARGS=… for pytest, JOBS=4 processes)
	$(BIN)/pytest -n $(JOBS) -m "not long" $(ARGS)

test-long: $(STAMP) ## run the tests that take long: every page of the documents, Spark from end to end, many kills
	$(BIN)/pytest -n $(JOBS) -m long $(ARGS)

test-plain: $(STAMP) ## run the tests of what may be compiled, as plain Python
	POLYBUS_PLAIN=1 $(BIN)/pytest -n $(JOBS) -q $(PLAIN_TESTS)

lint: $(STAMP) ## check style and formatting
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

format: $(STAMP) ## repair what lint can repair
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

types: $(STAMP) ## check types, strictly
	$(BIN)/mypy

contracts: $(STAMP) ## check which layer imports which
	$(BIN)/lint-imports --no-cache && $(BIN)/python scripts/contracts.py

conformance: $(STAMP) ## print every protocol statement with its tests and their result
	$(BIN)/python tests/conformance/report.py $(ARGS)

matrix: $(STAMP) ## call every worker dialect from every client dialect
	$(BIN)/python tests/matrix/run.py $(ARGS)

bridge: $(STAMP) ## join three brokers in three networks, and break what joins them (ARGS=--quick)
	$(BIN)/python tests/bridge/run.py $(ARGS)

browser: $(STAMP) ## open every page of the dashboard in chromium, under traffic, and click what can be clicked
	$(BIN)/pytest tests/browser -m browser $(ARGS)

fuzz: $(STAMP) ## feed the decoders and the broker with broken input (SECONDS=60)
	$(BIN)/python tests/fuzz/run.py --seconds $(SECONDS) $(ARGS)

crash: $(STAMP) ## kill broker and workers at random, and look whether a guaranteed job got lost (KILLS=200)
	$(BIN)/python tests/crash/run.py --kills $(KILLS) $(ARGS)

store-faults: $(STAMP) ## cut the power of store and journal at every write, and flip ten thousand bits
	$(BIN)/python tests/store_faults/run.py $(ARGS)

mutants: $(STAMP) ## change the code at random, and look whether a test fails (SAMPLE=200 SEED=1, ARGS=--fresh)
	$(BIN)/python tests/mutation/run.py --sample $(SAMPLE) --seed $(SEED) $(ARGS)

pipeline-check: $(STAMP) ## a day of traffic, and every table of the pipeline row for row (ARGS=--quick)
	$(BIN)/python tests/pipeline/run.py $(ARGS)

pipeline-kills: $(STAMP) ## kill the pipeline in mid-stream, and look whether a row is lost or twice (KILLS=10)
	$(BIN)/python tests/pipeline/kills.py --kills $(if $(filter file,$(origin KILLS)),10,$(KILLS)) $(ARGS)

cluster-check: $(STAMP) ## build the tables on a real Spark cluster, and compare them with local mode (ARGS=--quick)
	$(BIN)/python tests/cluster/run.py $(ARGS)

bench-broker: $(STAMP) ## measure round trips through the broker
	$(BIN)/python benchmarks/broker.py $(ARGS)

bench-jobs: $(STAMP) ## measure guaranteed jobs, beside Celery and Dramatiq
	$(BIN)/python benchmarks/jobs.py $(ARGS)

bench-fanout: $(STAMP) ## measure publications to many subscribers, against libzmq's own proxy
	$(BIN)/python benchmarks/fanout.py $(ARGS)

bench-dashboard: $(STAMP) ## measure what the dashboard in ten browsers costs the broker
	$(BIN)/python benchmarks/dashboard.py $(ARGS)

bench-pipeline: $(STAMP) ## measure the pipeline on five million events, beside bare Spark and DuckDB
	$(BIN)/python benchmarks/pipeline.py $(ARGS)

idle-workers: $(STAMP) ## measure what thousands of idle workers cost
	$(BIN)/python benchmarks/idle_workers.py $(ARGS)

idle-nodes: $(STAMP) ## measure what thousands of nodes cost that beat in datagrams
	$(BIN)/python benchmarks/idle_nodes.py $(ARGS)

figures: $(STAMP) ## run the benchmarks RUNS=5 times, record every run, write the README's figures (ARGS="broker jobs")
	$(BIN)/python benchmarks/figures.py --runs $(RUNS) $(ARGS)

docs-check: $(STAMP) ## check links, targets, and that what is made from the code is current
	$(BIN)/python scripts/docs_check.py
	$(BIN)/python scripts/diagrams.py --check
	$(BIN)/python scripts/reference.py --check
	$(BIN)/python benchmarks/figures.py --check

diagrams: $(STAMP) ## draw the state diagrams from the tables
	$(BIN)/python scripts/diagrams.py $(ARGS)

reference: $(STAMP) ## write the reference of commands, settings and Python from the code
	$(BIN)/python scripts/reference.py $(ARGS)

lock: ## remake the lock files (ARGS=--upgrade for the newest versions)
	$(COMPILE) pyproject.toml -o requirements.lock && $(COMPILE) --extra dev pyproject.toml -o requirements-dev.lock
	$(COMPILE) benchmarks/requirements-jobs.in -o benchmarks/requirements-jobs.lock

clean: ## remove everything that can be made again
	rm -rf .venv .uv .cache build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .mutants src/*.egg-info \
		src/polybus/*/*.so && find . -name __pycache__ -prune -exec rm -rf {} +
