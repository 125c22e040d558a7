#!/usr/bin/env bash
# Runs the tests that need other frameworks, in .venv-frameworks, one process for each group: TensorFlow and PyTorch's compiler
# cannot be loaded into one process (both bring an LLVM). A test that is skipped here would be skipped everywhere, so it fails.
set -uo pipefail
cd "$(dirname "$0")/.."
export HEADRACE_TEST_SKIPS=fail TF_CPP_MIN_LOG_LEVEL=3
failed=()
run() {
    echo "test-frameworks: $*"
    .venv-frameworks/bin/python -m pytest -q -p no:cacheprovider --timeout 600 --reruns 1 -raR --durations=3 "$@" || failed+=("$*")
}
run tests/loading/test_loader_frameworks.py
run tests/profiling/test_in_process.py -k real_trainer
run tests/diagnosis/test_tensorflow.py -k keras_fit
run tests/training/test_inference.py -k each_export_format
run tests/frameworks/test_tensorflow_batches.py
run tests/frameworks/test_jax_batches.py
run tests/accelerate/test_native_readers.py tests/accelerate/test_hf_datasets.py
run tests/test_guides.py -k other_frameworks
run tests/examples/test_examples.py -k "lightning or accelerate or hugging or keras"
run tests/frameworks/test_framework_scripts.py
for group in "${failed[@]}"; do
    echo "test-frameworks: FAILED: $group" >&2
done
[ ${#failed[@]} = 0 ]
