#!/bin/bash
# Measures TriAttention part by part: what each part of its score does, what calibration it wants,
# and what V3 loses at many shares of the entries.
#   scripts/docs/real_parts.sh DIR_OF_MODELS DIR_OF_DATA OUT
# Each cell is one JSON file in OUT, written when it is complete: started again, the script goes on
# where it stopped. scripts/docs/real_parts_table.py OUT prints the tables. By environment:
#   MODELS="smollm2 coder-0.5b"   TASKS="facts perplexity"   CELLS="score/base v3/90 ..."
#   LENGTH=2048 TEXTS=4 CHUNKS=4 THREADS=2 SEED=3 SHARE=50   PITH=build/cli/pith
# Parts of the score are measured at SHARE percent of the entries, a budget for each lane. Cells
# global and fixed have one budget for all lanes, with keys at their own distances or all at one.
set -euo pipefail
if [ $# -ne 3 ]; then
    echo "usage: scripts/docs/real_parts.sh DIR_OF_MODELS DIR_OF_DATA OUT" >&2
    exit 2
fi
root=$(cd "$(dirname "$0")/../.." && pwd)
models=$1 data=$2 out=$3
MODELS=${MODELS:-smollm2 coder-0.5b} TASKS=${TASKS:-facts perplexity}
LENGTH=${LENGTH:-2048} TEXTS=${TEXTS:-4} CHUNKS=${CHUNKS:-4} THREADS=${THREADS:-2} SEED=${SEED:-3}
SHARE=${SHARE:-50} PITH=${PITH:-$root/build/cli/pith}
CELLS=${CELLS:-"full/100 score/base score/trig=off score/norm=off score/r=off score/z=off
score/offsets=linear score/offset-max=1024 score/over=max score/distance=256 score/group=mean
score/centres=random-phase
text/code text/dialogue text/problems length/512 length/2048
v3/95 v3/90 v3/85 v3/80 v3/70 v3/60 v3/50 prefix/0 prefix/256
global/50 fixed/50 global/25 fixed/25 global/10 fixed/10"}
mkdir -p "$out"
me=real_parts.sh
. "$root/scripts/docs/cells.sh"

# Prints what is calibrated on: text/WHICH, or length/TOKENS of prose.
text_of() {
    case $1 in
    text/code) cat "$root"/src/kv/*.c ;;
    text/dialogue) cat "$data/text/tinyshakespeare.txt" ;;
    text/problems) cat "$data/questions/gsm8k_test.jsonl" ;;
    *) cat "$data/text/wiki.valid.raw" ;;
    esac
}

# distance_of CELL: the option of keys that are all at one distance.
distance_of() {
    case $1 in fixed/*) echo ,distance=256 ;; esac
}

# stats_of MODEL CELL: the path of the cell's statistics, which are made where they are missing: of
# 8,192 tokens in pieces of 2,048, or of fewer. One budget for all lanes wants a map.
stats_of() {
    local cell=text/prose length=8192 file
    case $2 in
    text/*) cell=$2 ;;
    length/*) length=${2#*/} ;;
    global/* | fixed/*)
        file=$out/$1.${2%/*}.stats
        learn_map "$1" "$file" "triattention:global$(distance_of "$2")"
        echo "$file"
        return
        ;;
    esac
    file=$out/$1.${cell#*/}.$length.stats
    if [ ! -e "$file" ]; then
        text_of "$cell" | "$PITH" tokenize -m "$(file_of "$1")" -f - |
            awk -v n="$length" 'NR <= n { print $1 }' >"$file.ids"
        "$PITH" calibrate queries -m "$(file_of "$1")" --tokens "$file.ids" -c 2048 -q \
            -t "$THREADS" -o "$file.new" >/dev/null
        mv "$file.new" "$file"
    fi
    echo "$file"
}

# keep_of CELL STATISTICS
keep_of() {
    local base=triattention:stats=$2,pin-prompt=off,granularity=layer-head,sinks=4,window=128
    case $1 in
    full/*) echo none ;;
    score/base | text/* | length/*) echo "$base,budget=$SHARE%" ;;
    score/*) echo "$base,budget=$SHARE%,${1#*/}" ;;
    global/* | fixed/*)
        echo "triattention:global,stats=$2,budget=${1#*/}%$(distance_of "$1")" ;;
    v3/*) echo "triattention:v3,stats=$2,budget=${1#*/}%" ;;
    prefix/*) echo "triattention:v3,stats=$2,budget=$SHARE%,prefix=${1#*/}" ;;
    *) echo "real_parts.sh: there is no cell \"$1\"" >&2; exit 2 ;;
    esac
}

for m in $MODELS; do need_model "$m"; done
for m in $MODELS; do for cell in $CELLS; do for task in $TASKS; do
    name=$m.$task.${cell/\//.}
    is_done "$name" && continue
    keep=$(keep_of "$cell" "$(stats_of "$m" "$cell")")
    case $task in
    facts) options=(-n "$LENGTH" --texts "$TEXTS" --chat --seed "$SEED") ;;
    perplexity) options=(-c 4096 -b 512 --chunks "$CHUNKS") ;;
    *) echo "real_parts.sh: there is no task \"$task\", only facts, perplexity" >&2; exit 2 ;;
    esac
    measure "$name" "$PITH" eval "$task" -m "$(file_of "$m")" -f "$data/text/wiki.test.raw" \
        "${options[@]}" --no-paired -t "$THREADS" --keep "$keep"
done; done; done
