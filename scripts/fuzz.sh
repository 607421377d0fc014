#!/bin/sh
# Fuzzes every target in fuzz/ for SECONDS each (default 60), with AddressSanitizer and
# UndefinedBehaviorSanitizer. A finding lies in build-fuzz/findings and makes the script fail.
#     scripts/fuzz.sh [SECONDS] [TARGET...]
set -eu
cd "$(dirname "$0")/.."
seconds=${1:-60}
[ $# -gt 0 ] && shift
scripts/deps.sh clang libclang-rt-dev libomp-dev
build=build-fuzz
cmake -S . -B $build -DCMAKE_C_COMPILER=clang -DCMAKE_BUILD_TYPE=RelWithDebInfo -DPITH_FUZZ=ON \
    -DPITH_SANITIZE=address,undefined -DPITH_TESTS=OFF -DPITH_CLI=OFF -DPITH_BENCH=OFF >/dev/null
cmake --build $build -j "$(nproc)"
python3 fuzz/seeds.py $build/seeds
mkdir -p $build/findings

failed=""
targets=${*:-$(ls fuzz/fuzz_*.c)}
for target in $targets; do
    target=$(basename "$target" .c)
    dictionary=fuzz/gguf.dict
    [ -f "fuzz/$target.dict" ] && dictionary=fuzz/$target.dict
    mkdir -p "$build/corpus/$target" "$build/seeds/$target"
    echo "fuzz.sh: $target for $seconds s"
    "$build/fuzz/$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
        -verbosity=0 -dict=$dictionary -artifact_prefix="$build/findings/$target-" \
        "$build/corpus/$target" "$build/seeds/$target" >"$build/$target.log" 2>&1 ||
        failed="$failed $target"
    grep '^stat::number_of_executed_units' "$build/$target.log" || true
done
if [ -n "$failed" ]; then
    for target in $failed; do
        echo "fuzz.sh: $target:"
        grep -v '^"\|^\tNEW_FUNC\|^stat::\|^INFO:' "$build/$target.log" | tail -n 60
    done
    echo "fuzz.sh: findings in:$failed (see $build/findings)" >&2
    exit 1
fi
