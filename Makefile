# `make demo` and `make test` each work as the first command in a fresh clone: they make .venv themselves.
# All of it runs against the built and installed wheel, never against src.

VENV := .venv
VERSION :=
PYTHON := $(VENV)/bin/python
PIP := $(PYTHON) -m pip -qq --disable-pip-version-check
# What is long, or about other things than Python's own doings, is tested on the first Python alone: what providers are
# sent and answer, for one.
REST := $(addprefix --ignore tests/,agent/test_accepted.py agent/test_cancel_races.py board cli clients explorer scale shared_store \
	models/test_each_provider.py models/test_pairs.py models/test_providers.py operating server store \
	telemetry/test_explored.py test_bench.py test_bench_peers.py test_chat.py test_docs.py test_examples.py test_layout.py test_screenshots.py \
	tools/test_recipes.py) \
	$(addprefix --ignore-glob=tests/,models/test_anthropic_* models/test_bedrock_* models/test_gemini_* models/test_openai_* \
	testing/test_providers_* tools/test_mcp_*)
# More than there are cores: many tests wait for a process or for a clock.
WORKERS := $(shell echo $$(( $$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2) * 3 )) | awk '{ print ($$1 > 12) ? 12 : $$1 }')
PYTEST = $(PYTHON) -m pytest --quiet --numprocesses $(WORKERS) --dist worksteal
# What was run on the first Python repeats its races less often: tests/support/again.py.
AGAIN := ANDON_TEST_AGAIN=1
# Every Python that is here, but for the first one's version.
OTHERS = $$(scripts/pythons | cut -d ' ' -f 1 | grep -vxF "$$($(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')")
# After the first Python, the newest one runs the tests as they are, and on uvloop. The one between them runs the core, with
# eager tasks; where there are only two Pythons, the newest one does that too.
OLDER = $$(echo "$(OTHERS)" | head -n 1)
NEWEST = $$(echo "$(OTHERS)" | tail -n 1)
# What is run once more on another event loop: runs, cancels, tools and blocking calls; with eager tasks also the explorer
# over the scenarios in which a run pauses, on uvloop also the cancels of all models against their fakes. Not what is
# long, nor programs that choose their loops themselves. What an MCP server's pipes and sockets do depends on the loop, and
# not on when a task begins: with eager tasks, its cancels and the tools of one's own are tested, and not the rest.
CORE := $(addprefix tests/,agent core sync tools) --deselect tests/sync/test_interrupt.py::test_at_every_line \
	$(addprefix --ignore tests/,agent/test_accepted.py agent/test_cancel_races.py sync/test_exiting.py tools/test_recipes.py)
EAGER := $(addprefix tests/,models/test_scripted.py explorer/test_people.py) --ignore tests/tools/test_mcp_server.py
UVLOOP := $(addprefix tests/models/,common test_anthropic_cancel.py test_bedrock_cancel.py test_gemini_cancel.py \
	test_openai_background.py test_openai_broken.py test_openai_cancel.py test_openai_clients.py test_scripted.py)
# The folders are in it too, so that a deleted file is noticed.
SOURCES := pyproject.toml README.md LICENSE $(shell find src ! -name __pycache__ ! -name '*.pyc')

