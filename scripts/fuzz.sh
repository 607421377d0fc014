#!/bin/sh
# Fuzzes every target in fuzz/ for SECONDS each (default 60), with AddressSanitizer and
# UndefinedBehaviorSanitizer. A finding lies in build-fuzz/findings and makes the script fail.
#     scripts/fuzz.sh [SECONDS] [TARGET...]
set -eu
cd "$(dirname "$0")/.."
seconds=${1:-60}
[ $# -gt 0 ] && shift
scripts/deps.sh ninja-build clang libclang-rt-dev lld
build=build-fuzz
if command -v ninja >/dev/null; then # which is faster than make; of a new folder
    export CMAKE_GENERATOR=Ninja
fi
# Clang takes four times as long with -O1 as without, which a short run does not win back.
type=RelWithDebInfo
if [ "$seconds" -lt 10 ]; then
    type=Debug
fi
# Vector kernels take long to compile, and no parser calls them.
cmake -S . -B $build -DCMAKE_C_COMPILER=clang -DCMAKE_BUILD_TYPE=$type -DPITH_FUZZ=ON \
    -DPITH_SANITIZE=address,undefined -DPITH_SIMD=OFF -DPITH_TESTS=OFF -DPITH_CLI=OFF \
    -DPITH_BENCH=OFF >/dev/null
cmake --build $build -j "$(nproc)"
python3 fuzz/seeds.py $build/seeds
mkdir -p $build/findings

# One target, in the background; what it says goes to its log, its failure to a file beside it.
fuzz() {
    dictionary=fuzz/gguf.dict
    [ -f "fuzz/$1.dict" ] && dictionary=fuzz/$1.dict
    mkdir -p "$build/corpus/$1" "$build/seeds/$1"
    rm -f "$build/$1.failed"
    "$build/fuzz/$1" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
        -verbosity=0 -dict=$dictionary -artifact_prefix="$build/findings/$1-" \
        "$build/corpus/$1" "$build/seeds/$1" >"$build/$1.log" 2>&1 || touch "$build/$1.failed"
    units=$(grep '^stat::number_of_executed_units' "$build/$1.log" || echo "no end")
    echo "fuzz.sh: $1 for $seconds s: $units"
}

started=0
targets=$(for target in ${*:-fuzz/fuzz_*.c}; do basename "$target" .c; done)
for target in $targets; do
    fuzz "$target" &
    started=$((started + 1))
    if [ $((started % $(nproc))) -eq 0 ]; then
        wait
    fi
done
wait

failed=""
for target in $targets; do
    if [ -f "$build/$target.failed" ]; then
        failed="$failed $target"
    fi
done
if [ -n "$failed" ]; then
    for target in $failed; do
        echo "fuzz.sh: $target:"
        grep -v '^"\|^\tNEW_FUNC\|^stat::\|^INFO:' "$build/$target.log" | tail -n 60
    done
    echo "fuzz.sh: findings in:$failed (see $build/findings)" >&2
    exit 1
fi
