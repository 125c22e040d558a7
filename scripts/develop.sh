#!/usr/bin/env bash
# Builds the native core in release mode and puts it and the `headrace` command into .venv, without touching other packages.
set -euo pipefail
cd "$(dirname "$0")/.."
# As maturin does: the module finds its symbols in the interpreter, and so is not tied to one libpython.
PYO3_BUILD_EXTENSION_MODULE=1 cargo build --release --quiet -p headrace-py
cp -f target/release/lib_native.so python/headrace/_native.abi3.so.new
mv -f python/headrace/_native.abi3.so.new python/headrace/_native.abi3.so # atomic: a running process keeps its own file
site=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
echo "$PWD/python" >"$site/headrace.pth"
printf '#!%s\nimport sys\n\nfrom headrace.cli.main import main\n\nsys.exit(main())\n' "$PWD/.venv/bin/python" >.venv/bin/headrace
chmod +x .venv/bin/headrace
