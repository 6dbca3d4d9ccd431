# Everything runs in .venv of this checkout; each target sets up what it needs. VENV=... PYTHON=... tries another Python.
PYTHON ?= python3.11
VENV ?= .venv
BIN := $(VENV)/bin
# Tests start hundreds of processes: each would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE
SOURCES := sayso/*.py agent channels config deploy docs examples infra ops pending testing workers tests benchmarks

.PHONY: demo test test-fast check format docs reference bench dist lock figures peers model duel faults fuzz e2e kills kills-after failover failures mutants pictures screenshot clean

demo: $(VENV)/ready  ## the bot in your browser, with nothing else installed
	@echo "Sayso is installed in $(VENV). Run it yourself with $(BIN)/sayso, as in: $(BIN)/sayso --help"
	$(BIN)/sayso demo

# Six groups of about the same processor time. Those that start servers, systems or commands mostly wait: they run beside the others.
SERVERS := tests/deploy $(addprefix tests/flows/test_,$(addsuffix .py,backup bucket cluster lossy_failover rollback sentinel upgrade))
SYSTEMS := tests/flows tests/browser
AGENT := tests/agent tests/examples
COMMANDS := tests/config tests/ops
PAGES := tests/config/settings tests/config/wiring tests/channels/console tests/docs tests/agent/toolsets

test: $(VENV)/ready-dev .venv-models/ready  ## all tests, in six processes at a time, each failure named at once; ROOM=pending for those of one package
ifdef ROOM
	$(BIN)/python -m pytest tests/$(ROOM)
else
	@$(BIN)/python -m tests.groups \
	  rest "$(addprefix --ignore=,$(SERVERS) $(SYSTEMS) $(AGENT) $(COMMANDS) $(PAGES))" \
	  commands "-p no:cacheprovider $(addprefix --ignore=,$(PAGES)) $(COMMANDS)" \
	  pages "-p no:cacheprovider $(PAGES)" \
	  agent "-p no:cacheprovider $(addprefix --ignore=,$(PAGES)) $(AGENT)" \
	  servers "-p no:cacheprovider $(SERVERS)" \
	  systems "-p no:cacheprovider $(addprefix --ignore=,$(SERVERS)) $(SYSTEMS)"
endif

# What starts no process and needs no browser: half of it in each of two processes.
UNITS := tests/agent/tools tests/agent/run tests/agent/guards tests/agent/memory tests/agent/observability
MORE_UNITS := tests/pending tests/channels/slack tests/channels/telegram tests/channels/whatsapp tests/channels/markdown tests/channels/i18n

test-fast: $(VENV)/ready-dev  ## the unit tests without the slow ones, for the inner loop: under a minute on two idle cores
	@$(BIN)/python -m tests.groups units "-m 'not slow' -p no:cacheprovider $(UNITS)" more "-m 'not slow' $(MORE_UNITS)"

check: $(VENV)/ready-dev  ## format, lint, types, import contracts
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/ready-dev
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

reference: $(VENV)/ready-dev  ## the generated pages of docs/reference
	$(BIN)/python docs/generate.py

docs: $(VENV)/ready-dev  ## the site of the documentation, in build/site; a dead link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

dist: .venv-build/ready  ## the wheel and the sdist, in dist/; the same commit gives the same bytes
	.venv-build/bin/python deploy/build_packages.py

# One lock for all extras, Python versions and systems. `make lock UPGRADE=--upgrade` takes the newest versions.
LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--custom-compile-command "make lock" $(UPGRADE)

lock: $(VENV)/ready-dev  ## the exact versions and hashes that are deployed, in deploy/requirements*.txt
	$(LOCK) --all-extras --output-file deploy/requirements.txt pyproject.toml
	$(LOCK) --output-file deploy/requirements-build.txt deploy/requirements-build.in

bench: .venv-bench/ready .venv-price/ready  ## speed, as ratios inside one run, and what a conversation costs
	.venv-bench/bin/python -m benchmarks.path
	.venv-bench/bin/python -m benchmarks.pending
	.venv-bench/bin/python -m benchmarks.turns
	.venv-bench/bin/python -m benchmarks.scale
	.venv-bench/bin/python -m benchmarks.start
	.venv-bench/bin/python -m benchmarks.tools
	.venv-bench/bin/python -m benchmarks.agent
	.venv-bench/bin/python -m benchmarks.replies
	.venv-bench/bin/python -m benchmarks.slow_clients --seconds 20
	.venv-price/bin/python -m benchmarks.price

figures: $(VENV)/ready-dev  ## how dense the code is, beside its neighbors, and the way of a message through it
	@$(BIN)/python -m benchmarks.figures

peers: .venv-peers/ready  ## the same faults for Sayso and four peers, and the page docs/explanation/comparison.md; twenty to forty minutes
	.venv-peers/bin/python -m benchmarks.peers_under_faults --publish
	.venv-peers/bin/python -m benchmarks.peers_under_faults page

model: $(VENV)/ready-dev  ## 75,000 random schedules of people, workers and faults, new ones each time
	SAYSO_MODEL_EXAMPLES=25000 $(BIN)/python -m pytest tests/model -k no_schedule

duel: $(VENV)/ready-dev  ## two workers at one confirmation: every place where one stops and the other is met; minutes
	SAYSO_DUEL=all $(BIN)/python -m pytest tests/model/test_duel.py -k no_schedule

faults: $(VENV)/ready-dev  ## 100,000 random stories of what goes wrong in an agent's run, new ones each time; four minutes
	SAYSO_FAULTS=100000 $(BIN)/python -m pytest tests/agent/test_faults.py -k no_story

fuzz: $(VENV)/ready-dev  ## 100,000 mutated webhooks to each endpoint, some over real HTTP; ten to thirty minutes
	$(BIN)/python -m tests.channels.web.fuzz --count $${SAYSO_FUZZ:-100000}

e2e: $(VENV)/ready-dev  ## web, two workers and Redis as processes; every webhook twice
	$(BIN)/python -m pytest tests/flows -v

kills: $(VENV)/ready-dev  ## 5,000 confirmations, workers killed by kill -9 between claim and outcome; four to ten minutes
	SAYSO_KILLS=$${SAYSO_KILLS:-5000} $(BIN)/python -m pytest tests/flows/test_kills.py -s

kills-after: $(VENV)/ready-dev  ## 1,000 workers killed by kill -9 anywhere between a request and its rest; twenty minutes
	SAYSO_KILLS_AFTER=$${SAYSO_KILLS_AFTER:-1000} $(BIN)/python -m pytest tests/flows/test_going_on.py -s

failover: $(VENV)/ready-dev  ## Redis with Sentinels and as a Cluster: the primary is killed or paused under load, its replicas are cut off; 45 minutes
	$(BIN)/python -m benchmarks.failover_matrix --all

failures: $(VENV)/ready-dev  ## the matrix of docs/how-to/test-a-bot.md: every fault by itself, then all at once; hours on two cores
	$(BIN)/sayso simulate matrix --full-size --markdown

mutants: $(VENV)/ready-mutation  ## mutation testing of pending/, on a copy of the tree in mutants/; about an hour on two cores
	rm -rf mutants
	$(BIN)/mutmut run
	$(BIN)/python -m tests.mutation.report

pictures: $(VENV)/ready-dev  ## docs/img/reply-styles-*.png: every reply style as each platform shows it, in a real browser
	$(BIN)/python -m tests.browser.pictures

screenshot: $(VENV)/ready-dev  ## docs/img/console-*.png, from the running demo in a real browser
	$(BIN)/python -m tests.browser.screenshot

clean:
	rm -rf .venv .venv-bench .venv-build .venv-models .venv-oldest .venv-peers .venv-price .sayso build mutants *.egg-info

# A fresh machine may call Python 3.11 python3; any version the project does not support is refused by pip.
$(BIN)/pip:
	$$(command -v $(PYTHON) || command -v python3) -m venv $(VENV)
	$(BIN)/pip install -qq --upgrade "pip>=25.1"

# Pip installs a checkout by an import hook, which editors and type checkers do not run. They follow this path, to a folder
# that has `sayso` alone: the checkout itself would bring `config` and `agent` as modules of their own.
$(VENV)/checkout/sayso: | $(BIN)/pip
	@mkdir -p $(VENV)/checkout
	@echo "$(abspath $(VENV)/checkout)" > "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/sayso_checkout.pth"
	@ln -sfn "$(CURDIR)/sayso" $@

# $(call install,WHAT): pip, whose newest line is shown once a second. Ctrl-C stops it, and an error shows all of its lines.
define install
@$(BIN)/pip install --progress-bar off $(1) > $(VENV)/setup.log 2>&1 & pip=$$!; \
trap 'kill $$pip; wait $$pip; exit 130' INT TERM; shown=; \
while kill -0 $$pip 2> /dev/null; do \
  sleep 1; now=$$(tail -n 1 $(VENV)/setup.log | cut -c 1-90); \
  [ "$$now" = "$$shown" ] || echo "  $$now"; shown=$$now; \
done; \
wait $$pip || { cat $(VENV)/setup.log; exit 1; }
endef

$(VENV)/ready: pyproject.toml | $(BIN)/pip $(VENV)/checkout/sayso
	@echo "Setting up $(VENV), about half a minute ..."
	$(call install,--editable ".[examples]")
	touch $@

# It holds all that `ready` does. One call of pip takes less time than two.
$(VENV)/ready-dev: pyproject.toml | $(BIN)/pip $(VENV)/checkout/sayso
	@echo "Setting up $(VENV) with the tools for tests, about a minute ..."
	$(call install,--editable ".[examples]" --group dev)
	touch $(VENV)/ready $@

.venv-build/ready: deploy/requirements-build.txt
	$$(command -v $(PYTHON) || command -v python3) -m venv .venv-build
	.venv-build/bin/pip install -qq --disable-pip-version-check --require-hashes --no-deps -r deploy/requirements-build.txt
	touch $@

.venv-bench/ready: pyproject.toml
	$$(command -v $(PYTHON) || command -v python3) -m venv .venv-bench
	.venv-bench/bin/pip install -qq --upgrade "pip>=25.1"
	.venv-bench/bin/pip install -qq --editable ".[examples]" --group bench
	touch $@

.venv-price/ready: pyproject.toml
	$$(command -v $(PYTHON) || command -v python3) -m venv .venv-price
	.venv-price/bin/pip install -qq --upgrade "pip>=25.1"
	.venv-price/bin/pip install -qq --editable ".[examples]" --group bench-price
	touch $@

.venv-peers/ready: pyproject.toml
	$$(command -v $(PYTHON) || command -v python3) -m venv .venv-peers
	.venv-peers/bin/pip install -qq --upgrade "pip>=25.1"
	.venv-peers/bin/pip install -qq --editable ".[examples]" --group peers
	touch $@

.venv-models/ready: pyproject.toml
	$$(command -v $(PYTHON) || command -v python3) -m venv .venv-models
	.venv-models/bin/pip install -qq --upgrade "pip>=25.1"
	.venv-models/bin/pip install -qq --group telegram-models
	touch $@

$(VENV)/ready-mutation: pyproject.toml | $(VENV)/ready-dev
	$(BIN)/pip install -qq --group mutation
	touch $@
