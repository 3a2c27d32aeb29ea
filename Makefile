# Every target makes .venv and installs what it needs; .venv/.installed says that this was done for this pyproject.toml.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo demo-cluster test test-native test-floor check lint check-types bench bench-growth native pure soak soak-native spec docs clean java browser

VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
ARCHIVE := $(VENV)/spark.jsa
SPARK_TESTS := tests/spark tests/test_docs.py
# What `make test` and `make test-native` run on the compiled form: the tests of the modules that are compiled, and of their wire
# behaviour beside nats-server. All others run on it in `make soak-native`.
NATIVE_TESTS := tests/wire tests/client tests/server/engine tests/server/store tests/test_form.py \
    tests/jetstream/publish tests/jetstream/reads/test_columns.py tests/conformance/_sync
APART := -p no:cacheprovider -p no:tests.spec_plugin
# Not `$(MAKE) test-native` in the recipe of `test`: `make -n test` would run that line, and all tests with it.
RUN_NATIVE = built=$$($(PY) tools/native.py build --level 1); code=$$?; \
	if [ $$code = 3 ]; then exit 0; elif [ $$code != 0 ]; then exit $$code; fi; \
	PYTHONPATH=$$built $(PY) -m pytest -m "not soak and not spark" -n 5 $(APART) $(NATIVE_TESTS)
MERMAID := build/mermaid/package/dist/mermaid.min.js
IFRAME_WORKER := build/iframe-worker/package/shim/index.js
PYRIGHT := build/pyright/package
PYRIGHT_VERSION := 1.1.414# pinned: a new release counts otherwise

# Outside an activated environment Spark's workers would run the system's Python, which has none of our packages.
export PYSPARK_PYTHON := $(CURDIR)/$(PY)
export PYSPARK_DRIVER_PYTHON := $(CURDIR)/$(PY)

# Container images set it, and then each of some hundred processes that tests start would compile every module anew.
export PYTHONDONTWRITEBYTECODE :=

# The first that runs and is new enough: a name on PATH may be a shim with nothing behind it.
FIND_PYTHON = for python in $(PYTHON) python3.14 python3.13 python3.12 python3.11 python3; do \
	    "$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && break; \
	    python=; \
	done; \
	if [ -z "$$python" ]; then \
	    echo 'error: Python 3.11 or newer with venv is needed (Debian: apt install python3 python3-venv);' \
	         'or say which: make PYTHON=/path/to/python3' >&2; \
	    exit 1; \
	fi

FIND_JAVA = JAVA_HOME="$$($(PY) tools/java_home.py)" || exit 1; export JAVA_HOME

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: java $(STAMP) ## A pipeline of orders: embedded server, Spark, Key-Value views, Parquet
	@$(FIND_JAVA); $(PY) -m examples.demo

demo-cluster: java $(STAMP) ## The same on three nats-servers and a Spark cluster, with a node and a worker killed
	@$(FIND_JAVA); $(PY) -m examples.demo_cluster

# Most tests wait more than they work: five processes keep two cores busy for half of the time. Those of Spark work: two
# processes have the other half, after the rest, whose tests have deadlines (nice). spark_archive.py lets them start in half the
# time. Each of the two takes the next test when it is done with one (loadgroup without groups), so that neither is left with a
# long file in the end. What they print comes last. The compiled form is built meanwhile, behind all of them, and its tests run
# in the time that those of Spark still need; where there is no C compiler, `make test-native` says so and is done. mypy, half a
# minute on one core, runs beside the tests; what it found comes last, too. Before the first test all are collected once: pytest
# keeps the modules that it compiles, and each of the five processes would compile all of them (16 s) in a fresh clone. An error
# in collecting ends the run here: five processes would end with a traceback of theirs instead of saying which test it is.
test: java browser $(STAMP) lint ## Lint, types and all tests but the long ones
	@$(FIND_JAVA); \
	types=$$(mktemp); $(PY) -m mypy >$$types 2>&1 & check=$$!; \
	log=$$(mktemp); \
	{ $(PY) tools/spark_archive.py $(ARCHIVE); exec nice -n 5 $(PY) -m pytest -m "not soak and spark" -n 2 --dist loadgroup \
	    $(SPARK_TESTS); } \
	    >$$log 2>&1 & spark=$$!; \
	nice -n 10 $(PY) tools/native.py build --level 1 >/dev/null 2>&1 & build=$$!; \
	trap 'kill $$check $$spark $$build 2>/dev/null' INT TERM; \
	found=$$($(PY) -m pytest --collect-only -q -n 0 -p no:cacheprovider 2>&1) || \
	    { printf '%s\n' "$$found" | tail -n 20; kill $$check $$spark $$build; exit 1; }; \
	SLIPSTREAM_PURE=1 $(PY) -m pytest -m "not soak and not spark" -n 5; plain=$$?; \
	wait $$build; \
	( $(RUN_NATIVE) ); native=$$?; \
	echo 'waiting for the tests of Spark'; \
	wait $$spark; spark=$$?; cat $$log; rm -f $$log; \
	wait $$check; check=$$?; cat $$types; rm -f $$types; \
	exit $$((plain || native || spark || check))

