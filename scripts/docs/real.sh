#!/bin/bash
# Measures the tables of docs/real/tables.md: real models x tasks x policies x budgets, while the
# prompt streams in and at its end, each lane for itself and all of them ranked together.
#   scripts/docs/real.sh DIR_OF_MODELS DIR_OF_DATA OUT
# DIR_OF_MODELS is a folder of scripts/models.sh; DIR_OF_DATA has text/wiki.test.raw, which
# scripts/importance.sh does not learn from. Each cell is one JSON file in OUT, written when it is
# complete (TASK is facts, or facts-4096 with another LENGTH): started again, the script goes on
# where it stopped. A cell that fails leaves its
# sentence in NAME.err and is tried again only with RETRY=1. Subsets by environment, each a list of
# words:
#   MODELS="smollm2 coder-0.5b coder-1.5b"   TASKS="facts needle ruler perplexity"
#   POLICIES="kvzap triattention ..."        BUDGETS="75 50 25 10"
#   PROTOCOLS="stream prompt-end"            GRANULARITIES="own global split"
#   LENGTH=2048 TEXTS=4 SAMPLES=8 CHUNKS=4 THREADS=2 SEED=3 PITH=build/cli/pith
# Every cell is measured alone; scripts/docs/real_table.py OUT pairs it with the full cache's.
set -euo pipefail
if [ $# -ne 3 ]; then
    echo "usage: scripts/docs/real.sh DIR_OF_MODELS DIR_OF_DATA OUT" >&2
    exit 2
fi
root=$(cd "$(dirname "$0")/../.." && pwd)
models=$1 data=$2 out=$3
MODELS=${MODELS:-smollm2 coder-0.5b coder-1.5b}
TASKS=${TASKS:-facts needle ruler perplexity}
POLICIES=${POLICIES:-kvzip kvzap kvzap-recent kvzap+kv:type=stored kvzap+text kvzap-w32 kvzap-hidden expected triattention v3 v3+kv:type=stored v3+text longflow snapkv h2o tova keydiff knorm pyramidkv adakv streaming random}
BUDGETS=${BUDGETS:-75 50 25 10}
PROTOCOLS=${PROTOCOLS:-stream prompt-end}
GRANULARITIES=${GRANULARITIES:-own global}
LENGTH=${LENGTH:-2048} TEXTS=${TEXTS:-4} SAMPLES=${SAMPLES:-8} CHUNKS=${CHUNKS:-4} THREADS=${THREADS:-2} SEED=${SEED:-3}
PITH=${PITH:-$root/build/cli/pith}
mkdir -p "$out"
me=real.sh
. "$root/scripts/docs/cells.sh"

# Tokens per second that two processors with AVX-512 read, for the estimate alone.
speed_of() {
    case $1 in smollm2) echo 1000 ;; coder-0.5b) echo 500 ;; *) echo 150 ;; esac
}

tokens_of() {
    case $1 in
    facts) echo $((TEXTS * (LENGTH + 1000))) ;;
    needle) echo $((20 * (LENGTH + 200))) ;;
    ruler) echo $((5 * SAMPLES * LENGTH)) ;;
    perplexity) echo $((CHUNKS * 4096)) ;;
    *) echo "real.sh: there is no task \"$1\", only facts, needle, ruler, perplexity" >&2; exit 2 ;;
    esac
}

