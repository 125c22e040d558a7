# demo and test start from nothing: they make .venv, install, build. Everything else is a few commands by name.
PY := .venv/bin/python
.PHONY: demo test check bench docs wheel setup

setup:
	@scripts/setup.sh dev

demo: setup
	@.venv/bin/headrace demo $(ARGS)

test: setup
	$(PY) -m pytest
	cargo test --release -p headrace-core

check: setup
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) -m mypy.stubtest headrace._native --mypy-config-file pyproject.toml
	cargo fmt --all --check
	cargo clippy --release --workspace --all-targets -- -D warnings
