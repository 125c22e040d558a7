#!/usr/bin/env bash
# Runs the tests that need other frameworks, in .venv-frameworks, one process for each group and two at once: TensorFlow and
# PyTorch's compiler cannot be loaded into one process (both bring an LLVM). A test that is skipped here would be skipped
# everywhere, so it fails.
#   scripts/test_frameworks.sh [PYTEST ARGUMENTS]     without arguments: all groups; with: that group
# SHARE=K/N runs each Nth test of each group, beginning with the Kth.
set -uo pipefail
cd "$(dirname "$0")/.."
export HEADRACE_TEST_SKIPS=fail HEADRACE_SAGEMAKER_SDKS=1 TF_CPP_MIN_LOG_LEVEL=3
run() {
    echo "test-frameworks: $*"
    .venv-frameworks/bin/python -m pytest -q -p no:cacheprovider --timeout 600 --reruns 1 -raR --durations=3 \
        --share "${SHARE:-1/1}" "$@"
    local code=$?
    [ $code != 5 ] || [ -z "${SHARE:-}" ] || code=0 # a small group may have no test in a share
    return $code
}

if [ $# -gt 0 ]; then
    [ -n "${GROUPS_LOG:-}" ] || { run "$@"; exit; }
    log=$(mktemp "$GROUPS_LOG/XXXXXX")
    run "$@" >"$log" 2>&1
    passed=$?
    exec 9>"$GROUPS_LOG/printing"
    flock 9 # the lines of a group stay together
    cat "$log"
    [ $passed = 0 ] || { echo "$*" >>"$GROUPS_LOG/failed"; exit 1; }
    exit
fi

GROUPS_LOG=$(mktemp -d)
export GROUPS_LOG
trap 'rm -rf "$GROUPS_LOG"' EXIT
xargs -P 2 -L 1 scripts/test_frameworks.sh <<'GROUPS' # the longest first; timm and torchvision are in .venv, so make test-long runs their scripts
tests/frameworks/test_framework_scripts.py -k "not with_timm and not with_torchvision"
tests/examples/test_examples.py -k "lightning or accelerate or hugging or keras"
tests/test_guides.py -k other_frameworks
tests/diagnosis/fixes/test_tensorflow.py -k "keras_fit or distributed"
tests/accelerate/lazy/test_native_readers.py tests/accelerate/script_code/test_hf_datasets.py
tests/launch/own_code/test_under.py -k of_sdk
tests/launch/own_code/test_toolkit.py
tests/profiling/test_in_process.py -k real_trainer
tests/frameworks/test_tensorflow_batches.py
tests/frameworks/test_jax_batches.py
tests/loading/test_loader_frameworks.py
tests/training/inputs/test_inference.py -k each_export_format
GROUPS
all_passed=$?
[ ! -e "$GROUPS_LOG/failed" ] || sed 's/^/test-frameworks: FAILED: /' "$GROUPS_LOG/failed" >&2
exit $all_passed
