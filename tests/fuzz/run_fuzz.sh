#!/usr/bin/env bash
# run_fuzz.sh PROGRAM SEEDS WORK: fuzzes for FUZZ_SECONDS. New inputs go to WORK/corpus, finds to WORK/finds.
set -eu
program=$1 seeds=$2 work=$3
seconds=${FUZZ_SECONDS:-15}
mkdir -p "$work/corpus" "$work/finds"
options=(-max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=65536 -print_final_stats=1)
dictionary=$(dirname "$0")/$(basename "$seeds").dict
if [ -f "$dictionary" ]; then options+=(-dict="$dictionary"); fi
exec "$program" "${options[@]}" -artifact_prefix="$work/finds/" "$work/corpus" "$seeds"
