#!/usr/bin/env bash
# scripts/lock.sh [uv pip compile options]: writes requirements.lock, the versions that scripts/setup.sh installs for dev, demo and site.
# Versions of the old file stay where they still fit; `scripts/lock.sh --upgrade` takes the newest.
set -euo pipefail
cd "$(dirname "$0")/.."
tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
python3 -m venv "$tools"
"$tools/bin/pip" install -q --disable-pip-version-check uv
"$tools/bin/uv" pip compile pyproject.toml --extra dev --extra demo --extra site --universal --python-version 3.11 --no-annotate \
    --custom-compile-command scripts/lock.sh -q -o requirements.lock "$@"
