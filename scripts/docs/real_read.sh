#!/bin/bash
# Measures the table "Reading a part" of docs/real.md: facts that a model finds in 4,096 tokens
# while a read policy lets it attend to a part of them.
#   scripts/docs/real_read.sh DIR_OF_MODELS DIR_OF_DATA OUT
# Each cell is one JSON file, OUT/read/MODEL.LENGTH.POLICY.BUDGET.json, written when it is complete:
# started again, the script goes on where it stopped. One cell takes a minute and a half on one
# processor with AVX-512. A policy named NAME:quoka is in the setting of QuoKA's paper (prompts as
# well as single tokens, no gate); NAME alone has its own defaults. Subsets by environment:
#   MODELS="coder-0.5b"  POLICIES="quoka quest ..."  BUDGETS="128 512"  LENGTH=4096  TEXTS=4
#   THREADS=2 PITH=build/cli/pith
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
POLICIES=${POLICIES:-$names sparq:quoka loki:quoka lessismore:quoka tidaldecode:quoka quest:quoka}
THREADS=${THREADS:-2} PITH=${PITH:-$root/build/cli/pith}
mkdir -p "$out"
me=real_read.sh
. "$root/scripts/docs/cells.sh"

# facts NAME MODEL OPTIONS ..
facts() {
    local name=$1 model=$2
    shift 2
    measure "$name" "$PITH" eval facts -m "$(file_of "$model")" -f "$data/text/wiki.test.raw" \
        -n "$LENGTH" --texts "$TEXTS" --chat --no-paired --seed 3 -t "$THREADS" "$@"
}

# The bases that Loki scores keys in, of another part of the text.
bases() {
    local file=$out/$1.loki
    head -c 100000 "$data/text/wiki.valid.raw" >"$out/loki.txt"
    [ -s "$file" ] || "$PITH" calibrate -m "$(file_of "$1")" -f "$out/loki.txt" -c 2048 \
        --loki "$file" -t "$THREADS" >&2
    echo "$file"
}

for m in $MODELS; do
    need_model "$m"
    facts "$m.$LENGTH.full.0" "$m"
    for b in $BUDGETS; do for p in $POLICIES; do
        case $p in
        loki) facts "$m.$LENGTH.$p.$b" "$m" --read "$p:budget=$b,projection=$(bases "$m")" ;;
        loki:*) facts "$m.$LENGTH.$p.$b" "$m" --read "$p,budget=$b,projection=$(bases "$m")" ;;
        *:*) facts "$m.$LENGTH.$p.$b" "$m" --read "$p,budget=$b" ;;
        *) facts "$m.$LENGTH.$p.$b" "$m" --read "$p:budget=$b" ;;
        esac
    done; done
done
