#!/bin/bash
# Measures the tables "Reading a part" of docs/real/read.md: facts that a model finds in 4,096
# tokens, and what it scores in RULER, while a read policy lets it attend to a part of them.
#   scripts/docs/real_read.sh DIR_OF_MODELS DIR_OF_DATA OUT
# Each cell is one JSON file, OUT/read/MODEL.TASK-LENGTH.POLICY.BUDGET.json, written when it is
# complete: started again, the script goes on where it stopped. One cell takes a minute and a half
# on one processor with AVX-512. A policy named NAME:quoka is in the setting of QuoKA's paper
# (prompts as well as single tokens, no gate); NAME alone has its own defaults. Subsets by
# environment:
#   MODELS="coder-0.5b"  TASKS="facts ruler"  POLICIES="quoka quest ..."  BUDGETS="128 512"
#   LENGTH=4096 TEXTS=4 SAMPLES=4 THREADS=2 PITH=build/cli/pith
# scripts/docs/real_read_table.py OUT prints the table.
set -euo pipefail
if [ $# -ne 3 ]; then
    echo "usage: scripts/docs/real_read.sh DIR_OF_MODELS DIR_OF_DATA OUT" >&2
    exit 2
fi
root=$(cd "$(dirname "$0")/../.." && pwd)
models=$1 data=$2 out=$3/read
names="quoka snapkv sampleattention keydiff sparq loki lessismore tidaldecode quest"
MODELS=${MODELS:-coder-0.5b} BUDGETS=${BUDGETS:-128 512} LENGTH=${LENGTH:-4096} TEXTS=${TEXTS:-4}
SAMPLES=${SAMPLES:-4} TASKS=${TASKS:-facts}
POLICIES=${POLICIES:-$names sparq:quoka loki:quoka lessismore:quoka tidaldecode:quoka quest:quoka}
THREADS=${THREADS:-2} PITH=${PITH:-$root/build/cli/pith}
mkdir -p "$out"
me=real_read.sh
. "$root/scripts/docs/cells.sh"

# run_cell TASK MODEL POLICY.BUDGET OPTIONS ..
run_cell() {
    local task=$1 model=$2 name=$2.$1-$LENGTH.$3 arguments
    shift 3
    case $task in
    facts) arguments=(-n "$LENGTH" --texts "$TEXTS" --no-paired) ;;
    ruler) arguments=(-n "$LENGTH" --samples "$SAMPLES" --text --task niah_single_2
        --task niah_multikey_1 --task niah_multivalue --task vt) ;;
    *) echo "real_read.sh: there is no task \"$task\", only facts, ruler" >&2; exit 2 ;;
    esac
    measure "$name" "$PITH" eval "$task" -m "$(file_of "$model")" -f "$data/text/wiki.test.raw" \
        "${arguments[@]}" --chat --seed 3 -t "$THREADS" "$@"
}

# The text of --read: policy_of POLICY BUDGET MODEL.
policy_of() {
    local options=budget=$2
    [[ $1 != loki* ]] || options=$options,projection=$(bases_of "$3")
    case $1 in
    *:*) echo "$1,$options" ;;
    *) echo "$1:$options" ;;
    esac
}

for m in $MODELS; do need_model "$m"; done
for m in $MODELS; do for t in $TASKS; do
    run_cell "$t" "$m" full.0
    for b in $BUDGETS; do for p in $POLICIES; do
        run_cell "$t" "$m" "$p.$b" --read "$(policy_of "$p" "$b" "$m")"
    done; done
done; done
