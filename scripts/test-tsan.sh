#!/bin/sh
# Builds the tests that use threads with clang's ThreadSanitizer and runs them: a race fails.
# Without names it also runs the server, under its tests in Python.
#     scripts/test-tsan.sh [TEST...]
set -eu
cd "$(dirname "$0")/.."
scripts/deps.sh clang libclang-rt-dev
build=${PITH_TSAN_BUILD:-build-tsan}
tests=${*:-test_threads test_kv_threads test_scheduler_threads}
cmake -S . -B "$build" -DCMAKE_C_COMPILER=clang -DCMAKE_BUILD_TYPE=RelWithDebInfo \
    -DPITH_SANITIZE=thread -DPITH_TESTS=ON -DPITH_BENCH=OFF >/dev/null
for test in $tests; do
    cmake --build "$build" -j "$(nproc)" --target "$test"
done

# ThreadSanitizer does not watch libraries that were built without it (cmocka).
export TSAN_OPTIONS="halt_on_error=1 ignore_noninstrumented_modules=1 ${TSAN_OPTIONS:-}"
for test in $tests; do
    echo "test-tsan.sh: $test"
    "$build/tests/$test"
done
if [ $# = 0 ]; then
    cmake --build "$build" -j "$(nproc)" --target pith-cli
    for test in test_server test_server_streams test_server_tls; do
        echo "test-tsan.sh: $test"
        python3 -B "tests/server/$test.py" "$build/cli/pith" models/pith-mini.gguf
    done
    echo "test-tsan.sh: test-faults.py"
    python3 -B scripts/test-faults.py --requests 300 --slack 2000 --part storm --part users \
        "$build/cli/pith" models
fi
