#!/usr/bin/env bash
# scripts/gpu/tables.sh on shapes of a toy: cells of every kind give rows of their tables, a cell
# that has ended is not run again, and one that fails is named.
#
# usage: test_tables.sh BUILD [all]
#   all: every cell, and the ones of bench_tokens on the emulated GPU
set -u
build=$(cd "$1" && pwd)
cd "$(dirname "$0")/../.." || exit 1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
cells="budgets-full budgets-triattention attention-full attention-quoka-128 statistics prompt-full prompt-v3
    repeat quality-pith-nano-none-cpu"
[ "${2:-}" != all ] || cells=

tables() {
    BUILD=$build SCRATCH=$work NAME=toy scripts/gpu/tables.sh --try "$work/out" "$@"
}

fail() {
    echo "FAILED: $*"
    failed=1
}

# A row that begins so.
has() {
    grep -q "^| $1" "$work/page" || fail "no row \"$1\""
}

# shellcheck disable=SC2086
tables $cells >"$work/page" 2>"$work/log" || fail "tables.sh: $(cat "$work/log")"
cmp -s "$work/page" "$work/out/toy.md" || fail "the page is not the one that was printed"
has "full |  | 4 |"
has "triattention:paper | 256 | [0-9]* | [0-9.]* | [0-9.]* | [0-9.]* % | [0-9]* | [0-9]* | [0-9]* % | [0-9.]* |"
has "128 | [-0-9.]* | [0-9.]* |"
has "V3 at 90 %, f16 | 768 | "
has "50 % | [0-9]* | [0-9]* | [0-9.]* % |"
has "pith-nano | full | 5.[0-9]* | 5.[0-9]* | +0.000 % |"
if grep -nE "\| -?(nan|inf) " "$work/page"; then
    fail "numbers that are none"
fi

# shellcheck disable=SC2086
tables $cells >/dev/null 2>"$work/log"
again=$(grep -v ": skipped: " "$work/log") # which is said each time
[ -z "$again" ] || fail "cells ran again: $again"

rm -f "$work/out/prompt-v3.ok" "$work/out/big.stats"
if tables prompt-v3 >/dev/null 2>"$work/log"; then
    fail "a cell without its statistics passed"
fi
grep -q "^prompt-v3: FAILED" "$work/log" || fail "it was not named: $(cat "$work/log")"

if [ "${2:-}" = all ]; then
    PITH_TEST_DEVICE=emulated DEVICE=emulated BUILD=$build SCRATCH=$work scripts/gpu/tables.sh --try \
        "$work/emulated" budgets-full budgets-triattention >"$work/page" 2>"$work/log" ||
        fail "on the emulated GPU: $(cat "$work/log")"
    has "triattention:paper | 320 |"
fi
exit $failed