# An environment whose Python has gone is made anew. Only the first make looks: others may be making one meanwhile.
ifeq ($(MAKELEVEL),0)
$(shell for each in $(VENV) .venv-3.* .venv-clients/* .venv-peers/*; do test -x $$each/bin/python || rm -rf $$each; done)
endif

MAKEFLAGS += --no-print-directory
unexport PYTHONPATH
# Without bytecode on the disk, each worker of each run would translate all tests anew: 13 s of CPU time instead of 7.
unexport PYTHONDONTWRITEBYTECODE
.DELETE_ON_ERROR:
.PHONY: help demo test browser redis test-live bench bench-peers peers lint types collect unit eager uvloop others clients clean

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1	\2/p' Makefile

demo: $(VENV)/.core ## a story and three slow tools, each cancelled midway; offline
	@$(PYTHON) examples/demo.py

test: $(VENV)/.dev ## linter, types and tests, on every Python from 3.11 to 3.13 that is here, and on other event loops
	@$(MAKE) -j4 lint types clients others collect
	@$(MAKE) unit
	@version=$(NEWEST); test -z "$$version" || $(MAKE) unit VENV=.venv-$$version VERSION=$$version
	@version=$(OLDER); $(MAKE) eager $${version:+VENV=.venv-$$version VERSION=$$version}
	@version=$(NEWEST); $(MAKE) uvloop $${version:+VENV=.venv-$$version VERSION=$$version}

browser: ## install chromium, which some tests drive, if it is not here; with apt-get, as root
	@if command -v chromium >/dev/null; then \
		echo "chromium is here: $$(command -v chromium)"; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing the package chromium with apt-get (a minute or two)…"; \
		apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends chromium >/dev/null; \
	else \
		echo "There is no chromium on the PATH, and it can only be installed here by root, with apt-get." \
			"Install your system's package (Debian: sudo apt-get install chromium)," \
			"or put a link to another Chromium or Chrome on the PATH, under the name chromium."; exit 1; \
	fi

redis: ## install redis-server, which some tests start, if it is not here; with apt-get, as root
	@if command -v redis-server >/dev/null; then \
		echo "redis-server is here: $$(command -v redis-server)"; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing the package redis-server with apt-get (a few seconds)…"; \
		apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends redis-server >/dev/null; \
	else \
		echo "There is no redis-server on the PATH, and it can only be installed here by root, with apt-get." \
			"Install your system's package (Debian: sudo apt-get install redis-server)," \
			"or put a link to a Redis 5 or newer, or a Valkey, on the PATH, under the name redis-server."; exit 1; \
	fi

test-live: $(VENV)/.core $(VENV)/.dev ## the models against real providers, where there are keys; costs a little
	@$(PYTHON) -m pytest --quiet -rs tests/live/live_*.py

bench: $(VENV)/.core $(VENV)/.dev ## every figure; writes docs/figures.md and the README's table (20 minutes)
	@$(PYTHON) -m bench --record

bench-peers: $(VENV)/.core $(VENV)/.plots peers ## Andon beside six other frameworks; writes docs/peers.md and its plots (an hour)
	@$(PYTHON) -m bench.peers
	@$(PYTHON) -m bench.peers.plots

lint: $(VENV)/.dev ## ruff, the rules and the format
	@echo "linting…"
	@$(PYTHON) -m ruff check --quiet .
	@$(PYTHON) -m ruff format --quiet --check .

types: $(VENV)/.dev ## mypy, strict
	@echo "checking types…"
	@$(PYTHON) -m mypy

# Translates the tests once, for the workers, which begin all at the same time. What is wrong with a test, they will say.
collect: $(VENV)/.core $(VENV)/.dev
	@$(PYTHON) -m pytest --quiet --collect-only $(if $(VERSION),$(REST)) >/dev/null 2>&1 || true

# The tests on one Python. The first one also measures coverage, which has a gate in pyproject.toml, and runs what the
# others leave out: the explorer over its scenarios, servers and databases, the command line, other projects' clients.
unit: $(VENV)/.core $(VENV)/.dev clients
	@echo "testing on $$($(PYTHON) --version)…"
	@$(if $(VERSION),$(AGAIN)) $(PYTEST) $(if $(VERSION),$(REST),--cov)

# The core of it once more on other event loops: tests/support/loops.py.
eager: $(VENV)/.core $(VENV)/.dev
	@if $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 12))'; then \
		echo "testing with eager tasks on $$($(PYTHON) --version)…"; $(AGAIN) ANDON_TEST_LOOP=eager $(PYTEST) $(CORE) $(EAGER); \
	else \
		echo "eager tasks need Python 3.12 or newer, and it is not here: not tested"; test -z "$$CI"; \
	fi

uvloop: $(VENV)/.core $(VENV)/.dev
	@echo "testing on uvloop on $$($(PYTHON) --version)…"
	@$(AGAIN) ANDON_TEST_LOOP=uvloop $(PYTEST) $(CORE) $(UVLOOP)

# The environments of the other Pythons.
others: $(VENV)/.dev
	@for version in $(OTHERS); do \
		$(MAKE) VENV=.venv-$$version VERSION=$$version .venv-$$version/.core .venv-$$version/.dev collect || exit 1; \
	done

# Other frameworks' clients, which the tests drive against our server: each has an environment of its own.
clients: .venv-clients/adk/.made .venv-clients/agno/.made .venv-clients/openapi/.made

# The systems that Andon is compared with, and Andon as its users install it. Each has an environment of its own.
PEERS := $(filter-out plots,$(basename $(notdir $(wildcard bench/peers/requirements/*.txt))))
peers: .venv-peers/andon/.made $(foreach each,$(PEERS),.venv-peers/$(each)/.made)

clean: ## remove all that make made
	rm -rf .venv .venv-3.* .venv-clients .venv-peers build .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find src tests examples bench -name __pycache__ -prune -exec rm -rf {} +

# One virtual environment per Python: .venv for the first, .venv-3.12 and so on for the others.
$(VENV)/.made:
	@python=$$(scripts/pythons $(VERSION) | sed -n '1s/^[^ ]* //p'); test -n "$$python" || exit 1; \
	echo "making $(VENV) with $$("$$python" --version)…"; \
	rm -rf $(VENV); "$$python" -m venv $(VENV)
	@touch $@

# Without a pip of their own, which takes seconds to install: the first Python's can work for others. And without
# bytecode: most modules of these packages are never imported.
.venv-clients/%/.made: tests/clients/%.txt | .venv/.made
	@echo "installing the client of $* (a minute or two)…"
	@rm -rf $(@D); python=$$(scripts/pythons | sed -n '1s/^[^ ]* //p'); test -n "$$python" && "$$python" -m venv --without-pip $(@D)
	@.venv/bin/python -m pip --python $(@D)/bin/python -qq --disable-pip-version-check install --no-compile --requirement $<
	@touch $@

# One that cannot be installed keeps a file that says why, is shown as such, and is tried again the next time.
.venv-peers/%/.made: bench/peers/requirements/%.txt | .venv/.made
	@echo "installing the newest $* (a minute or two)…"
	@rm -rf $(@D); python=$$(scripts/pythons | sed -n '1s/^[^ ]* //p'); test -n "$$python" && "$$python" -m venv --without-pip $(@D)
	@if .venv/bin/python -m pip --python $(@D)/bin/python -qq --disable-pip-version-check install --requirement $< 2>$(@D)/failed; \
		then rm $(@D)/failed; touch $@; else echo "$* cannot be installed:"; tail -n 1 $(@D)/failed; fi

.venv-peers/andon/.made: build/.wheel | .venv/.made
	@echo "installing Andon by itself…"
	@rm -rf $(@D); python=$$(scripts/pythons | sed -n '1s/^[^ ]* //p'); test -n "$$python" && "$$python" -m venv --without-pip $(@D)
	@.venv/bin/python -m pip --python $(@D)/bin/python -qq --disable-pip-version-check install \
		"$$(echo build/*.whl)[openai,anthropic,server]"
	@touch $@

# For the plots alone: the tests draw none.
$(VENV)/.plots: bench/peers/requirements/plots.txt $(VENV)/.dev
	@$(PIP) install --requirement $<
	@touch $@

# The stamp is as old as the build's beginning: what is edited meanwhile is built the next time.
build/.wheel: $(SOURCES) | $(VENV)/.made
	@echo "building the wheel…"
	@rm -rf build; mkdir build; touch build/.begun
	@$(PIP) wheel --no-deps --wheel-dir build .
	@mv build/.begun $@

# The first line brings the dependencies; the second replaces a wheel of the same version.
$(VENV)/.core: build/.wheel $(VENV)/.made
	@echo "installing it into $(VENV)…"
	@$(PIP) install build/*.whl
	@$(PIP) install --force-reinstall --no-deps build/*.whl
	@touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.made | $(VENV)/.core
	@echo "installing the tools into $(VENV)…"
	@$(PIP) install "$$(echo build/*.whl)[dev]"
	@touch $@
