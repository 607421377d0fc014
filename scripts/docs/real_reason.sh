#!/bin/bash
# Measures the table "Long generation" of docs/real/generation.md: problems that a model solves step by step
# while a keep policy holds its cache to a number of entries.
#   scripts/docs/real_reason.sh DIR_OF_MODELS DIR_OF_DATA OUT
# OUT is that of scripts/docs/real.sh, whose statistics it uses. Each cell is one JSON file,
# OUT/reason/MODEL.FILE.POLICY.BUDGET.json, written when it is complete: started again, the script
# goes on where it stopped. One cell of 100 problems takes five minutes on two processors with AVX-512.
# Subsets by environment:
#   MODELS="coder-1.5b"  FILES="gsm8k math500"  POLICIES="triattention rkv ..."  BUDGETS="256 128"
#   QUESTIONS=100 PARALLEL=16 THREADS=2 PITH=build/cli/pith
# scripts/docs/real_reason_table.py OUT prints the table.
set -euo pipefail
if [ $# -ne 3 ]; then
    echo "usage: scripts/docs/real_reason.sh DIR_OF_MODELS DIR_OF_DATA OUT" >&2
    exit 2
fi
root=$(cd "$(dirname "$0")/../.." && pwd)
models=$1 data=$2 statistics=$3 out=$3/reason
MODELS=${MODELS:-coder-1.5b} FILES=${FILES:-gsm8k math500} BUDGETS=${BUDGETS:-256 128}
POLICIES=${POLICIES:-triattention rkv snapkv h2o longflow streaming lazyeviction tova raas vatp kvzap}
QUESTIONS=${QUESTIONS:-100} PARALLEL=${PARALLEL:-16} THREADS=${THREADS:-2}
PITH=${PITH:-$root/build/cli/pith}
mkdir -p "$out"
me=real_reason.sh
. "$root/scripts/docs/cells.sh"

questions_of() {
    case $1 in
    gsm8k) echo "$data/questions/gsm8k_test.jsonl" ;;
    math500) echo "$data/questions/lessismore_math500.jsonl" ;;
    *) echo "real_reason.sh: there is no file \"$1\", only gsm8k, math500" >&2; exit 2 ;;
    esac
}

# The text of --keep. A round every 32 tokens: answers are a few hundred tokens long, and the 128
# between the rounds of most papers would be as many as the smaller budgets hold. Those do not hold
# every prompt either, so that none is pinned there.
policy_of() {
    local stats=stats=$statistics/$3.stats rules=budget=$2
    [ "$2" -ge 256 ] || rules=pin-prompt=off,$rules
    case $1 in
    triattention) echo "triattention:paper,slack=32,$stats,$rules" ;;
    triattention-global) echo "triattention:paper,granularity=global,slack=32,$stats,$rules" ;;
    lazyeviction) echo "lazyeviction:gsm8k,$rules" ;;
    kvzap) echo "kvzap:window=32,recent=0,slack=32,$stats,$rules" ;;
    longflow | tova | raas) echo "$1:$rules" ;;
    *) echo "$1:slack=32,$rules" ;;
    esac
}

# solve NAME MODEL FILE OPTIONS ..
solve() {
    local name=$1 model=$2 file=$3
    shift 3
    measure "$name" "$PITH" eval questions -m "$(file_of "$model")" -f "$(questions_of "$file")" \
        --chat --temp 0 --questions "$QUESTIONS" --parallel "$PARALLEL" --predict 768 \
        -t "$THREADS" "$@"
}

for m in $MODELS; do need_model "$m"; done
for m in $MODELS; do for f in $FILES; do
    solve "$m.$f.full.0" "$m" "$f"
    solve "$m.$f.memshare.0" "$m" "$f" --share memshare
    for b in $BUDGETS; do for p in $POLICIES; do
        solve "$m.$f.$p.$b" "$m" "$f" --keep "$(policy_of "$p" "$b" "$m")"
    done; done
done; done
