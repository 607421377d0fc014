#!/bin/bash
# Measures the table "On real models" of docs/store.md: pairs of storage types on real models.
#   scripts/docs/store_real.sh DIR_OF_MODELS DIR_OF_DATA OUT
# DIR_OF_MODELS is a folder of scripts/models.sh; DIR_OF_DATA has text/wiki.test.raw. Each cell is
# one JSON file in OUT, written when it is complete: started again, the script goes on where it
# stopped. A cell that fails leaves its sentence in NAME.err and is tried again only with RETRY=1.
# scripts/docs/store_table.py OUT prints the table. Subsets by environment, each a list of words:
#   MODELS="smollm2 coder-0.5b"   TASKS="perplexity perplexity-8192 facts"
#   PAIRS="q8_0/turbo4 q4_0/q4_0 ..."   CHUNKS="8 4" (of MODELS in turn)   TEXTS=2
#   LENGTH=2048 SEED=3 THREADS=2 PITH=build/cli/pith
# Perplexity is paired token by token with f16 for both. Keys in a turbo type are forced, since the
# asymmetric rule would turn some of them into q8_0.
set -euo pipefail
if [ $# -ne 3 ]; then
    echo "usage: scripts/docs/store_real.sh DIR_OF_MODELS DIR_OF_DATA OUT" >&2
    exit 2
fi
root=$(cd "$(dirname "$0")/../.." && pwd)
models=$1 data=$2 out=$3
MODELS=${MODELS:-smollm2 coder-0.5b}
TASKS=${TASKS:-perplexity perplexity-8192 facts}
PAIRS=${PAIRS:-f16/f16 q8_0/q8_0 q8_0/turbo4 q8_0/turbo3 q8_0/turbo3:q8_0=4+0 q8_0/turbo2 q4_0/q4_0 turbo4/turbo4 turbo3/turbo3}
read -ra CHUNKS <<<"${CHUNKS:-8 4}"
TEXTS=${TEXTS:-2} LENGTH=${LENGTH:-2048} SEED=${SEED:-3} THREADS=${THREADS:-2}
PITH=${PITH:-$root/build/cli/pith}
mkdir -p "$out"
me=store_real.sh
. "$root/scripts/docs/cells.sh"

# run_cell NAME TASK MODEL CHUNKS K V
run_cell() {
    local name=$1 task=$2 model=$3 chunks=$4 k=$5 v=$6 arguments
    [[ $k != turbo* ]] || k=${k:0:6}:force${k:6}
    case $task in
    perplexity) arguments=(-c 1024 --chunks "$chunks" --reference-type f16) ;;
    perplexity-8192) task=perplexity arguments=(-c 8192 --chunks 1 --reference-type f16) ;;
    facts) arguments=(-n "$LENGTH" --texts "$TEXTS" --chat --no-paired --seed "$SEED") ;;
    *) echo "store_real.sh: there is no task \"$task\", only perplexity, perplexity-8192, facts" >&2; exit 2 ;;
    esac
    measure "$name" "$PITH" eval "$task" -m "$model" -f "$data/text/wiki.test.raw" \
        "${arguments[@]}" -t "$THREADS" -ctk "$k" -ctv "$v"
}

at=0
for m in $MODELS; do
    need_model "$m"
    for t in $TASKS; do
        for pair in $PAIRS; do
            run_cell "$m.$t.${pair%%/*}.${pair#*/}" "$t" "$(file_of "$m")" "${CHUNKS[at]:-4}" \
                "${pair%%/*}" "${pair#*/}"
        done
    done
    at=$((at + 1))
done
