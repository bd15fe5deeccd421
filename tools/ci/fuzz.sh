#!/bin/sh
# fuzz.sh BINARY CORPUS FOUND: runs a libFuzzer binary for TILEWISE_FUZZ_SECONDS (20) seconds.
# New inputs and crashes are written to FOUND; the committed corpus is only read.
set -eu
binary=$1 corpus=$2 found=$3
mkdir -p "$found/inputs"
set -- "$found/inputs"
if [ -d "$corpus" ]; then set -- "$@" "$corpus"; fi
exec "$binary" -max_total_time="${TILEWISE_FUZZ_SECONDS:-20}" -timeout=10 -rss_limit_mb=2048 \
  -print_final_stats=1 -artifact_prefix="$found/" "$@"
