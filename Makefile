# Everything on a fresh machine with Python 3.10+; `make` alone lists what there is.
PYTHON ?= python3
BIN := .venv/bin
# Most of the 10,000 modules are never imported, and Python compiles the others when they are
INSTALL := $(BIN)/pip install --no-compile
# Images of containers often set it: then each program would compile PyTorch anew
unexport PYTHONDONTWRITEBYTECODE

define WITHOUT_CARD
No NVIDIA GPU is found here, and the usual PyTorch for Linux brings CUDA along, some 6 GB that will not be used.
The CPU wheels are far smaller. To take them, stop with Ctrl-C and type `make $(or $(MAKECMDGOALS),train) TORCH_INDEX=URL`, with the
address that the selector on pytorch.org shows behind --index-url for Linux, Pip, CPU.
endef
export WITHOUT_CARD

define SUITABLE
import sys
found = (sys.executable,) + sys.version_info[:2]
if found[1:] < (3, 10):
    sys.exit("Python 3.10 or newer is needed, and %s is %s.%s: make PYTHON=python3.12, for example" % found)
endef
export SUITABLE

.NOTPARALLEL:
.PHONY: help view train weights docs test test-versions test-gpu lint

help:  ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## */make \1	/p' $(MAKEFILE_LIST)

view: .venv/viewer  ## install into .venv, show the shipped weights in the browser
	$(BIN)/python view.py

train: .venv/ready  ## install into .venv, train the default run on the embedded cars, render the sweep
	$(BIN)/python train.py --config configs/default.yaml --use_amp
	$(BIN)/python eval.py

weights: train  ## the same, and write its generator and its measurements to weights/
	rm -f weights/toy_cars.md weights/toy_cars.png weights/metrics.json
	$(BIN)/python eval.py --export weights/toy_cars.safetensors
	rm -f weights/toy_cars.md weights/toy_cars.png
	$(BIN)/python eval.py --checkpoint weights/toy_cars.safetensors --out weights --consistency \
	    --metrics fid,kid,kid_independent,variety,coverage,haze,memorised --export weights/toy_cars.safetensors

docs: .venv/docs  ## the documentation as a site: site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

test: .venv/tests lint  ## install into .venv, look at the code's style, run the tests, one of which builds the site
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder --max-worker-restart 0

test-versions:  ## the tests with each PyTorch from 2.6 to the newest, in environments of 5 GB each in .versions/
	$(PYTHON) bench/check_versions.py $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))

test-gpu: .venv/ready  ## the tests that need a CUDA GPU, two for the last of them
	$(BIN)/python -m pytest -m gpu -rs

lint: .venv/ready  ## the style alone
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

.venv/ready: EXTRA :=
.venv/viewer: EXTRA := [viewer]
.venv/docs: EXTRA := [docs]
.venv/tests: EXTRA := [docs,viewer,photographs]
.venv/ready .venv/viewer .venv/docs .venv/tests: requirements.txt pyproject.toml $(BIN)/python
	@$(BIN)/pip --version > /dev/null 2>&1 && $(BIN)/python -c "$$SUITABLE" 2> /dev/null || \
	    { $(PYTHON) -c "$$SUITABLE" && rm -rf .venv/bin .venv/lib .venv/lib64 .venv/include && \
	    $(PYTHON) -m venv "$$(cd .venv 2> /dev/null && pwd -P || echo .venv)"; }
	@test -n "$(TORCH_INDEX)" || test "$$(uname -s)" != Linux || nvidia-smi > /dev/null 2>&1 || \
	    $(BIN)/pip show torch > /dev/null 2>&1 || echo "$$WITHOUT_CARD"
	$(if $(TORCH_INDEX),$(INSTALL) --index-url $(TORCH_INDEX) torch torchvision)
	$(INSTALL) --editable '.$(EXTRA)'
	touch $(sort .venv/ready $@)

# Where it is missing, or links to a Python that is gone, what is installed is installed again
$(BIN)/python: ;