# The text of --keep: policy_of POLICY BUDGET PROTOCOL GRANULARITY STATS. GRANULARITY: own (each
# lane for itself), global (one ranking over all lanes), split (capacities of lanes by calibration).
# What follows a + in POLICY is for --recall; -w32 at its end is window=32.
policy_of() {
    local name=${1%+*} options=stats=$5,budget=$2% own
    [[ $name != *-w[0-9]* ]] || options=window=${name##*-w},$options name=${name%-w*}
    own=$name
    case $name in
    kvzap) options=recent=0,$options ;; # a window that does not grow with the budget
    kvzap-recent) own=kvzap ;;          # half of the budget is a window: the default
    kvzap-hidden) own=kvzap options=features=hidden,recent=0,$options ;;
    triattention)
        [[ $options == window=* ]] || options=window=128,$options
        options=sinks=4,pin-prompt=off,$options
        ;;
    v3) own=triattention options=v3,$options ;;
    esac
    case $4 in
    own) options=$options,granularity=layer-head ;;
    split) options=$options,granularity=layer-head,split=calibrated ;;
    *) options=$options,granularity=global,overwrite=off ;;
    esac
    [ "$name.$4" != v3.own ] || options=v3,stats=$5,budget=$2%
    [ "$3" = stream ] || options=$options,rounds=$3
    echo "$own:$options"
}

# Cells, one a line: MODEL TASK POLICY BUDGET PROTOCOL GRANULARITY
cells() {
    local m t p b r g
    for m in $MODELS; do
        for t in $TASKS; do
            [ "$LENGTH" = 2048 ] || [ "$t" = perplexity ] || t=$t-$LENGTH
            echo "$m $t full 100 stream own"
            for b in $BUDGETS; do for p in $POLICIES; do for r in $PROTOCOLS; do
                for g in $GRANULARITIES; do
                    # A text that is foretold has no prompt, and an oracle of two passes no stream.
                    [ "$t:$r" = perplexity:prompt-end ] && continue
                    [ "$p:$r" = kvzip:stream ] && continue
                    echo "$m $t $p $b $r $g"
                done
            done; done; done
        done
    done
}

say_time() {
    local m t rest n=0 left=0
    while read -r m t rest; do
        is_done "$m.$t.${rest// /.}" && continue
        n=$((n + 1))
        # Rounds and short answers take about as long again as reading.
        left=$((left + 2 * $(tokens_of "${t%-*}") / $(speed_of "$m")))
    done < <(cells)
    echo "real.sh: $n cells are left of $(cells | wc -l), about $((left / 3600)) h $((left / 60 % 60)) min on two processors" >&2
}

# run_cell NAME MODEL TASK KEEP ...
run_cell() {
    local name=$1 model=$2 task=$3 arguments
    shift 3
    task=${task%-*}
    case $task in
    facts) arguments=(-f "$data/text/wiki.test.raw" -n "$LENGTH" --texts "$TEXTS" --chat --no-paired) ;;
    needle) arguments=(-f "$data/text/wiki.test.raw" -n "$LENGTH" --chat
        --no-paired -d "2,7,12,17,22,27,32,37,42,47,52,57,62,67,72,77,82,87,92,97") ;;
    ruler) arguments=(-f "$data/text/wiki.test.raw" -n "$LENGTH" --samples "$SAMPLES" --chat --text
        --task niah_single_2 --task niah_multikey_1 --task vt --task cwe --task fwe) ;;
    perplexity) arguments=(-f "$data/text/wiki.test.raw" -c 4096 -b 512 --chunks "$CHUNKS"
        --no-paired) ;;
    esac
    measure "$name" "$PITH" eval "$task" -m "$model" "${arguments[@]}" -t "$THREADS" \
        --seed "$SEED" "$@"
}

for m in $MODELS; do need_model "$m"; done
for t in $TASKS; do tokens_of "$t" >/dev/null; done
say_time
while read -r m task policy budget protocol granularity; do
    name=$m.$task.$policy.$budget.$protocol.$granularity
    is_done "$name" && continue
    stats=$out/$m.stats keep=()
    [[ $policy != *+* ]] || keep=(--recall "${policy##*+}")
    [ "$policy" = full ] || keep+=(--keep "$(policy_of "$policy" "$budget" "$protocol" "$granularity" "$stats")")
    if [[ ${keep[*]} == *stats=* && ! -e $stats ]]; then
        "$root/scripts/importance.sh" "$(file_of "$m")" "$stats" </dev/null
    fi
    run_cell "$name" "$(file_of "$m")" "$task" "${keep[@]}" </dev/null
done < <(cells)
