# make mnist   train on the embedded digits, to 0.95 or better
# make test    ruff and the quick tests
# make test-all    ruff and all tests
# make docs    the documentation, into docs/_build
# Each makes .venv if there is none. PYTHON=python3.10 chooses the Python, else the first that runs is taken.

VENV := .venv
PYTHONS := $(or $(PYTHON),python3.12 python3.11 python3.10 python3.9 python3.8 python3.13)
# With PYTHON= the name carries it: an environment made with another Python is made anew.
READY := $(VENV)/ready$(if $(PYTHON),-$(subst /,_,$(PYTHON)))

.PHONY: mnist test test-all lint docs env clean

mnist: $(READY)
	$(VENV)/bin/python example/image-classification/train_mnist.py --target-acc 0.95

test: lint
	$(VENV)/bin/python -m pytest -m "not slow"

test-all: lint
	$(VENV)/bin/python -m pytest

lint: $(READY)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

docs: $(READY)
	$(VENV)/bin/python -m pip install --quiet -e ".[docs]"
	$(VENV)/bin/python -m sphinx -W -q docs docs/_build

env: $(READY)

$(READY): setup.py .ci/make-env
	@.ci/make-env $(VENV) $@ $(PYTHONS)

clean:
	rm -rf $(VENV) $(VENV).lock build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
