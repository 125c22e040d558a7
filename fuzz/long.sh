#!/usr/bin/env bash
# fuzz/long.sh [SECONDS]: every target in Rust and in Python for SECONDS each (default 1800, together about twelve hours). Ends with
# 1 if one found something; the others run all the same.
set -uo pipefail
cd "$(dirname "$0")"
status=0
./all.sh "${1:-1800}" || status=$?
./python.sh "${1:-1800}" || status=$?
exit "$status"
