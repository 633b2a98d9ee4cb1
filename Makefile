# Everything on a fresh machine with Python 3.10+: `make train`, `make test`.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: train test lint

train: .venv/ready
	$(BIN)/python train.py --config configs/default.yaml --use_amp
	$(BIN)/python eval.py

test: lint
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

.venv/ready: requirements.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --requirement requirements.txt
	touch $@
