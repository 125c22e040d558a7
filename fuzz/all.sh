#!/usr/bin/env bash
# fuzz/all.sh [SECONDS]: runs every target of fuzz/fuzz_targets for SECONDS each (default 60), one after the other, and ends with 1 if
# one found something. Installs cargo-fuzz where it is missing. Inputs that fail stay in fuzz/artifacts.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
[[ $seconds =~ ^[1-9][0-9]*$ ]] || { echo "usage: fuzz/all.sh [SECONDS], not '$seconds'" >&2; exit 2; }
if ! command -v cargo >/dev/null && [ -x "$HOME/.cargo/bin/cargo" ]; then
    export PATH="$HOME/.cargo/bin:$PATH"
fi
if ! cargo fuzz --version >/dev/null 2>&1; then
    echo "fuzz: installing cargo-fuzz"
    cargo install --quiet --locked cargo-fuzz
fi
failed=()
for file in fuzz/fuzz_targets/*.rs; do
    target=$(basename "$file" .rs)
    echo "fuzz: $target, $seconds s"
    # -1: no limit on the number of executions
    fuzz/run.sh "$target" -1 -max_total_time="$seconds" || failed+=("$target")
done
if [ ${#failed[@]} -gt 0 ]; then
    echo "fuzz: findings in ${failed[*]}; the inputs are in fuzz/artifacts" >&2
    exit 1
fi
echo "fuzz: no findings"
