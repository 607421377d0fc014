#!/bin/sh
# Builds and runs every test twice: as shipped, and under AddressSanitizer and
# UndefinedBehaviorSanitizer.
set -eu
cd "$(dirname "$0")/.."
scripts/deps.sh
jobs=$(nproc)
cmake -S . -B build -DPITH_TESTS=ON -DPITH_BENCH=ON >/dev/null
rm -f build/command-only
cmake --build build -j "$jobs"
cmake -S . -B build-asan -DPITH_TESTS=ON -DPITH_BENCH=OFF -DCMAKE_BUILD_TYPE=RelWithDebInfo \
    -DPITH_SANITIZE=address,undefined >/dev/null
cmake --build build-asan -j "$jobs"
# One more than processors: some tests wait, and beside other processes each gets a part of one.
jobs=$((jobs + 1))
ctest --test-dir build-asan -j "$jobs" --output-on-failure
ctest --test-dir build -j "$jobs" --output-on-failure
