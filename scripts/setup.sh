#!/usr/bin/env bash
# Makes .venv with headrace built into it, from nothing. Does nothing when everything is up to date.
#   scripts/setup.sh [EXTRA]      EXTRA: the optional dependencies to install (default: dev); site builds nothing
set -euo pipefail
cd "$(dirname "$0")/.."
extra=${1:-dev}

if [ "$extra" != site ]; then # the pages need no native core
    missing=()
    command -v cc >/dev/null || missing+=(build-essential)
    command -v cmake >/dev/null || missing+=(cmake)
    command -v nasm >/dev/null || missing+=(nasm)
    if [ ${#missing[@]} -gt 0 ]; then
        if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
            echo "setup: installing ${missing[*]} (libjpeg-turbo's build needs them)"
            apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${missing[@]}" >/dev/null
        else
            echo "setup: please install what libjpeg-turbo's build needs:  sudo apt-get install -y ${missing[*]}" >&2
            exit 1
        fi
    fi
    if ! command -v cargo >/dev/null; then
        [ -x "$HOME/.cargo/bin/cargo" ] && export PATH="$HOME/.cargo/bin:$PATH"
    fi
    if ! command -v cargo >/dev/null; then
        echo "setup: please install Rust 1.89 or newer:  curl --proto '=https' -sSf https://sh.rustup.rs | sh   (Debian's own rustc is too old)" >&2
        exit 1
    fi
fi

python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "setup: Python 3.11 or newer is needed, $("$python" --version) found; set PYTHON=/path/to/python3.11" >&2
    exit 1
}
if [ ! -x .venv/bin/python ]; then
    "$python" -m venv .venv || {
        echo "setup: python3 -m venv failed:  sudo apt-get install -y python3-venv" >&2
        exit 1
    }
fi

# The package itself: an editable install with a release build, again only when Rust, Cargo or pyproject changed. The compiler works
# while the packages are downloaded.
built=.venv/.built
building=
if [ "$extra" != site ] && { [ ! -e "$built" ] || [ -n "$(find crates Cargo.toml Cargo.lock pyproject.toml -newer "$built" -type f -not -path '*/target/*' | head -1)" ]; }; then
    echo "setup: building the native core"
    scripts/develop.sh &
    building=$!
fi

# Dependencies in the versions of requirements.lock: again only when a list of them changed. uv takes a third of pip's time.
stamp=.venv/.deps-$extra
if [ ! -e "$stamp" ] || [ pyproject.toml -nt "$stamp" ] || [ requirements.lock -nt "$stamp" ]; then
    echo "setup: installing Python packages ($extra; a few minutes the first time)"
    .venv/bin/python scripts/requirements.py "$extra" >.venv/requirements.txt
    [ -x .venv/bin/uv ] || .venv/bin/pip install -q --disable-pip-version-check 'uv>=0.8,<1'
    export UV_CACHE_DIR=${UV_CACHE_DIR:-.venv/uv-cache} # beside the packages: they are linked, and nothing is left in the user's folder
    install() { .venv/bin/uv pip install -q --python .venv/bin/python --compile-bytecode -r .venv/requirements.txt -c requirements.lock "$@"; }
    # The demo's first run needs no CUDA where there is no driver: 0.2 GB to load instead of 3.
    if [ "$extra" = demo ] && [ "${HEADRACE_TORCH:-}" != cuda ] && [ ! -e /dev/nvidiactl ] && ! compgen -G '.venv/lib/*/site-packages/torch' >/dev/null; then
        echo "setup: no NVIDIA driver here: taking PyTorch's smaller build for CPUs (HEADRACE_TORCH=cuda make demo takes the other)"
        install --torch-backend cpu || { echo "setup: that build cannot be had from here: taking the other" && install; }
    else
        install
    fi
    rm -rf .venv/uv-cache
    touch "$stamp"
fi

if [ -n "$building" ]; then
    wait "$building"
    touch "$built"
fi

# Byte code for the modules of the package: an environment with PYTHONDONTWRITEBYTECODE compiles them anew in each process
# otherwise, half a second for a command of headrace.
.venv/bin/python -m compileall -q python/headrace
