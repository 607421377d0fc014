#!/usr/bin/env bash
# Makes the tables of the papers' experiments on a machine with a GPU, each number beside its bound,
# in the folder that scripts/gpu/check.sh makes. It needs bash, awk and NVIDIA's driver; PyTorch
# where it is there.
#   ./tables.sh OUT [CELL...]         OUT: a folder for results; without a CELL all, the ones that
#                                     say most first
#   ./tables.sh --list                names of cells
#   ./tables.sh --try OUT [CELL...]   the same cells in a few seconds, on shapes of a toy: to try it
# A cell is one command with a time limit. What it prints goes to OUT/CELL.out, its line to
# OUT/CELL.cmd. A cell that has ended is not run again: delete OUT/CELL.ok for that. After each call
# OUT/NAME.md is a page of docs/gpu/ with what there is so far.
# Variables: DEVICE (cuda:0); TIME, seconds of a call (1200): cells that do not fit into it are left
# for the next one; KV (48GiB) and KV_SMALL (32GiB), KV memory beside models of 8 and 1.7 billion
# weights; MODELS, a folder of real *.gguf (models); SCRATCH (/tmp), for 6 GB of random models;
# NAME, the card's in names of files (card); PYTHON (python3); BUILD, a build folder in the place of
# that folder.
set -u
here=$(cd "$(dirname "$0")" && pwd)
trying=0
if [ "${1:-}" = --try ]; then
    trying=1
    shift
fi
if [ -n "${BUILD:-}" ]; then
    BUILD=$(cd "$BUILD" && pwd)
    cd "$here/../.." || exit 1
    pith=$BUILD/cli/pith make_model=$BUILD/tests/make_model bench=$BUILD/bench
    commit=$(git describe --always --dirty 2>/dev/null || echo unknown)
else
    cd "$here" || exit 1
    pith=bin/pith make_model=test/make_model bench=test
    commit=$(cat COMMIT 2>/dev/null || echo unknown)
fi
device=${DEVICE:-cuda:0}
python=${PYTHON:-python3}
scratch=${SCRATCH:-/tmp}
name=${NAME:-card}
text=models/demo/prompt-2k.txt
trap 'kill $(jobs -p) 2>/dev/null' EXIT

# ---- sizes ----

big="arch=qwen3 layers=36 width=4096 heads=32 kv_heads=8 head_dim=128 ff=12288 pad=151936 ctx=262144"
small="arch=qwen3 layers=28 width=2048 heads=16 kv_heads=8 head_dim=128 ff=6144 tied=1 pad=151936 ctx=262144"
kv=${KV:-48GiB} kv_small=${KV_SMALL:-32GiB}
prompt=512 output=16384 budgets=1024,2048,3072,4096
flow_output=16000 flow_budget=3200
warm=512 depth=32768 long=131072 keep_budget=3072
chunks="128 512 2048" prompts=512,8192,16384,32768,65536 quoka=1024
answers=48 room=12 parts=20
torch_batches=1,8,0 torch_depth=8704 steps=8 # that depth is the mean over the output
if [ $trying = 1 ]; then
    device=${DEVICE:-cpu}
    big="arch=qwen3 layers=2 width=256 heads=4 kv_heads=2 head_dim=64 ff=512 ctx=262144"
    small="arch=qwen3 layers=1 width=256 heads=4 kv_heads=2 head_dim=64 ff=256 tied=1 ctx=262144"
    kv=2MiB kv_small=1MiB
    prompt=128 output=320 budgets=256,320
    flow_output=320 flow_budget=256
    warm=64 depth=768 long=1024 keep_budget=320
    chunks="32 64 128" prompts=64,128,512 quoka=64
    answers=6 room=2 parts=6
    torch_batches=1,0 torch_depth=288 steps=2
fi

# The list of chunks, as an option.
some() {
    echo "$*" | tr ' ' ,
}

# ---- cells ----

