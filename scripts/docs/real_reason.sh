#!/bin/bash
# Measures the tables of docs/real/generation.md: problems that a model solves step by step while a
# keep policy holds its cache to a number of entries, a read policy reads as many, or pages are
# shared.
#   scripts/docs/real_reason.sh DIR_OF_MODELS DIR_OF_DATA OUT
# OUT is that of scripts/docs/real.sh, whose statistics it uses. Each cell is one JSON file,
# OUT/reason/MODEL.FILE.POLICY.BUDGET.json, written when it is complete: started again, the script
# goes on where it stopped. One cell of 100 problems takes five minutes on two processors with
# AVX-512. Subsets by environment:
#   MODELS="coder-1.5b"  FILES="gsm8k math500"  POLICIES="triattention rkv ..."  BUDGETS="256 128"
#   SETTINGS="memshare"  QUESTIONS=100 PARALLEL=16 PREDICT=768 THREADS=2 PITH=build/cli/pith
# FILES also has bills (scripts/docs/bills.py: answers that repeat their steps) and dfs (the
# recursive state query). POLICIES also has the read policies as read-quoka, read-sparq, ..., which
# read a budget from the first token on. SETTINGS have no budget in entries: memshare,
# memshare-strict (steps of a cosine above .9), memshare-open (its thresholds open), random-N (N
# percent of the pages stand for others, by chance), page-N (pages of N tokens), and v3-N,
# streaming-N, snapkv-N and quest-N (N percent of the entries are kept, or read).
# scripts/docs/real_reason_table.py OUT prints the table.
set -euo pipefail
if [ $# -ne 3 ]; then
    echo "usage: scripts/docs/real_reason.sh DIR_OF_MODELS DIR_OF_DATA OUT" >&2
    exit 2
fi
root=$(cd "$(dirname "$0")/../.." && pwd)
models=$1 data=$2 statistics=$3 out=$3/reason
MODELS=${MODELS:-coder-1.5b} FILES=${FILES:-gsm8k math500} BUDGETS=${BUDGETS-256 128}
POLICIES=${POLICIES:-triattention rkv snapkv h2o longflow streaming lazyeviction tova raas vatp kvzap}
QUESTIONS=${QUESTIONS:-100} PARALLEL=${PARALLEL:-16} PREDICT=${PREDICT:-768} THREADS=${THREADS:-2}
SETTINGS=${SETTINGS-memshare} PITH=${PITH:-$root/build/cli/pith}
mkdir -p "$out"
me=real_reason.sh
. "$root/scripts/docs/cells.sh"

# task_of FILE: sets task, the words behind `pith eval`.
task_of() {
    local ask=(--chat --parallel "$PARALLEL" --predict "$PREDICT" -t "$THREADS")
    local problems=(questions "${ask[@]}" --temp 0 --questions "$QUESTIONS" -f)
    case $1 in
    gsm8k) task=("${problems[@]}" "$data/questions/gsm8k_test.jsonl") ;;
    math500) task=("${problems[@]}" "$data/questions/lessismore_math500.jsonl") ;;
    bills)
        "$root/scripts/docs/bills.py" "$QUESTIONS" >"$out/bills.jsonl"
        task=("${problems[@]}" "$out/bills.jsonl")
        ;;
    dfs) task=(recursion "${ask[@]}" --samples 0 -f "$data/questions/dfs/dfs_state_query_detail.json") ;;
    *) echo "real_reason.sh: there is no file \"$1\", only gsm8k, math500, bills, dfs" >&2; exit 2 ;;
    esac
}

# The text of --keep, or of --read. A round comes every 32 tokens: answers are a few hundred tokens
# long, and the 128 between the rounds of most papers would be as many as the smaller budgets hold.
# Those do not hold every prompt either, so that none is pinned there.
policy_of() {
    local stats=stats=$statistics/$3.stats rules=budget=$2
    [ "$2" -ge 256 ] || rules=pin-prompt=off,$rules
    case $1 in
    triattention) echo "triattention:paper,slack=32,$stats,$rules" ;;
    triattention-global) echo "triattention:paper,granularity=global,slack=32,$stats,$rules" ;;
    lazyeviction) echo "lazyeviction:gsm8k,$rules" ;;
    read-loki) echo "loki:gate=1,budget=$2,projection=$(bases_of "$3")" ;;
    read-*) echo "${1#read-}:gate=1,budget=$2" ;;
    kvzap) echo "kvzap:window=32,recent=0,slack=32,$stats,$rules" ;;
    longflow | tova | raas) echo "$1:$rules" ;;
    *) echo "$1:slack=32,$rules" ;;
    esac
}

# setting_of SETTING MODEL: sets options.
setting_of() {
    local share=${1#*-}
    case $1 in
    memshare) options=(--share memshare) ;;
    memshare-strict) options=(--share memshare:step=0.9) ;;
    memshare-open) options=(--share memshare:block=0.8,relative=2) ;;
    random-*) options=(--share "random:share=0.$(printf %02d "$share")") ;;
    v3-*) options=(--keep "triattention:v3,stats=$statistics/$2.stats,budget=$share%") ;;
    streaming-* | snapkv-*) options=(--keep "${1%-*}:slack=32,budget=$share%") ;;
    page-*) options=(--page "$share") ;;
    quest-*) options=(--read "quest:dense-layers=0,budget=$share%" --page 16) ;;
    *) echo "real_reason.sh: there is no setting \"$1\"" >&2; exit 2 ;;
    esac
}

# solve NAME MODEL FILE OPTIONS ..
solve() {
    local name=$1 model=$2 task
    task_of "$3"
    shift 3
    measure "$name" "$PITH" eval "${task[@]}" -m "$(file_of "$model")" "$@"
}

for m in $MODELS; do need_model "$m"; done
for m in $MODELS; do for f in $FILES; do
    solve "$m.$f.full.0" "$m" "$f"
    for p in $SETTINGS; do
        setting_of "$p" "$m"
        solve "$m.$f.$p.0" "$m" "$f" "${options[@]}"
    done
    for b in $BUDGETS; do for p in $POLICIES; do
        verb=--keep
        [[ $p != read-* ]] || verb=--read
        solve "$m.$f.$p.$b" "$m" "$f" $verb "$(policy_of "$p" "$b" "$m")"
    done; done
done; done
