# `make setup` needs python3 >= 3.11 with venv; the servers under tests and demo are fetched on first use (deploy/local).
PYTHON ?= python3
SECONDS ?=
SEED ?=
SEEDS ?=
PYTEST = .venv/bin/python -m pytest
APART = chaos or soak or bench or spark or deploy or search or versions or (attack and not worst) or upgrade
SLOW = $(APART) or long
# Tests wait for servers more than half of their time, hence five workers on two cores. Each has its own servers: 1.5 GB of
# memory. What needs no server has a worker for each core, because each worker collects all tests. A file's tests share
# their servers, so they stay together, in the order of tests/conftest.py: the long files first, so that no worker is left
# alone with one.
WORKERS = 5
BESIDE = -n $(WORKERS) --dist loadfile --no-loadscope-reorder
compiled unit sim wide: WORKERS = 2

# Where bytecode is not kept, each process that the tests start compiles its sources once more.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup servers demo lab lab-stop test compiled unit check generated attacks upgrade sim wide integration versions chaos debezium ha switchover trial soak spark spark-versions bench optimised cost profile pages deploy-test dist release lock clean

setup: .venv/stamp

servers: setup
	.venv/bin/python -m deploy.local

# Downloads its dependencies itself and shows the progress, because it is the first command of a new reader.
demo:
	@$(PYTHON) -m deploy.first deploy.demo --mirror iceberg $(if $(SECONDS),--seconds $(SECONDS))

# PostgreSQL and Kafka on known ports for the tutorial, until Ctrl-C or `make lab-stop`.
lab:
	@$(PYTHON) -m deploy.first deploy.lab

lab-stop:
	@$(PYTHON) -m deploy.lab --stop

# Checking and compiling take a minute and a half of one core each, so they run side by side.
test: setup
	@$(MAKE) --no-print-directory -j2 check servers $$($(CAN_COMPILE) && echo build/tested/stamp)
	@if $(CAN_COMPILE); then $(MAKE) --no-print-directory compiled && $(PYTEST) $(BESIDE) -m "not ($(SLOW) or again)"; \
		else echo "NOT TESTED compiled: there is no C compiler, or no Python.h (Debian: gcc python3-dev)"; \
		$(PYTEST) $(BESIDE) -m "not ($(SLOW))"; fi

# The pure packages compiled, as in the wheel, under the tests that run through them; the rest runs from the sources.
compiled: build/tested/stamp servers
	$(call COMPILED,tested) $(BESIDE) -m "not ($(SLOW))" tests/unit tests/sim $(INTERPRETED) \
		tests/integration/test_types.py tests/integration/test_exactly_once.py::$(RESTART)

unit: setup
	$(PYTEST) $(BESIDE) -m "not ($(SLOW))" tests/unit

check: setup
	.venv/bin/ruff check . && .venv/bin/ruff format --check . && .venv/bin/mypy

# Write every file again that is made from the code. Tests fail where one of them is stale.
generated: setup build/results
	.venv/bin/cdcd config --reference > build/reference.yaml && mv build/reference.yaml config/reference.yaml
	.venv/bin/cdcd mirror --reference > build/reference.yaml && mv build/reference.yaml config/mirror/reference.yaml
	.venv/bin/python -m tests.documents
	.venv/bin/python -m tests.public_api
	.venv/bin/python -m tests.deploy.chart
	.venv/bin/python -m deploy.grafana.panels

# With the search for the seed of every planted bug.
sim: setup
	$(PYTEST) $(BESIDE) -m "sim or search"

wide: setup
	$(PYTEST) --hypothesis-profile=wide tests/unit

# With the tests that take so long that `make test` leaves them out.
integration: servers
	$(PYTEST) $(BESIDE) -m "integration and not ($(APART))"

# The versions of PostgreSQL between the first and the last, where nothing is known to be different.
versions: servers
	$(PYTEST) $(BESIDE) -m versions

# What somebody below the operator may try, on the first and the last PostgreSQL; ends with a table of who tried what.
# What a mirror reads is attacked on Spark.
attacks: .venv/stamp-spark servers
	$(PYTEST) $(BESIDE) -m "attack and not versions" tests/attacks

# Upgrade, rolling upgrade and downgrade of a pipeline and a mirror, between commit 99c61843 (from git) and this version.
upgrade: .venv/stamp-spark servers
	$(PYTEST) $(BESIDE) -m upgrade

chaos: servers
	$(PYTEST) -m chaos

# A real Debezium and cdcd on one WAL, record by record, in all modes, and cdcd in its other formats beside JSON. Then
# five connectors that cdcd adopts.
debezium: servers
	.venv/bin/python -m tests.debezium.beside
	.venv/bin/python -m tests.debezium.adopted

ha: servers build/results
	.venv/bin/python -m tests.ha takeover --results build/results/ha.md
	.venv/bin/python -m tests.ha failover --results build/results/ha.md

switchover: servers build/results
	.venv/bin/python -m tests.switchover --results build/results/switchover.md --seeds $(or $(SEEDS),1) $(if $(SEED),--seed $(SEED))

trial: servers build/results
	.venv/bin/python -m tests.trial --results build/results/trial.md $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED))

soak: servers
	$(PYTEST) -m soak

spark: .venv/stamp-spark .venv/stamp-long servers
	$(PYTEST) tests/spark tests/unit/mirror

