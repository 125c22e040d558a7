#!/usr/bin/env bash
# scripts/check_wheel_aarch64.sh [FOLDER]: imports the aarch64 wheel of FOLDER (default dist) under QEMU's user emulation and
# compares the pixels that it decodes with those of the wheel for this machine.
# Needs qemu-user (Debian). An aarch64 Python is unpacked from Debian's packages, without root, into $HEADRACE_AARCH64_PYTHON.
set -euo pipefail
cd "$(dirname "$0")/.."
wheels=${1:-dist}
root=${HEADRACE_AARCH64_PYTHON:-${XDG_CACHE_HOME:-$HOME/.cache}/headrace-aarch64-python}
python=.venv/bin/python
command -v qemu-aarch64 >/dev/null || { echo "qemu-aarch64 is missing:  sudo apt-get install -y qemu-user" >&2; exit 1; }
wheel=$(ls -t "$wheels"/headrace-*aarch64.whl | head -1)

if [ ! -e "$root/.complete" ]; then
    rm -rf "$root" && mkdir -p "$root/apt/lists/partial" "$root/apt/archives/partial" "$root/system"
    # Debian's own resolver, with its state in a folder of ours: nothing of this machine changes.
    options=(-qq -o "Dir::State=$root/apt" -o Dir::State::status=/dev/null -o "Dir::Cache=$root/apt" -o APT::Architecture=arm64
        -o APT::Architectures=arm64 -o Debug::NoLocking=true -o APT::Install-Recommends=false -o APT::Sandbox::User=root)
    apt-get "${options[@]}" update
    apt-get "${options[@]}" install -y --download-only python3 zlib1g libstdc++6 >/dev/null
    for package in "$root"/apt/archives/*.deb; do dpkg-deb -x "$package" "$root/system"; done
    rm -rf "$root/apt" && touch "$root/.complete"
fi
interpreter=$(ls "$root"/system/usr/bin/python3.[0-9]* | head -1)
version=${interpreter##*python}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
packages() { # FOLDER WHEEL [pip options]
    "$python" -m pip install -q --disable-pip-version-check --target "$1" --only-binary :all: "${@:3}" "$2"
}
packages "$scratch/arm" "$wheel" --python-version "$version" --implementation cp --abi "cp${version/./}" --abi abi3 --abi none \
    --platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 --platform manylinux_2_17_aarch64 --platform manylinux2014_aarch64
packages "$scratch/own" "$(ls -t "$wheels"/headrace-*"$(uname -m)".whl | head -1)"
"$python" scripts/wheel_pixels.py --make "$scratch/images"
own=$(PYTHONPATH="$scratch/own" "$python" -S scripts/wheel_pixels.py "$scratch/images")
arm=$(PYTHONPATH="$scratch/arm" PYTHONHOME="$root/system/usr" qemu-aarch64 -L "$root/system" "$interpreter" -S \
    scripts/wheel_pixels.py "$scratch/images")
printf '%s\n%s\n' "$own" "$arm"
[ "${own##* }" = "${arm##* }" ] || { echo "the pixels differ" >&2; exit 1; }
[[ "$arm" = *aarch64* && "$own" != *aarch64* ]] || { echo "both ran on the same machine" >&2; exit 1; }
echo "ok: $(basename "$wheel") decodes the same pixels under QEMU"
