#!/usr/bin/env bash
# fuzz/python.sh [SECONDS]: runs every target of fuzz/python/targets.py for SECONDS each (default 60), and ends with 1 if one found
# something. PYTHON names the interpreter (default .venv/bin/python); atheris, which guides the inputs by coverage, is installed for
# it where a wheel exists, else the inputs are seeded mutations. Inputs that fail stay in fuzz/artifacts/python.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
[[ $seconds =~ ^[1-9][0-9]*$ ]] || { echo "usage: fuzz/python.sh [SECONDS], not '$seconds'" >&2; exit 2; }
python=${PYTHON:-.venv/bin/python}
if ! "$python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("atheris") is None)'; then
    echo "fuzz: installing atheris"
    "$python" -m pip install --quiet --only-binary :all: atheris || echo "fuzz: no atheris for this Python: seeded mutations instead"
fi
TMPDIR=$(mktemp -d -t headrace-fuzz-XXXXXX)
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
failed=()
for target in $("$python" fuzz/python/run.py --list); do
    echo "fuzz: $target, $seconds s"
    "$python" fuzz/python/run.py "$target" --seconds "$seconds" || failed+=("$target")
done
if [ ${#failed[@]} -gt 0 ]; then
    echo "fuzz: findings in ${failed[*]}; the inputs are in fuzz/artifacts/python" >&2
    exit 1
fi
echo "fuzz: no findings in Python"
