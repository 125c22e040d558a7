#!/usr/bin/env bash
# Makes .venv-sagemaker-2 or .venv-sagemaker-3: an environment with that version of SageMaker's SDK, for tests/launch/own_code.
# Prints the path of its Python. Does nothing when it is there.
#   scripts/sagemaker_sdk.sh 2|3
set -euo pipefail
cd "$(dirname "$0")/.."
case $1 in
2) packages=(sagemaker==2.257.1) ;;
3) packages=(sagemaker==3.27.0) ;;
*) echo "sagemaker_sdk: 2 or 3, not $1" >&2; exit 2 ;;
esac
layer=.venv-sagemaker-$1
if [ "$(cat "$layer/.installed" 2>/dev/null)" != "${packages[*]}" ]; then
    rm -rf "$layer"
    .venv/bin/python -m venv "$layer"
    # what headrace needs of its own, and the SDK
    UV_CACHE_DIR=${UV_CACHE_DIR:-$layer/uv-cache} .venv/bin/uv pip install -q --python "$layer/bin/python" rich safetensors numpy "${packages[@]}" >&2
    rm -rf "$layer/uv-cache"
    echo "${packages[*]}" >"$layer/.installed"
fi
echo "$PWD/$layer/bin/python"
