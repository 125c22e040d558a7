#!/usr/bin/env bash
# scripts/test-aarch64.sh [cargo test arguments]: builds headrace-core for aarch64 and runs its tests under QEMU's user emulation.
# Everything comes from Debian's packages, unpacked in a folder of its own ($HEADRACE_AARCH64_ROOT, about 3 GB): the distribution's
# rustc with its aarch64 standard library, a cross compiler for libjpeg-turbo, and qemu-user. Needs root (chroot) and debootstrap.
set -euo pipefail
repository=$(cd "$(dirname "$0")/.." && pwd)
root=${HEADRACE_AARCH64_ROOT:-/var/tmp/headrace-aarch64}
suite=${HEADRACE_AARCH64_SUITE:-forky} # a release whose rustc is at least the workspace's rust-version

if [ ! -x "$root/usr/bin/qemu-aarch64" ]; then
  # An older debootstrap does not know the name of a newer release, but all of them are made alike.
  script=/usr/share/debootstrap/scripts/$suite
  [ -e "$script" ] || script=/usr/share/debootstrap/scripts/sid
  debootstrap --variant=minbase ${HEADRACE_DEBOOTSTRAP_OPTIONS:-} "$suite" "$root" http://deb.debian.org/debian "$script"
  chroot "$root" dpkg --add-architecture arm64
  chroot "$root" apt-get update
  DEBIAN_FRONTEND=noninteractive chroot "$root" apt-get install -y --no-install-recommends rustc cargo libstd-rust-dev:arm64 \
    gcc-aarch64-linux-gnu g++-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user cmake make gcc libc6-dev
fi

mkdir -p "$root/source" "$root/root/.cargo"
cp /etc/resolv.conf "$root/etc/resolv.conf"
tar -C "$repository" --exclude=./target --exclude=./.venv --exclude=./.git --exclude=./fuzz -c . | tar -C "$root/source" -x -m
chroot "$root" env HOME=/root CARGO_TARGET_DIR=/target \
  CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
  CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER=qemu-aarch64 \
  CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc CXX_aarch64_unknown_linux_gnu=aarch64-linux-gnu-g++ \
  cargo test --manifest-path /source/Cargo.toml --target aarch64-unknown-linux-gnu -p headrace-core "$@"
