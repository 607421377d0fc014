#!/bin/bash
# Measures the frontier of `--kv`: facts, perplexity, needles and solved problems of real models by
# storage types, keep policy, share of entries and recall, at equal bytes of the full f16 cache.
#   scripts/docs/real_budget.sh DIR_OF_MODELS DIR_OF_DATA OUT
# Each cell is one JSON file in OUT, written when it is complete: started again, the script goes on
# where it stopped. scripts/docs/real_budget_table.py OUT prints the table. By environment:
#   MODELS="smollm2 coder-0.5b coder-1.5b"   TASKS="facts perplexity needle questions"
#   CELLS="TYPES:POLICY:SHARE:RECALL ..."    LENGTH=2048 TEXTS=4 CHUNKS=4 THREADS=2 SEED=3
#   NEEDLES=2, of each of five depths        QUESTIONS=50 PARALLEL=8 PREDICT=512, of GSM8K
#   PITH=build/cli/pith
# Without TASKS it measures facts and perplexity. Needles take five times as long as facts, problems
# as long as 25,000 tokens take to be generated, eight together.
set -euo pipefail
if [ $# -ne 3 ]; then
    echo "usage: scripts/docs/real_budget.sh DIR_OF_MODELS DIR_OF_DATA OUT" >&2
    exit 2
fi
root=$(cd "$(dirname "$0")/../.." && pwd)
models=$1 data=$2 out=$3
MODELS=${MODELS:-smollm2 coder-0.5b coder-1.5b}
TASKS=${TASKS:-facts perplexity}
LENGTH=${LENGTH:-2048} TEXTS=${TEXTS:-4} CHUNKS=${CHUNKS:-4} THREADS=${THREADS:-2} SEED=${SEED:-3}
NEEDLES=${NEEDLES:-2} QUESTIONS=${QUESTIONS:-50} PARALLEL=${PARALLEL:-8} PREDICT=${PREDICT:-512}
PITH=${PITH:-$root/build/cli/pith}
mkdir -p "$out"
me=real_budget.sh
. "$root/scripts/docs/cells.sh"

# TYPES:POLICY:SHARE:RECALL, the most telling first. SHARE is percent of the entries, as 12 or 12_5.
# kv:kv:SHARE:none is `--kv SHARE%`, a share of all bytes, which chooses the rest.
CELLS=${CELLS:-"
f16/f16:full:100:none
kv:kv:25:none
kv:kv:12_5:none
kv:kv:6_25:none
q8_0/turbo3:full:100:none
q8_0/turbo4:full:100:none
q8_0/turbo3:kvzap:66:none
q8_0/turbo3:kvzap:33:none
q8_0/turbo3:kvzap:33:text
q8_0/turbo3:kvzap:66:text
q8_0/turbo3:kvzap:16:text
q8_0/turbo4:kvzap:60:none
q8_0/turbo4:kvzap:29:none
q8_0/turbo3:triattention:66:none
q8_0/turbo3:v3:66:none
q8_0/turbo3:streaming:66:none
q8_0/turbo3:streaming:33:text
q8_0/turbo2:kvzap:72:none
q8_0/turbo2:kvzap:36:text
q8_0/turbo4:kvzap:30:text
q8_0/turbo3:v3-bare:66:none
q8_0/turbo3:keydiff:66:none
q8_0/turbo3:snapkv:66:none
q8_0/turbo3:v3-bare:33:text
q8_0/turbo3:triattention:33:text
q8_0/turbo3:kvzap:16:none
turbo4/turbo4:full:100:none
turbo4/turbo4:kvzap:92:none
turbo4/turbo4:kvzap:46:text
f16/f16:kvzap:25:none
q8_0/q8_0:full:100:none
"}

# The text of --keep of a policy, its share and statistics.
keep_of() {
    local shared=granularity=global,overwrite=off
    case $1 in
    kvzap) echo "kvzap:stats=$3,budget=$2%,$shared" ;;
    triattention) echo "triattention:sinks=4,pin-prompt=off,distance=256,window=128,stats=$3,budget=$2%,$shared" ;;
    v3) echo "triattention:v3,stats=$3,budget=$2%" ;;
    v3-bare) echo "triattention:v3,budget=$2%" ;;
    *) echo "$1:budget=$2%" ;;
    esac
}

# Makes a model's statistics where they are not there yet.
need_stats() {
    learn_map "$1" "$out/$1.stats" triattention:global,distance=256
}

# Puts them where --kv looks for them.
need_cache() {
    need_stats "$1"
    export XDG_CACHE_HOME=$out/cache
    mkdir -p "$out/cache/pith"
    cp "$out/$1.stats" "$out/cache/pith/$("$PITH" calibrate inspect "$out/$1.stats" |
        awk '/^fingerprint/ {print $2}').stats"
}

for m in $MODELS; do need_model "$m"; done
for m in $MODELS; do for cell in $CELLS; do for task in $TASKS; do
    IFS=: read -r types policy share recall <<<"$cell"
    [ "$task:$recall" != perplexity:text ] || continue # a text that is foretold asks nothing
    name=$m.$task.${types/\//-}.$policy.$share.$recall
    is_done "$name" && continue
    stats=$out/$m.stats
    keys=${types%/*}
    [[ $keys != turbo* ]] || keys=$keys:force
    text=$data/text/wiki.test.raw
    arguments=(-ctk "$keys" -ctv "${types#*/}")
    if [ "$policy" = kv ]; then
        need_cache "$m"
        arguments=(--kv "${share/_/.}%")
    elif [ "$policy" != full ]; then
        keep=$(keep_of "$policy" "$share" "$stats")
        arguments+=(--keep "$keep")
        [[ $keep != *stats=* ]] || need_stats "$m"
    fi
    [ "$recall" = none ] || arguments+=(--recall "$recall")
    case $task in
    facts) arguments+=(-n "$LENGTH" --texts "$TEXTS" --chat --no-paired) ;;
    needle) arguments+=(-n "$LENGTH" --repeat "$NEEDLES" --chat --no-paired) ;;
    questions)
        text=$data/questions/gsm8k_test.jsonl
        arguments+=(--questions "$QUESTIONS" --parallel "$PARALLEL" --predict "$PREDICT" --chat
            --temp 0)
        ;;
    perplexity) arguments+=(-c 4096 -b 512 --chunks "$CHUNKS" --no-paired) ;;
    *)
        echo "real_budget.sh: there is no task \"$task\", only facts, perplexity, needle, questions" >&2
        exit 2
        ;;
    esac
    measure "$name" "$PITH" eval "$task" -m "$(file_of "$m")" -f "$text" \
        -t "$THREADS" --seed "$SEED" "${arguments[@]}"
done; done; done