# The compiled form is built beside src, so that other tests are of the sources; a build is kept until one of them changes.
# Tests that cannot run on it are in tests/pure_only.py. The C compiler optimises little: the build takes half the time. What
# `make spec` shows is what the sources prove: a pass of the compiled form must not replace a failure of theirs.
test-native: $(STAMP) ## The tests of the compiled modules, on the compiled form
	@$(RUN_NATIVE)

test-floor: ## The tests but those of Spark with the oldest packages that pyproject.toml allows
	@$(FIND_PYTHON); set -e; \
	"$$python" -m venv --clear $(VENV)-floor; \
	$(VENV)-floor/bin/python tools/floor.py all > $(VENV)-floor/floor.txt; \
	$(VENV)-floor/bin/python -m pip install --quiet --upgrade 'pip>=25.1'; \
	$(VENV)-floor/bin/python -m pip install --quiet --constraint $(VENV)-floor/floor.txt --editable '.[all]' --group dev; \
	$(VENV)-floor/bin/python -m pytest -m "not soak and not spark" -n 5

check: lint ## Lint, formatting, generated code, types
	$(PY) -m mypy

lint: $(STAMP)
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) tools/unasync.py --check

# Not part of `check`: it needs Node.js and npm.
check-types: $(STAMP) ## How much of the types is complete for users of any type checker, by pyright
	@test -f $(PYRIGHT)/index.js || { mkdir -p build/pyright && (cd build/pyright && \
	    npm pack --silent pyright@$(PYRIGHT_VERSION) >/dev/null && tar xzf pyright-*.tgz); }
	@$(PY) tools/type_completeness.py $(PYRIGHT)

native: $(STAMP) ## Compile the hot modules, in place; `make pure` removes them again
	@$(PY) tools/native.py install && $(PY) -m slipstream --version

pure: $(STAMP) ## Remove the compiled modules
	@$(PY) tools/native.py remove && $(PY) -m slipstream --version

bench: java $(STAMP) ## Compare with nats-py, nats-server and the C client; pure and compiled
	@$(FIND_JAVA); $(PY) -m benchmarks

bench-growth: $(STAMP) ## A stream of 10 million messages, a purge, a compaction, many connections and consumers
	@$(PY) -m benchmarks.growth $(GROWTH)

soak: java $(STAMP) ## The long fault runs
	@$(FIND_JAVA); SLIPSTREAM_PURE=1 $(PY) -m pytest -m soak

soak-native: $(STAMP) ## All tests but those of Spark, and the long fault runs, on the compiled form
	@built=$$($(PY) tools/native.py build --level 1); code=$$?; \
	if [ $$code = 3 ]; then exit 0; elif [ $$code != 0 ]; then exit $$code; fi; \
	PYTHONPATH=$$built $(PY) -m pytest -m "soak and not spark" $(APART); soak=$$?; \
	PYTHONPATH=$$built $(PY) -m pytest -m "not soak and not spark" -n 5 $(APART); \
	exit $$((soak || $$?))

spec: $(STAMP) ## Which rows of docs/requirements.md the last test results prove; also as docs/proofs.md
	@$(PY) tools/spec.py --write docs/proofs.md

docs: $(STAMP) ## The documentation as a site, in build/site
	@$(PY) -c 'import mkdocs, mkdocstrings' 2>/dev/null || $(PY) -m pip install --quiet --group docs
	@test ! -f .spec-results.json || $(PY) tools/spec.py --write docs/proofs.md >/dev/null
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet --strict
	@test -f $(MERMAID) || { mkdir -p build/mermaid && (cd build/mermaid && npm pack --silent mermaid@11 >/dev/null && tar xzf mermaid-*.tgz); } \
	    || echo 'note: npm is not available, so diagrams are shown as text' >&2
	@test ! -f $(MERMAID) || cp $(MERMAID) build/site/assets/
	@test -f $(IFRAME_WORKER) || { mkdir -p build/iframe-worker && (cd build/iframe-worker && npm pack --silent iframe-worker@1 >/dev/null && tar xzf iframe-worker-*.tgz); } \
	    || echo 'note: npm is not available, so search needs a web server' >&2
	@test ! -f $(IFRAME_WORKER) || cp $(IFRAME_WORKER) build/site/assets/iframe-worker.js
	@echo "build/site/index.html"

clean: ## Remove the environment, caches and results
	rm -rf $(VENV) $(VENV)-floor build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage htmlcov .spec-results.json .spec-results.lock
	rm -rf spark-warehouse metastore_db artifacts derby.log
	find src -name '*.so' -delete; rm -f src/slipstream/native.json
	find src tests tools benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# Before the long installation, so that a machine without Java hears of it at once, or gets one where it may.
java:
	@$(FIND_PYTHON); "$$python" tools/java_home.py --install >/dev/null

# For the tests of the console; where it cannot be had, they are skipped, and this says so.
browser:
	@$(FIND_PYTHON); "$$python" tools/browser.py

$(STAMP): pyproject.toml
	@$(FIND_PYTHON); \
	set -e; \
	echo "installing into $(VENV); this takes a minute or two, once"; \
	$(PY) -c '' 2>/dev/null || "$$python" -m venv --clear $(VENV); \
	$(PY) -m pip install --quiet --upgrade 'pip>=25.1'; \
	$(PY) -m pip install --quiet --editable '.[all,spark]' --group dev; \
	rm -f $(ARCHIVE)
	@touch $@
