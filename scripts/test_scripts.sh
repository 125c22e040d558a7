#!/usr/bin/env bash
# Runs the public scripts of tests/scripts/scripts.toml, plain and under `headrace run`, in .venv-frameworks (the packages of
# tests/scripts/requirements.txt on top). HEADRACE_SCRIPTS is a folder of clones, OWNER+NAME or OWNER/NAME each; without it nothing runs.
#   HEADRACE_SCRIPTS=FOLDER scripts/test_scripts.sh [ARGUMENTS OF tests/scripts/soak.py]
set -euo pipefail
cd "$(dirname "$0")/.."
if [ ! -d "${HEADRACE_SCRIPTS:-}" ]; then
    echo "test-scripts: skipped: HEADRACE_SCRIPTS names no folder of cloned repositories (OWNER+NAME or OWNER/NAME)"
    exit 0
fi
scripts/frameworks.sh
stamp=.venv-frameworks/.scripts-installed
if ! cmp -s tests/scripts/requirements.txt "$stamp"; then
    .venv-frameworks/bin/python -m pip install -q --disable-pip-version-check --no-deps --no-compile -r tests/scripts/requirements.txt
    cp tests/scripts/requirements.txt "$stamp"
fi
exec .venv-frameworks/bin/python tests/scripts/soak.py "$HEADRACE_SCRIPTS" "$@"
