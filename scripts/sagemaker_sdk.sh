#!/usr/bin/env bash
# Makes .venv-sagemaker-2 or -3: an environment with that version of SageMaker's SDK, or .venv-sagemaker-toolkit: a layer above
# .venv with what starts a script in SageMaker's PyTorch images. For tests/launch/own_code. Prints the path of its Python.
# Does nothing when it is there.
#   scripts/sagemaker_sdk.sh 2|3|toolkit
set -euo pipefail
cd "$(dirname "$0")/.."
case $1 in
2) packages=(rich safetensors numpy sagemaker==2.257.1) ;; # what headrace needs of its own, and the SDK
3) packages=(rich safetensors numpy sagemaker==3.27.0) ;;
toolkit) packages=(sagemaker-training==5.1.4 sagemaker-pytorch-training==3.0.0) ;;
*) echo "sagemaker_sdk: 2, 3 or toolkit, not $1" >&2; exit 2 ;;
esac
layer=.venv-sagemaker-$1
if [ "$(cat "$layer/.installed" 2>/dev/null)" != "${packages[*]}" ]; then
    rm -rf "$layer"
    .venv/bin/python -m venv "$layer"
    if [ "$1" = toolkit ]; then # sees the packages of .venv, such as torch; so does pip, and installs what lacks
        below=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
        site=$("$layer/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
        echo "import site; site.addsitedir('$below')" >"$site/below.pth"
        "$layer/bin/python" -m pip install -q --disable-pip-version-check --no-compile "${packages[@]}" >&2
    else
        UV_CACHE_DIR=${UV_CACHE_DIR:-$layer/uv-cache} .venv/bin/uv pip install -q --python "$layer/bin/python" "${packages[@]}" >&2
        rm -rf "$layer/uv-cache"
    fi
    echo "${packages[*]}" >"$layer/.installed"
fi
echo "$PWD/$layer/bin/python"