# The log on other versions of Spark than that of the extra `spark`, each in an environment of its own.
SPARKS = 3.5.9 4.0.5
spark-versions: $(SPARKS:%=build/spark/%/stamp) servers
	for version in $(SPARKS); do \
		echo "Spark $$version"; build/spark/$$version/bin/python -m pytest tests/spark/test_log.py tests/spark/test_base.py tests/spark/test_base_changes.py tests/spark/test_base_now.py tests/spark/test_states.py -k "not daemons" || exit 1; \
	done

deploy-test: .venv/stamp-long servers
	$(PYTEST) -m deploy

bench: build/compiled/stamp servers build/results
	.venv/bin/python -m tests.bench --results build/results/bench.md

# Results of a run are build output. docs/evidence.md has the results of published commits.
build/results:
	mkdir -p $@

optimised: build/compiled/stamp

# The processor's instructions for a row, counted by valgrind (Debian: valgrind).
cost: build/compiled/stamp
	$(call COMPILED,compiled) tests/unit/core/records/debezium_json/test_cost.py

profile: build/compiled/stamp servers
	.venv/bin/python -m tests.bench --profile

# The site of the documents, into build/pages; a warning is an error.
pages: setup
	.venv/bin/python -m deploy.pages

dist: setup
	rm -rf dist
	$(call ARCHIVE,dist)
	$(WHEEL) dist dist/*.tar.gz

# Build everything that a release publishes into dist/. TAG=1 first writes the section of CHANGELOG.md, commits and tags.
# PARTS=source,wheels,pure,chart,image,site builds only the parts that are named.
release: .venv/stamp-long
	$(if $(CDCD_REPOSITORY),CDCD_REPOSITORY=$(CDCD_REPOSITORY)) $(if $(CDCD_SECURITY_CONTACT),CDCD_SECURITY_CONTACT=$(CDCD_SECURITY_CONTACT)) \
		.venv/bin/python -m deploy.release $(if $(TAG),--tag) $(if $(PARTS),--parts $(PARTS))

# Write the lock files, with hashes, for the dependencies in pyproject.toml. KEEP=1 keeps the versions that are pinned now.
lock:
	$(PYTHON) -m venv .cache/lock && .cache/lock/bin/pip install -q --disable-pip-version-check uv==0.13.9
	$(PYTHON) -m deploy.locks .cache/lock/bin/uv $(if $(KEEP),--keep)
	UV_CUSTOM_COMPILE_COMMAND="make lock" .cache/lock/bin/uv pip compile -q --universal --python-version 3.11 --generate-hashes \
		--no-annotate --no-deps deploy/local/programs.in -o deploy/local/programs.lock

clean:
	rm -rf .venv .cache build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

CAN_COMPILE = command -v cc >/dev/null && \
	test -f "$$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h"
# Of these nothing is compiled.
INTERPRETED = $(patsubst %,--ignore tests/unit/%,adapters/credentials chaos cli config deploy switchover telemetry \
	tools/adopt tools/checks trial test_architecture.py test_documents.py test_pages.py test_public_api.py test_scratch.py)
RESTART = test_a_restart_goes_on_inside_a_transaction_that_is_larger_than_kafkas
COMPILED = PYTHONSAFEPATH=1 PYTHONPATH=$(CURDIR)/build/$(1):$(CURDIR) CDCD_TEST_COMPILED=build/$(1) CDCD_TEST_PG=18 \
	$(PYTEST) -o "pythonpath=$(CURDIR)/build/$(1) ."

ARCHIVE = .venv/bin/python -c 'import sys; sys.argv = ["setup.py"]; from setuptools import build_meta; build_meta.build_sdist("$(1)")' >/dev/null
WHEEL = .venv/bin/pip wheel -q --disable-pip-version-check --no-index --no-deps --no-build-isolation -w

.venv/stamp: requirements.lock requirements-build.lock requirements-dev.lock pyproject.toml cdcd/__init__.py
	test -x .venv/bin/pip || $(PYTHON) -m venv .venv
	.venv/bin/pip install -q --disable-pip-version-check --require-hashes -r requirements-dev.lock
	.venv/bin/pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

# From the source archive, as where it is installed. Tests need no fast code, and optimising takes most of the time:
# theirs is in build/tested, and tests/deploy/test_packaging.py takes its wheel. What is measured is in build/compiled.
build/compiled/stamp: LEVEL = 3
build/tested/stamp: LEVEL = 0
build/compiled/stamp build/tested/stamp: build/%/stamp: .venv/stamp setup.py MANIFEST.in $(shell find cdcd -name '*.py')
	rm -rf build/$* build/wheel/$* build/dist
	$(call ARCHIVE,build/dist)
	CDCD_COMPILE=1 CDCD_OPT_LEVEL=$(LEVEL) $(WHEEL) build/wheel/$* build/dist/*.tar.gz
	mkdir -p build/$* && cd build/$* && ../../.venv/bin/python -m zipfile -e ../wheel/$*/*.whl .
	touch $@

.venv/stamp-spark: .venv/stamp requirements-spark.lock
	.venv/bin/pip install -q --disable-pip-version-check --no-build-isolation --require-hashes -r requirements-spark.lock
	touch $@

# Packages of the long tests and of a release: other readers of the mirror's tables, the schemas of Kubernetes, tools.
.venv/stamp-long: .venv/stamp requirements-long.lock
	.venv/bin/pip install -q --disable-pip-version-check --require-hashes -r requirements-long.lock
	touch $@

build/spark/%/stamp: requirements-dev.lock
	$(PYTHON) -m venv build/spark/$*
	build/spark/$*/bin/pip install -q --disable-pip-version-check --require-hashes -r requirements-dev.lock
	build/spark/$*/bin/pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	build/spark/$*/bin/pip install -q --disable-pip-version-check pyspark==$* pyarrow
	touch $@
