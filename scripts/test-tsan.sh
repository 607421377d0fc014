#!/bin/sh
# Builds the tests that use threads with clang's ThreadSanitizer and runs them: a race fails.
# Without names it also runs the server, under its tests in Python, and several ranks.
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

# ThreadSanitizer does not watch libraries that were built without it (cmocka, MPI).
export TSAN_OPTIONS="halt_on_error=1 ignore_noninstrumented_modules=1 ${TSAN_OPTIONS:-}"
for test in $tests; do
    echo "test-tsan.sh: $test"
    "$build/tests/$test"
done

# All ranks end with the one that has a race. Only files show what ranks but the first say of it.
over_ranks() { # TEST COMMAND ..
    echo "test-tsan.sh: $1"
    shift
    rm -f "$build"/race.*
    TSAN_OPTIONS="$TSAN_OPTIONS log_path=$(realpath "$build")/race" "$@" || {
        cat "$build"/race.* >&2
        exit 1
    }
}

ranks="test_cli_ranks test_cli_ranks_batch test_cli_ranks_blocks test_cli_ranks_layers"
if [ $# = 0 ]; then
    cmake --build "$build" -j "$(nproc)" --target pith-cli $ranks
    for test in test_server test_server_streams test_server_tls; do
        echo "test-tsan.sh: $test"
        python3 -B "tests/server/$test.py" "$build/cli/pith" models/pith-mini.gguf
    done
    for test in $ranks; do
        over_ranks $test "$build/tests/$test"
    done
    over_ranks test_server_ranks python3 -B tests/server/test_server_ranks.py \
        "$build/tests/pith_with_ranks" models/pith-mini.gguf mpirun
    echo "test-tsan.sh: test-faults.py"
    python3 -B scripts/test-faults.py --requests 300 --slack 2000 --part storm --part users \
        "$build/cli/pith" models
fi