models() {
    local folder=${MODELS:-models}
    if [ $trying = 1 ]; then
        ls models/pith-nano.gguf
    else
        ls "$folder"/smollm2-*.gguf "$folder"/*coder-0.5b*.gguf 2>/dev/null
    fi
}

# Name, options of pith. STATS is the model's file of statistics.
qualities="none
triattention --keep triattention:v3,budget=320,slack=32,stats=STATS
longflow --keep longflow:budget=192
snapkv --keep snapkv:budget=192,slack=32
rkv --keep rkv:budget=192,slack=32
h2o --keep h2o:budget=192
quoka --read quoka:budget=64,chunk=64
stored -ctk q8_0 -ctv turbo3
stack -ctk q8_0 -ctv turbo3 --keep triattention:v3,budget=320,slack=32,stats=STATS"

# Every cell in its order: name, seconds, command.
cells() {
    local tokens="$bench/bench_tokens --csv --device $device --rounds 1 --steps $steps"
    local b=$scratch/pith-$size-big.gguf s=$scratch/pith-$size-small.gguf
    local speed="$pith bench --device $device -o csv -m" torch="$python $here/peer_torch.py"
    local made="$tokens --prompt $prompt --output $output --kv-memory $kv" model
    local flow="$tokens --prompt $prompt --output $flow_output --budget $flow_budget --kv-memory $kv_small"
    local stats="stats=$out/big.stats" prompts_of="-r 1 --no-warm-up -n 0 -p"
    local chunk
    [ $trying = 1 ] && torch="$torch --try"

    echo "budgets-full 120 $made --policies full $b"
    echo "budgets-triattention 150 $made --policies triattention:paper --budget $budgets $b"
    echo "flow 150 $flow --policies full,longflow $s"
    echo "fused-short 60 $tokens --prompt 128 --output 128 --full 64 --policies full $s"
    echo "fused 60 $tokens --prompt $flow_budget --output 128 --full 64 --policies full,longflow --budget $flow_budget $s"
    echo "attention-full 60 $speed $b -r 2 -n 0 -p $(some $chunks) -d 0,$depth --chunk 2048"
    for chunk in $chunks; do
        echo "attention-quoka-$chunk 60 $speed $b -r 2 -n 0 -p $chunk -d 0,$depth --chunk 2048 --read quoka:budget=$quoka,chunk=$chunk"
    done
    echo "first-big-full 120 $speed $b $prompts_of $prompts --chunk 512"
    echo "first-big-quoka 120 $speed $b $prompts_of $prompts --chunk 512 --read quoka:budget=$quoka,chunk=512"
    echo "statistics 60 $pith calibrate queries -q -m $b --device $device -f $text -o $out/big.stats"
    echo "prompt-full 60 $speed $b $prompts_of $warm,$depth"
    echo "prompt-v3 60 $speed $b $prompts_of $warm,$depth --keep triattention:v3,budget=90%,$stats"
    echo "prompt-stack 60 $speed $b $prompts_of $warm,$depth --keep triattention:v3,budget=90%,$stats -ctk q8_0 -ctv turbo3"
    echo "prompt-budget 60 $speed $b $prompts_of $warm,$depth --keep triattention:v3,budget=$keep_budget,$stats"
    echo "repeat 180 $bench/bench_share --csv --device $device --parts repeat --rounds 1 --seqs $answers --room $room --answer $parts --repeat 10,25,40,50 $s"
    echo "torch-full 100 $torch --what full,cat --shape big --batch $torch_batches --depth $torch_depth --slots $((prompt + output))"
    echo "torch-two 100 $torch --what full,two,once,rkv --shape small --batch $torch_batches --depth $flow_budget"
    echo "torch-flow 60 $torch --what full,cat --shape small --batch 0 --depth $((prompt + flow_output / 2)) --slots $((prompt + flow_output))"
    echo "torch-prompt 100 $torch --what prompt --shape big --prompts $prompts"
    echo "long-stack 150 $speed $b $prompts_of $warm,$long --keep triattention:v3,budget=90%,$stats -ctk q8_0 -ctv turbo3"
    echo "budgets-rkv 120 $made --policies rkv --budget $budgets $b"
    echo "flow-others 150 $flow --policies triattention:v3,h2o,rkv,snapkv,tova $s"
    for model in $(models); do
        quality_cells "$model" "$(basename "$model" .gguf)"
    done
    for chunk in $chunks; do
        echo "first-small-full-$chunk 90 $speed $s $prompts_of $prompts --chunk $chunk"
        echo "first-small-quoka-$chunk 90 $speed $s $prompts_of $prompts --chunk $chunk --read quoka:budget=$quoka,chunk=$chunk"
    done
}

quality_cells() {
    local policy options d
    echo "statistics-$2 60 $pith calibrate queries -q -m $1 --device cpu -f $text -o $out/$2.stats"
    while read -r policy options; do
        for d in cpu "$device"; do
            echo "quality-$2-$policy-${d/:/-} 60 $pith eval perplexity -m $1 --device $d -f $text -c 512 --no-paired --json - ${options//STATS/$out/$2.stats}"
        done
    done <<<"$qualities"
}

# ---- the run ----

# The random model that a command reads, where it is not there yet.
need_model() {
    local which shape
    for which in big small; do
        case $* in
        *pith-$size-$which.gguf*)
            shape=$big
            [ $which = big ] || shape=$small
            local file=$scratch/pith-$size-$which.gguf
            # shellcheck disable=SC2086
            [ -e "$file" ] || { "$make_model" "$file.part" $shape type=Q4_K_M \
                vocab_file=models/pith-nano.gguf >/dev/null && mv "$file.part" "$file"; } || return
            ;;
        esac
    done
}

run_cell() {
    local cell=$1 limit=$2 left=$((deadline - SECONDS)) start=$SECONDS status
    shift 2
    if [ "$left" -lt 5 ]; then
        echo "$cell: left for the next call" >&2
        bad=1
        return
    fi
    need_model "$*" || { echo "$cell: no random model in $scratch" >&2 && bad=1 && return; }
    printf '%s\n' "$*" >"$out/$cell.cmd"
    timeout "$((limit < left ? limit : left))" "$@" >"$out/$cell.part" 2>"$out/$cell.err" </dev/null
    status=$?
    case $status in
    0) mv "$out/$cell.part" "$out/$cell.out" && touch "$out/$cell.ok" && echo "$cell: $((SECONDS - start)) s" >&2 ;;
    77) mv "$out/$cell.part" "$out/$cell.out" && echo "$cell: skipped: $(tail -n 1 "$out/$cell.err")" >&2 ;;
    124) bad=1 && echo "$cell: no time" >&2 ;;
    *) bad=1 && echo "$cell: FAILED, status $status: $(tail -n 1 "$out/$cell.err")" >&2 ;;
    esac
}

# ---- the page ----

# What awk's program $2 says of the rows of a cell; at[] has the names of columns. Names of policies
# stand in quotes and have commas.
rows() {
    local file=$out/$1.out program=$2
    shift 2
    [ -s "$file" ] || return 0
    sed 's/"[^"]*"//g' "$file" | awk -F, "$@" "NR == 1 { for (i = 1; i <= NF; i++) at[\$i] = i; next } $program"
}

have() {
    local cell
    for cell; do
        [ -s "$out/$cell.out" ] && return 0
    done
    return 1
}

# A title, and the marker that scripts/docs/tables.py wants above a table.
head_of() {
    printf '\n## %s\n\n' "$2"
    [ -z "${3:-}" ] || printf '%s\n\n' "$3"
    echo "<!-- tables/$name-$1.csv -->"
}

commands() {
    local cell
    echo
    for cell; do
        [ ! -s "$out/$cell.out" ] || printf '    %s\n' "$(sed "s#$scratch/##g; s#$out/##g; s#$bench/##g; s#^$pith#pith#; s#$here/##g" "$out/$cell.cmd")"
    done
}

# Of bench_tokens: the row of the full cache of cell $1, then those of the others.
tokens_rows() {
    local cell base
    base=$(rows "$1" '$1 == "full" { print $at["tokens_per_s"] }')
    for cell; do
        rows "$cell" '{
            part = 100 * $at["rounds_ms"] / ($at["step_ms"] + $at["rounds_ms"])
            budget = $at["budget"]
            goal = ""
            if ($1 ~ /^triattention:paper/) goal = budget == 1024 ? 6.3 : budget == 2048 ? 3.4 : budget == 3072 ? 2.5 : budget == 4096 ? 1.9 : ""
            if ($1 == "longflow") goal = 2.9
            printf "| %s | %s | %d | %.1f | %.2f | %.2f %% | %.0f | %.0f | %.0f %% | %s | %s |\n", $1, (budget > 0 ? budget : ""), $at["sequences"], $at["most_bytes"] / 2 ^ 20,
                $at["step_ms"], part, $at["tokens_per_s"], $at["roofline"], 100 * $at["tokens_per_s"] / $at["roofline"],
                (base > 0 ? sprintf("%.2f", $at["tokens_per_s"] / base) : ""), goal
        }' -v base="${base:-0}"
    done
}

tokens_head() {
    echo "| cache | budget | sequences that fit | MiB of one | ms of a step | rounds | tokens/s | bound | of bound | times the full cache | goal |"
    echo "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
}

page_budgets() {
    have budgets-full budgets-triattention || return
    head_of budgets "TriAttention: tokens per second over $output tokens" \
        "As many sequences as $kv of KV memory hold, f16 pages, a model of Qwen3-8B's shape. The bound is reading weights and entries."
    tokens_head
    tokens_rows budgets-full budgets-triattention budgets-rkv
    commands budgets-full budgets-triattention budgets-rkv
}

# LongFlow beside PyTorch's forms in the same experiment.
flow_beside() {
    local ours cell
    have flow && have torch-two torch-flow || return
    ours=$(rows flow '$1 == "longflow" { print $at["tokens_per_s"] }')
    printf '\nLongFlow here, over what PyTorch reaches with as many sequences as fit: '
    for cell in torch-flow torch-two; do
        rows $cell '{ if ($at["tokens_per_s"] > best[$1]) best[$1] = $at["tokens_per_s"] }
            END { for (what in best) if (what != "full" || cell == "torch-flow") printf "%s %.1f, ", what, ours / best[what] }' -v ours="$ours" -v cell=$cell
    done
    echo 'goal 11.8 over two passes.'
}

page_flow() {
    have flow flow-others || return
    head_of flow "LongFlow: $prompt : $flow_output : $flow_budget tokens in one KV memory" \
        "A model of Qwen3-1.7B's shape, $kv_small of KV memory."
    tokens_head
    tokens_rows flow flow-others
    flow_beside
    commands flow flow-others
}

# Milliseconds of a step of one sequence.
step_of() {
    rows "$1" '$1 == policy { printf "%.6f", $at["step_ms"] / $at["sequences"] }' -v policy="$2"
}

page_fused() {
    local short plain fused
    have fused-short && have fused || return
    short=$(step_of fused-short full) plain=$(step_of fused full) fused=$(step_of fused longflow)
    head_of fused "LongFlow: the choice of a victim beside plain attention" \
        "Milliseconds of a step, over the sequences. Attention is what a step takes more than behind 128 entries."
    echo "| entries | plain step | fused step | attention, plain | attention, fused | ratio | goal |"
    echo "|--:|--:|--:|--:|--:|--:|--:|"
    awk -v e="$flow_budget" -v s="${short:-0}" -v p="${plain:-0}" -v f="${fused:-0}" 'BEGIN {
        printf "| %d | %.4f | %.4f | %.4f | %.4f | %s | 1.05 |\n", e, p, f, p - s, f - s, (p > s ? sprintf("%.2f", (f - s) / (p - s)) : "") }'
    commands fused-short fused
}

# Seconds of prompts, per number of tokens and depth: n, depth, seconds, bound.
prompt_seconds() {
    rows "$1" '$at["test"] == "prompt" { print $at["n"], $at["depth"], $at["n"] / $at["tokens_per_s"], $at["n"] / $at["bound"] }'
}

page_attention() {
    have attention-full || return
    head_of attention "QuoKA: attention of a chunk behind $depth entries" \
        "Milliseconds that a chunk takes more than behind nothing, over all layers of a model of Qwen3-8B's shape. QuoKA reads $quoka entries."
    echo "| chunk | full | bound of full | QuoKA | times as fast | goal |"
    echo "|--:|--:|--:|--:|--:|--:|"
    { prompt_seconds attention-full | sed 's/^/full /'; for chunk in $chunks; do prompt_seconds "attention-quoka-$chunk" | sed 's/^/quoka /'; done; } | awk '
        { t[$1, $2, $3 > 0] = $4; bound[$1, $2, $3 > 0] = $5; if (!($2 in seen)) { seen[$2] = 1; order[++n] = $2 } }
        END {
            for (i = 1; i <= n; i++) {
                c = order[i]
                full = 1e3 * (t["full", c, 1] - t["full", c, 0]); read = 1e3 * (t["quoka", c, 1] - t["quoka", c, 0])
                there = ("quoka", c, 1) in t
                printf "| %d | %.2f | %.2f | %s | %s | 5 |\n", c, full, 1e3 * (bound["full", c, 1] - bound["full", c, 0]),
                    (there ? sprintf("%.2f", read) : ""), (read > 0 ? sprintf("%.2f", full / read) : "")
            }
        }'
    # shellcheck disable=SC2046
    commands attention-full $(printf "attention-quoka-%s " $chunks)
}

first_rows() {
    { prompt_seconds "$3" | sed 's/^/full /'; prompt_seconds "$4" | sed 's/^/quoka /'; } | awk -v model="$1" -v chunk="$2" '
        $1 == "full" { full[$2] = $4; bound[$2] = $5; order[++n] = $2 }
        $1 == "quoka" { read[$2] = $4 }
        END {
            for (i = 2; i <= n; i++) { # the first one warms up
                c = order[i]
                printf "| %s | %d | %d | %.3f | %.3f | %s | %s | %s |\n", model, chunk, c, full[c], bound[c],
                    (c in read ? sprintf("%.3f", read[c]) : ""), (c in read ? sprintf("%.2f", full[c] / read[c]) : ""), (c >= 50000 ? 3 : "")
            }
        }'
}

page_first() {
    local chunk
    have first-big-full first-small-full-128 || return
    head_of first "QuoKA: seconds to the first token" \
        "Random models of two shapes. QuoKA reads $quoka entries. The bound is that of reading everything."
    echo "| shape | chunk | prompt | full | bound of full | QuoKA | times as fast | goal |"
    echo "|---|--:|--:|--:|--:|--:|--:|--:|"
    first_rows Qwen3-8B 512 first-big-full first-big-quoka
    for chunk in $chunks; do
        first_rows Qwen3-1.7B "$chunk" "first-small-full-$chunk" "first-small-quoka-$chunk"
    done
    commands first-big-full first-big-quoka
}

memory_row() {
    rows "$2" 'NR > 2 { # the first one warms up
        printf "| %s | %d | %.1f | %.1f | %.0f %% | %.2f %% | %.3f | %s | %.3f | %s |\n", what, $at["n"], $at["n"] / $at["tokens_per_s"], $at["n"] / $at["bound"],
            100 * $at["tokens_per_s"] / $at["bound"], $at["rounds_pct"], $at["kv_peak_bytes"] / 2 ^ 30,
            (base > 0 ? sprintf("%.1f", base / $at["kv_peak_bytes"]) : ""), $at["device_used_bytes"] / 2 ^ 30, goal
    }' -v what="$1" -v base="${3:-0}" -v goal="$4"
}

page_memory() {
    local base
    have prompt-full prompt-v3 || return
    base=$(rows prompt-full 'NR > 2 { print $at["kv_peak_bytes"] }')
    head_of memory "TriAttention V3: memory and rounds of long prompts" \
        "A model of Qwen3-8B's shape. Memory in GiB. The bound is that of as many entries as stay."
    echo "| cache | prompt | seconds | bound | of bound | rounds | pages | times fewer | device in use | goal |"
    echo "|---|--:|--:|--:|--:|--:|--:|--:|--:|---|"
    memory_row "full, f16" prompt-full "$base" ""
    memory_row "V3 at 90 %, f16" prompt-v3 "$base" "rounds below 1 %"
    memory_row "V3 at 90 %, q8_0 and turbo3" prompt-stack "$base" "2.9 times fewer"
    memory_row "V3 at $keep_budget, f16" prompt-budget "$base" "10.7 times fewer, with 3,072 of 32,768"
    memory_row "V3 at 90 %, q8_0 and turbo3" long-stack "" "24 GB with 131,072"
    commands prompt-full prompt-v3 prompt-stack prompt-budget long-stack
}

page_repeat() {
    have repeat || return
    head_of repeat "MemShare: $answers answers in the memory of $room" \
        "A model of Qwen3-1.7B's shape; answers of $parts steps are given. Of answers whose affected ratio is a, 1 / (1 - a) times as many fit: the bound."
    echo "| steps that recur | tokens/s, no sharing | sharing | affected ratio | answers at a time, times as many | times as fast | bound | goal |"
    echo "|--:|--:|--:|--:|--:|--:|--:|--:|"
    rows repeat '$1 == "repeat" {
        split($2, part, " % recur: "); p = part[1]; v[p, part[2]] = $4; bound[p] = $6
        if (!(p in seen)) { seen[p] = 1; order[++n] = p }
    } END {
        for (i = 1; i <= n; i++) {
            p = order[i]
            printf "| %d %% | %.0f | %.0f | %.1f %% | %.2f | %.2f | %.2f | %s |\n", p, v[p, "no sharing"], v[p, "sharing"], v[p, "affected ratio"],
                v[p, "answers at a time"], v[p, "against no sharing"], bound[p], (p == 40 ? "1.85" : "")
        }
    }'
    commands repeat
}

page_quality() {
    local model policy options d value
    [ -n "$(ls "$out"/quality-*.out 2>/dev/null)" ] || return
    head_of quality "Perplexity with each policy, beside the processor's" \
        "Of $text, in chunks of 512 tokens. Choices may differ at near ties."
    echo "| model | policy | processor | GPU | difference |"
    echo "|---|---|--:|--:|--:|"
    for model in $(models); do
        model=$(basename "$model" .gguf)
        while read -r policy options; do
            value=$(for d in cpu "${device/:/-}"; do
                sed -n 's/^  "perplexity": \([0-9.e+]*\),$/\1/p' "$out/quality-$model-$policy-$d.out" 2>/dev/null
            done | awk '{ p[NR] = $1 } END { if (NR == 2) printf "%.4f | %.4f | %+.3f %%", p[1], p[2], 100 * (p[2] / p[1] - 1) }')
            [ -z "$value" ] || echo "| $model | ${options:-full} | $value |" | sed "s#,*stats=[^ ,]*##"
        done <<<"$qualities"
    done
}

page_torch() {
    local cell
    have torch-full torch-two torch-flow torch-prompt || return
    head_of torch "PyTorch on the same card" \
        "The same shapes in bf16 with random weights: scaled_dot_product_attention, a loop over tokens as in Hugging Face's generate. \`full\` has a preallocated cache, \`cat\` one that grows by concatenation. \`two\` evicts an entry a step by LongFlow's score, for which it reads keys and values again; \`once\` has the same score from one reading. \`rkv\` has R-KV's rounds."
    echo "| what | shape | sequences | entries or tokens | ms | tokens/s | bound | of bound |"
    echo "|---|---|--:|--:|--:|--:|--:|--:|"
    for cell in torch-full torch-two torch-flow torch-prompt; do
        rows $cell '{ printf "| %s | %s | %d | %d | %.2f | %.1f | %.1f | %.0f %% |\n", $at["what"], $at["shape"], $at["sequences"], $at["tokens"],
            $at["ms"], $at["tokens_per_s"], $at["bound"], 100 * $at["tokens_per_s"] / $at["bound"] }'
    done
    commands torch-full torch-two torch-flow torch-prompt
}

page() {
    echo "# The papers' tables on one card"
    echo
    "$pith" devices 2>/dev/null | sed 's/^/    /'
    if command -v nvidia-smi >/dev/null; then
        nvidia-smi --format=csv,noheader --query-gpu=name,driver_version,clocks.max.sm,clocks.max.mem,power.limit | sed 's/^/    /'
    fi
    echo
    echo "Commit $commit, device $device. \`scripts/gpu/tables.sh\` makes this page; lines below a table are its commands."
    echo "\`big\` is a model of Qwen3-8B's shape with random weights in Q4_K_M, \`small\` one of Qwen3-1.7B's."
    page_budgets
    page_flow
    page_fused
    page_attention
    page_first
    page_memory
    page_repeat
    page_quality
    page_torch
}

size=random
[ $trying = 0 ] || size=try
if [ "${1:-}" = --list ]; then
    out=OUT
    cells | cut -d ' ' -f 1 | awk '!seen[$0]++'
    exit 0
fi
out=${1:?usage: ./tables.sh [--try] OUT [CELL...]}
shift
mkdir -p "$out"
out=$(cd "$out" && pwd)
deadline=$((SECONDS + ${TIME:-1200}))
bad=0
while read -r cell limit line; do
    case " ${*:-$cell} " in
    *" $cell "*) ;;
    *) continue ;;
    esac
    # shellcheck disable=SC2086
    [ -e "$out/$cell.ok" ] || run_cell "$cell" "$limit" $line
done < <(cells)
page >"$out/$name.md" 2>"$out/page.err"
[ ! -s "$out/page.err" ] || { cat "$out/page.err" >&2 && bad=1; }
cat "$out/$name.md"
exit $bad
