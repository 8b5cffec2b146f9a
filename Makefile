# What CI runs is what a developer runs. Needs git, make and Python 3.10 or later on Debian or Ubuntu, as root or
# with sudo; `make quickstart` and `make test` install the rest.

.DEFAULT_GOAL := help
.PHONY: help quickstart venv agent gcc browser kernel engines images format lint types test unit conformance packaging bench bench-check \
	bench-short clean
.NOTPARALLEL:  # the order of a target's prerequisites is the order of its steps

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
APT := $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get --quiet --yes
# build-system.requires, so that pip builds the package with the compiler of the environment it installs into:
# one copy of it instead of two, and `make agent` has it too.
BUILD_REQUIRES := $(shell sed -n 's/^requires = \[\(.*\)\].*/\1/p' pyproject.toml | tr -d ,)
INSTALL := $(RUN) -m pip install --quiet --disable-pip-version-check
# A new package in backends/ has to be installed to be found; the folder's time tells.
PACKAGE := pyproject.toml setup.cfg agent/build_agent.py backends

help:  ## print this list (the default)
	@sed -n 's/^\([a-z-]*\):.*##  *\(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

quickstart: $(VENV)/.installed agent  ## install sandboxkit into .venv; run the example on an engine, else on this host
	$(RUN) tools/quickstart.py

venv: $(VENV)/.developer  ## make .venv with everything that development needs

$(RUN):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
		|| { echo "Python 3.10 or later is needed; name one: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null \
		|| { $(APT) update && $(APT) install --no-install-recommends python3-venv; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(PACKAGE) | $(RUN)
	$(INSTALL) $(BUILD_REQUIRES)
	$(INSTALL) --no-build-isolation --editable '.[docker,podman,bubblewrap]'
	@touch $@

$(VENV)/.developer: $(PACKAGE) | $(RUN)
	$(INSTALL) $(BUILD_REQUIRES)
	$(INSTALL) --no-build-isolation --editable '.[all,test,dev]'
	@touch $@ $(VENV)/.installed

agent: $(VENV)/.installed  ## compile the agent into the source tree, if its sources changed
	@$(RUN) agent/build_agent.py

# For the agent's own tests, under the sanitizers; what ships is built by ziglang.
gcc:
	@command -v gcc >/dev/null || { $(APT) update && $(APT) install --no-install-recommends gcc libc6-dev; }

# A page of a sandbox is loaded in a real browser.
browser:
	@command -v chromium >/dev/null || { $(APT) update && $(APT) install --no-install-recommends chromium; }

# Another kernel, as a process: cgroups of version 2 wherever this runs. Not every distribution has it.
kernel:
	@command -v linux.uml >/dev/null || { $(APT) update && $(APT) install --no-install-recommends user-mode-linux; } \
		|| echo "no User-Mode Linux here: the tests that want it are skipped"

engines:  ## set up Docker, Podman and rootless Podman; write build/engines.json
	$(PYTHON) tools/engines.py up

images: engines  ## make the test images on each engine
	$(PYTHON) tools/images.py up

format: venv  ## rewrite the Python code in the one style
	$(RUN) -m ruff check --fix --quiet .
	$(RUN) -m ruff format .

lint: venv  ## check style and common mistakes
	$(RUN) -m ruff format --check .
	$(RUN) -m ruff check .

types: venv  ## check types with mypy --strict and pyright
	$(RUN) -m mypy
	$(RUN) -m pyright

test: venv lint types agent gcc browser kernel engines images  ## everything, as CI does
	$(RUN) -m pytest

unit: venv agent gcc  ## the tests that need no engine
	$(RUN) -m pytest -m 'not engine and not packaging'

conformance: venv agent images  ## the conformance suite on each engine
	$(RUN) -m pytest tests/conformance

packaging: venv  ## build, install and inspect what ships
	$(RUN) -m pytest tests/packaging

bench: venv agent images  ## compare with the engines' own calls and other libraries (25 min; BENCH=--quick: 5)
	$(RUN) -m benchmarks.run $(BENCH)

bench-check: venv agent images  ## measure what the bounds need; fail when one is broken
	$(RUN) -m benchmarks.check $(BENCH)

# CI's form: a minute and a half, ratios alone, with margins for a busy machine.
bench-short: venv agent images
	$(RUN) -m benchmarks.check --short

clean:  ## stop the engines that `make engines` started; remove .venv and everything built
	$(PYTHON) tools/engines.py down
	rm -rf $(VENV) build dist *.egg-info sandboxkit/_agents .mypy_cache .pytest_cache .ruff_cache
