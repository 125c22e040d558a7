# demo and test start from nothing: they make .venv, install, build. Everything else is a few commands by name.
PY := .venv/bin/python
.PHONY: setup demo test check fuzz lock results docs wheel bench bench-augmentation bench-cost bench-decode bench-demo bench-diagnosis bench-exactness \
	bench-gpu bench-gpu-decoder-model bench-intervals bench-loaders bench-object-store bench-overhead bench-pack bench-parity bench-run bench-train-parity bench-tf-input bench-trainer-wait bench-trials \
	miri test-fast test-frameworks test-long test-scripts

setup:
	@scripts/setup.sh dev

demo: # ARGS="--data DIR --keep DIR …" is passed on
	@scripts/setup.sh demo
	@.venv/bin/headrace demo $(ARGS)

# Some tests watch real processes at work. On two noisy cores one of thousands can meet a stall, so a test that fails is run once
# more, and the summary lists it (-raR). A plain `pytest` runs each test once and shows such a failure at once. JOBS processes
# share the tests: one that has none left takes half of another's.
JOBS := 2
PYTEST := $(PY) -m pytest -n $(JOBS) --dist worksteal --reruns 1 -raR
test: setup
	$(PYTEST) -m "not slow"
	cargo test -p headrace-core

test-fast: setup # under 90 seconds on two cores: quick tests of every part
	$(PY) -m pytest -n $(JOBS) -q $$(grep -v '^#' tests/fast_lane.txt)

test-long: setup # the slow tests: the guides' commands, killed jobs, several ranks, all layouts, all cells; SHARE=2/6: a sixth of them
	$(PYTEST) -m slow $(if $(SHARE),--share $(SHARE))

test-frameworks: setup # with TensorFlow, JAX, Lightning, Hugging Face, fastai, …, in .venv-frameworks; SHARE=1/3: a third of each group
	@scripts/frameworks.sh
	@scripts/test_frameworks.sh

test-scripts: setup # public training scripts, plain and under headrace run: HEADRACE_SCRIPTS=FOLDER of clones; skipped without
	@scripts/test_scripts.sh $(ARGS)

check: setup
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) -m mypy.stubtest headrace._native --mypy-config-file pyproject.toml
	cargo fmt --all --check
	cargo clippy --release --workspace --all-targets -- -D warnings
	$(PY) scripts/build_site.py

.PHONY: site
site: # the documentation as web pages: site/index.html; strict, needs no network once the packages are there
	@scripts/setup.sh site
	$(PY) scripts/build_site.py

miri: # the pointer and header logic without libjpeg-turbo; needs `rustup +nightly component add miri rust-src`
	MIRIFLAGS=-Zmiri-disable-isolation cargo +nightly miri test -p headrace-core --lib --target-dir target/miri -- \
		error:: exif:: geometry:: jpeg::bits:: jpeg::header:: engine::table

# Each bench target measures one page, writes its JSON to benchmarks/results/data, and renders all pages. ARGS="…" is passed on.
bench: bench-decode bench-loaders bench-augmentation

bench-augmentation: setup
	$(PY) benchmarks/augmentation.py --write $(ARGS)

bench-cost: setup # real training jobs on the CPU; needs a quiet machine: ten minutes on two cores
	$(PY) benchmarks/cost.py --write $(ARGS)

bench-decode: setup
	$(PY) benchmarks/decode.py --write $(ARGS)

bench-demo: setup # two minutes
	$(PY) benchmarks/demo.py --write $(ARGS)

bench-diagnosis: setup # jobs with one known fault each; needs a quiet machine: 20 minutes a repeat on two cores; continues where it was stopped
	$(PY) benchmarks/diagnosis_scenarios.py --keep headrace-sessions/scenarios --write $(ARGS)

bench-exactness: setup # the table of docs/reference/exactness.md
	$(PY) benchmarks/exactness.py --write $(ARGS)

bench-gpu: setup # all that awaits a CUDA GPU, the most valuable first; continues where it ended
	$(PY) benchmarks/gpu/run.py --minutes 9 --resume --write $(ARGS)

bench-gpu-decoder-model: setup # what the CUDA decoder's rate should be; needs no GPU
	$(PY) benchmarks/gpu_decoder_model.py --write $(ARGS)

bench-intervals: setup # about an hour on a quiet machine; continues where it was stopped
	$(PY) benchmarks/intervals.py --keep headrace-sessions/intervals --write $(ARGS)

bench-loaders: setup # beside the peers of benchmarks/peers.txt that are installed; ARGS="--quick" takes about ten minutes
	$(PY) benchmarks/loaders.py --write $(ARGS)

bench-object-store: setup # real servers behind a slow link; OpenStack Swift: see scripts/swift_server.py
	$(PY) benchmarks/object_store.py --write $(ARGS)

bench-overhead: setup # what watching costs: a part of the diagnosis page
	$(PY) benchmarks/attach_overhead.py --write $(ARGS)

bench-pack: setup
	$(PY) benchmarks/pack.py --write $(ARGS)

bench-parity: setup # needs the CIFAR-10 JPEGs of the test data; hours on two cores, continues where it was stopped
	$(PY) benchmarks/parity.py --write $(ARGS)

bench-run: setup
	$(PY) benchmarks/run.py --write $(ARGS)

bench-tf-input: setup # TensorFlow's pipeline and the loader's, in .venv-frameworks
	@scripts/frameworks.sh
	.venv-frameworks/bin/python benchmarks/tf_input.py --write $(ARGS)

bench-train-parity: setup # needs the CIFAR-10 JPEGs of the test data
	$(PY) benchmarks/train_parity.py --write $(ARGS)

bench-trainer-wait: setup
	$(PY) benchmarks/trainer_wait.py --write $(ARGS)

fuzz: # every fuzz target for SECONDS each (60); installs cargo-fuzz where it is missing
	@fuzz/all.sh $(or $(SECONDS),60)

.PHONY: fuzz-long
fuzz-long: setup # the targets of fuzz, and those of the parsers in Python, for SECONDS each (1800): about twelve hours
	@fuzz/long.sh $(or $(SECONDS),1800)

lock: # requirements.lock, the versions of the Python packages that setup installs; ARGS=--upgrade takes the newest
	@scripts/lock.sh $(ARGS)

bench-trials: setup # the published experiments: an hour on two quiet cores; ARGS="--only workers" measures some, and keeps the rest
	$(PY) benchmarks/trials.py --write $(ARGS)

results docs: setup # renders every page from its JSON, docs/reference/cli.md and docs/reference/diagnosis.schema.json from the code
	$(PY) benchmarks/render.py

.PHONY: release
release: wheel # dist/: the wheels, the source archive, checksums, and notes from the changelog
	$(PY) -m maturin sdist --out dist
	$(PY) scripts/release.py dist

wheel: setup # abi3 wheels for manylinux_2_28 on x86-64 and aarch64, in dist/; zig is the cross compiler
	$(PY) -m ziglang version >/dev/null
	! command -v rustup >/dev/null || rustup target add x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu
	for target in x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu; do PATH="$(CURDIR)/.venv/bin:$$PATH" \
		$(PY) -m maturin build --release --zig --target $$target --compatibility manylinux_2_28 --out dist || exit; done
	$(PY) scripts/check_wheel.py dist
	if [ "$$(uname -m)" = x86_64 ] && command -v qemu-aarch64 >/dev/null; then scripts/check_wheel_aarch64.sh dist; \
		else echo "the aarch64 wheel was not run: that needs an x86-64 machine with qemu-user"; fi
