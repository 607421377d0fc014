#!/bin/bash
# Measures the table "At 32,768 tokens" of docs/real/long.md: seed 004's setting, in which a prompt
# fills the model's whole context, with storage, keep and recall alone and stacked.
#   scripts/docs/real_long.sh DIR_OF_MODELS DIR_OF_DATA OUT
# OUT is that of scripts/docs/real.sh, whose statistics it uses. Each cell is one JSON file,
# OUT/long/MODEL.LENGTH.TASK.SETTING.json, and .time beside it has its seconds. A cell of Coder-1.5B
# takes 10 to 25 minutes of one processor with AVX-512; started again, the script goes on where it
# stopped. TASK is facts (ten facts in one text, asked on forks of one reading) or perplexity (-b
# 512). Subsets by environment:
#   MODELS="coder-1.5b"  TASKS="facts perplexity"  SETTINGS="full v3-90 ..."  LENGTH=32768
#   TEXTS=1 CHUNKS=1 THREADS=2 PITH=build/cli/pith
# scripts/docs/real_long_table.py OUT prints the table.
set -euo pipefail
if [ $# -ne 3 ]; then
    echo "usage: scripts/docs/real_long.sh DIR_OF_MODELS DIR_OF_DATA OUT" >&2
    exit 2
fi
root=$(cd "$(dirname "$0")/../.." && pwd)
models=$1 data=$2 statistics=$3 out=$3/long
MODELS=${MODELS:-coder-1.5b} TASKS=${TASKS:-facts perplexity} LENGTH=${LENGTH:-32768}
SETTINGS=${SETTINGS:-full v1-90 v2-90 v3-90 v3-85 q8-turbo3 stack kvzap-50 kvzap-25 quoka}
TEXTS=${TEXTS:-1} CHUNKS=${CHUNKS:-1} THREADS=${THREADS:-2} PITH=${PITH:-$root/build/cli/pith}
mkdir -p "$out"
me=real_long.sh
. "$root/scripts/docs/cells.sh"

# options_of SETTING MODEL: sets options.
options_of() {
    local stats=stats=$statistics/$2.stats
    case $1 in
    full) options=() ;;
    v[123]-*) options=(--keep "triattention:${1%-*},$stats,budget=${1#*-}%") ;;
    q8-turbo3) options=(-ctk q8_0 -ctv turbo3) ;;
    stack) options=(--keep "triattention:v3,$stats,budget=85%" -ctk q8_0 -ctv turbo3) ;;
    kvzap-*) options=(--keep "kvzap:$stats,budget=${1#*-}%") ;;
    quoka) options=(--read quoka:budget=1024) ;;
    *) echo "real_long.sh: there is no setting \"$1\"" >&2; exit 2 ;;
    esac
}

for m in $MODELS; do need_model "$m"; done
for s in $SETTINGS; do for m in $MODELS; do for t in $TASKS; do
    options_of "$s" "$m"
    case $t in
    facts)
        task=(-n "$LENGTH" --texts "$TEXTS" --chat --seed 3)
        [ "$s" != stack ] || task+=(--recall text) # a text that is foretold asks nothing
        ;;
    perplexity) task=(-c "$LENGTH" -b 512 --chunks "$CHUNKS") ;;
    *) echo "real_long.sh: there is no task \"$t\", only facts, perplexity" >&2; exit 2 ;;
    esac
    measure "$m.$LENGTH.$t.$s" "$PITH" eval "$t" -m "$(file_of "$m")" -f "$data/text/wiki.test.raw" \
        "${task[@]}" --no-paired -t "$THREADS" "${options[@]}"
done; done; done
