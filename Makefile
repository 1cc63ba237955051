PYTHON ?= python3
BIN := .venv/bin
JOBS ?= 2
export PYTHONDONTWRITEBYTECODE =  # hundreds of processes would compile the package anew

.PHONY: help demo test quick check coverage sanitize oldest bench format protocol clean

help: ## list these targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "tdcd needs Python 3.11 or newer; say which one: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[deploy,export,ray,serve,dev]'
	@touch $@

demo: .venv/installed ## train the demo federation on embedded data and write its report
	$(BIN)/tdcd train

test: check ## the gate: style, types and every test
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(JOBS)

quick: check ## style, types and the tests that start no process, with few drawn cases
	TDCD_QUICK=1 OMP_NUM_THREADS=1 $(BIN)/pytest -n $(JOBS)

coverage: .venv/installed ## which lines of the package the tests run
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(JOBS) --cov tdcd --cov-report term:skip-covered

sanitize: .venv/installed ## run the kernels' tests under the address sanitizer
	CXXFLAGS="-O1 -g -fsanitize=address -fno-omit-frame-pointer" ASAN_OPTIONS=detect_leaks=0 OMP_NUM_THREADS=1 \
	LD_PRELOAD=$$($${CXX:-c++} -print-file-name=libasan.so):$$($${CXX:-c++} -print-file-name=libstdc++.so) \
	$(BIN)/pytest tests/compute/test_kernels.py tests/engines/test_contract.py -k "kernel or refused or fits"

oldest: ## the quick tests with the oldest dependencies that pyproject.toml allows
	$(PYTHON) -m venv .venv-oldest
	$(PYTHON) -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
	  names = p['dependencies'] + p['optional-dependencies']['deploy'] + p['optional-dependencies']['serve']; \
	  print(*(n.replace('>=', '==') for n in names if not n.startswith('torch')), sep='\n')" > .venv-oldest/constraints.txt
	grep '^torch' constraints.txt >> .venv-oldest/constraints.txt
	.venv-oldest/bin/pip install --quiet --disable-pip-version-check --constraint .venv-oldest/constraints.txt \
	  --editable '.[deploy,ray,serve,dev]'
	TDCD_QUICK=1 OMP_NUM_THREADS=1 .venv-oldest/bin/pytest -n $(JOBS) -W default

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
	  tdcd/sites/transport/wire/tdcd.proto

clean: ## remove what make made; runs/ is yours and stays
	rm -rf .venv .venv-oldest .mypy_cache .pytest_cache .ruff_cache .hypothesis dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
