PYTHON ?= python3
BIN := .venv/bin
JOBS ?= 2

.PHONY: help demo test check bench format protocol clean

help: ## list these targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "tdcd needs Python 3.11 or newer; say which one: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[deploy,dev]'
	@touch $@

demo: .venv/installed ## train the demo federation on embedded data and write its report
	$(BIN)/tdcd train

test: check ## the gate: style, types and every test
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(JOBS)

check: .venv/installed ## style and types only
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/installed ## measure rounds against the plain loop; writes benchmarks/RESULTS.md
	$(BIN)/python benchmarks/run.py

format: .venv/installed ## put the code in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

protocol: .venv/installed ## generate the code of the network protocol from its .proto file
	cd src && ../$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. \
	  tdcd/deployment/wire/tdcd.proto

clean: ## remove what make made; runs/ is yours and stays
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
