# demo and test start from nothing: they make .venv, install, build. Everything else is a few commands by name.
PY := .venv/bin/python
.PHONY: setup demo test check bench bench-augmentation bench-decode bench-loaders bench-object-store bench-diagnosis docs wheel

setup:
	@scripts/setup.sh dev

demo: # ARGS="--data DIR --keep DIR …" is passed on
	@scripts/setup.sh demo
	@.venv/bin/headrace demo $(ARGS)

test: setup
	$(PY) -m pytest
	cargo test -p headrace-core

check: setup
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) -m mypy.stubtest headrace._native --mypy-config-file pyproject.toml
	cargo fmt --all --check
	cargo clippy --release --workspace --all-targets -- -D warnings

bench: bench-decode bench-loaders bench-augmentation # regenerates the pages in benchmarks/results

bench-loaders: setup # beside the peers of benchmarks/peers.txt that are installed; ARGS="--quick" takes about ten minutes
	$(PY) benchmarks/loaders.py --write $(ARGS)

bench-augmentation: setup
	$(PY) benchmarks/augmentation.py --write

bench-object-store: setup # real servers behind a slow link; OpenStack Swift: see scripts/swift_server.py
	$(PY) benchmarks/object_store.py --write

bench-decode: setup
	$(PY) benchmarks/decode.py --write

bench-diagnosis: setup # jobs with one known fault each; needs a quiet machine: 20 minutes a repeat on two cores; goes on where it was stopped
	$(PY) benchmarks/diagnosis_scenarios.py --keep headrace-sessions/scenarios --overhead 5 --write $(ARGS)

docs: setup # regenerates docs/cli.md and docs/exactness.md from the code
	$(PY) scripts/document_cli.py
	$(PY) benchmarks/exactness.py --write

wheel: setup # an abi3 wheel for manylinux_2_28, in dist/
	$(PY) -m ziglang version >/dev/null
	PATH="$(CURDIR)/.venv/bin:$$PATH" $(PY) -m maturin build --release --zig --compatibility manylinux_2_28 --out dist
	$(PY) scripts/check_wheel.py dist
