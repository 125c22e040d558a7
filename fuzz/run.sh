#!/usr/bin/env bash
# fuzz/run.sh TARGET EXECUTIONS [libFuzzer options]: makes the seeds, then runs one target (see fuzz/fuzz_targets) under
# AddressSanitizer. Needs `cargo install cargo-fuzz`; RUSTC_BOOTSTRAP unlocks the stable toolchain's sanitizers.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${1:?usage: fuzz/run.sh TARGET EXECUTIONS}
executions=${2:?usage: fuzz/run.sh TARGET EXECUTIONS}
export RUSTC_BOOTSTRAP=1
cargo fuzz build
"fuzz/target/$(rustc -vV | sed -n 's/^host: //p')/release/seeds" fuzz/corpus
# Inputs are small, so one that takes ten seconds is a hang and one that takes 2 GiB a bomb.
cargo fuzz run "$target" -- -runs="$executions" -max_len=6000 -timeout=10 -rss_limit_mb=2560 -malloc_limit_mb=2048 \
  -dict=fuzz/jpeg.dict -print_final_stats=1 "${@:3}"
