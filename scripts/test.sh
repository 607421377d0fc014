#!/bin/sh
# Builds and runs every test twice: as shipped, and under AddressSanitizer and
# UndefinedBehaviorSanitizer. The last line says what was skipped, and which command changes that.
#   scripts/test.sh
#   scripts/test.sh --list      prints all tests, a line each: program and name
set -eu
cd "$(dirname "$0")/.."
scripts/deps.sh >&2
# Of new build folders, where there is Ninja: make takes 24 s of a processor more.
if command -v ninja >/dev/null; then
    export CMAKE_GENERATOR=Ninja
fi
# One more than processors: some tests wait, and beside other processes each gets a part of one.
jobs=$(($(nproc) + 1))
cmake -S . -B build -DPITH_TESTS=ON -DPITH_BENCH=ON >/dev/null
rm -f build/command-only
if [ "${1:-}" = --list ]; then
    cmake --build build -j "$jobs" >&2
    names=$(cmake --build build --target list-tests | grep '^test_[^ ]* [^ ]*$')
    echo "$names"
    # Tests that are no programs of cmocka. ctest runs the tests of test_logits one by one.
    ctest --test-dir build -N | sed -n 's/^ *Test *#[0-9]*: //p' | grep -v '^test_logits_' |
        while read -r name; do
            echo "$names" | grep -q "^$name " || echo "$name"
        done
    exit 0
fi
cmake --build build -j "$jobs"
cmake -S . -B build-asan -DPITH_TESTS=ON -DPITH_BENCH=OFF -DCMAKE_BUILD_TYPE=RelWithDebInfo \
    -DPITH_SANITIZE=address,undefined >/dev/null
cmake --build build-asan -j "$jobs"
ctest --test-dir build-asan -j "$jobs" --output-on-failure
ctest --test-dir build -j "$jobs" --output-on-failure
awk '
    /^skipped: / {
        n++
        if (match($0, /; to fetch it: /)) after[substr($0, RSTART + RLENGTH)]++
        else other++
    }
    END {
        if (n == 0) { print "test.sh: no test was skipped"; exit }
        line = "test.sh: " n (n == 1 ? " test was" : " tests were") " skipped:"
        for (command in after)
            line = line " " after[command] " until \"" command "\" fetches what they need;"
        if (other > 0) line = line " " other " for reasons in build/Testing/Temporary/LastTest.log;"
        sub(/;$/, "", line)
        print line
    }' build/Testing/Temporary/LastTest.log
