#!/bin/sh
# Builds and runs every test twice: as shipped, and under AddressSanitizer and
# UndefinedBehaviorSanitizer.
set -eu
cd "$(dirname "$0")/.."
scripts/deps.sh
jobs=$(nproc)
cmake -S . -B build -DPITH_TESTS=ON >/dev/null
cmake --build build -j "$jobs"

# Clang, where it can, compiles sanitized vector kernels in a quarter of GCC's time.
compiler=""
if [ ! -f build-asan/CMakeCache.txt ] && echo 'int main(void) { return 0; }' |
    clang -fsanitize=address,undefined -fopenmp -x c -o /dev/null - 2>/dev/null; then
    compiler=-DCMAKE_C_COMPILER=clang
fi
cmake -S . -B build-asan $compiler -DPITH_TESTS=ON -DPITH_BENCH=OFF \
    -DCMAKE_BUILD_TYPE=RelWithDebInfo -DPITH_SANITIZE=address,undefined >/dev/null
cmake --build build-asan -j "$jobs"
ctest --test-dir build-asan -j "$jobs" --output-on-failure
ctest --test-dir build -j "$jobs" --output-on-failure
