#!/usr/bin/env bash
# Checks and measures Pith on a GPU, in the folder that scripts/gpu/check.sh makes. It needs bash,
# awk and NVIDIA's driver, no compiler.
#   ./run.sh OUT [PART...]      OUT: a folder for results; without a PART all of them, in this
#     order: card        the card, its driver, the commit
#     tests       the test programs, on the GPU
#     greedy      the likeliest token at each position: the processor's, but for near ties
#     perplexity  of a text, within 0.1 % of the processor's
#     serve       eight clients of a server at once: each gets the answer that it gets alone
#     sanitizer   compute-sanitizer's memcheck and racecheck, where it is there
#     products    matrices of Qwen3-8B beside their bounds
#     attention   lanes, prompts and the best tokens of rows beside their bounds
#     step        tokens of such a model in one launch each: the kernels' bits, and times
#     bench       a model of Qwen3-8B's shape with random weights: depths, prompts, sequences, types
#     rounds      the same model behind 32,768 entries and 4,096: what keep policies add to tokens'
#     time report      nothing more
#   After each call OUT/report.md has what there is so far. A part that has ended is not run again:
#   delete OUT/PART.done for that. A test or a row that has ended is not either.
# Variables: DEVICE (cuda:0); LIMIT, seconds of a part; MODELS, a folder of more *.gguf files;
# SCRATCH (/tmp), for 5 GB; SHAPE, as make_model takes it; NAME, the card's in names of tables
# (card).
set -u
cd "$(dirname "$0")"
out=${1:?usage: ./run.sh OUT [PART...]}
shift
mkdir -p "$out"
out=$(cd "$out" && pwd)
device=${DEVICE:-cuda:0}
name_of_device=${device/:/-}
scratch=${SCRATCH:-/tmp}
shape=${SHAPE:-arch=qwen3 layers=36 width=4096 heads=32 kv_heads=8 head_dim=128 ff=12288 pad=151936 ctx=131072}
text=models/demo/prompt-2k.txt
export PITH_MODELS=${MODELS:-$PWD/models}
trap 'kill $(jobs -p) 2>/dev/null' EXIT

# ---- what parts use ----

say() {
    printf '%s\n' "$*" | tee -a "$out/$part.txt"
}

# A line that begins with ok, or with what is wrong.
verdict() {
    say "$@"
    [ "${1%% *}" = ok ] || failed=1
}

# The command, within the seconds that the part still has.
within() {
    local n=$((end - SECONDS))
    timeout "$((n > 1 ? n : 1))" "$@"
}

models() {
    ls models/*.gguf ${MODELS:+"$MODELS"/*.gguf} 2>/dev/null | grep -v pith-hybrid | sort -u
}

# ---- the parts ----

card() {
    say "commit $(cat COMMIT)"
    say "$(./bin/pith devices | grep -A 1 "$device" || echo "$device: no such device")"
    if command -v nvidia-smi >/dev/null; then
        say "$(nvidia-smi --format=csv,noheader \
            --query-gpu=name,driver_version,clocks.max.sm,clocks.max.mem,power.limit)"
    fi
    say "$(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1), $(nproc) processors"
}

tests() {
    local test log status
    for test in $(ls test/test_* | grep -v 'families\|combinations') test/test_families \
        test/test_combinations; do # the longest at last
        log=$out/${test##*/}.log
        [ ! -e "$log.ok" ] || continue
        PITH_TEST_DEVICE=$device within "$test" >"$log" 2>&1
        status=$?
        case $status in
        0) verdict "ok $test" && touch "$log.ok" ;;
        77) say "skip $test" ;;
        124) verdict "no time for $test" ;;
        *) verdict "FAILED $test, status $status: $(grep -m 1 -E 'FAILED|ERROR' "$log")" ;;
        esac
    done
}

# Positions whose likeliest token differs. There the logits of the processor's two likeliest must
# differ by less than 0.1.
greedy() {
    local model name d
    for model in $(models); do
        name=$(basename "$model" .gguf)
        head -c 2000 $text >"$out/text.txt"
        ./bin/pith tokenize -m "$model" -f "$out/text.txt" 2>/dev/null |
            awk '{ printf("%s%s", NR > 1 ? "," : "", $1) }' >"$out/ids.txt"
        for d in cpu "$device"; do
            within ./bin/pith logits -m "$model" --device "$d" --ids "@$out/ids.txt" --top 2 \
                >"$out/$name.${d/:/-}.top" 2>"$out/$name.err"
        done
        verdict "$(awk -F'[\t:]' -v name="$name" '
            NR == FNR { best[$1] = $3; gap[$1] = $4 - $6; next }
            { n++; if ($3 != best[$1]) { other++; worst = gap[$1] > worst ? gap[$1] : worst } }
            END {
                printf("%s %s: %d positions, %d of them another token, at gaps up to %.4f\n",
                    n > 0 && worst < 0.1 ? "ok" : "FAILED", name, n, other, worst)
            }' "$out/$name.cpu.top" "$out/$name.$name_of_device.top")"
    done
}

perplexity() {
    local model name d
    for model in $(models); do
        name=$(basename "$model" .gguf)
        for d in cpu "$device"; do
            within ./bin/pith eval perplexity -m "$model" --device "$d" -f $text -c 512 --json - \
                >"$out/$name.${d/:/-}.json" 2>"$out/$name.err"
        done
        verdict "$(sed -n 's/^  "perplexity": \([0-9.e+]*\),$/\1/p' "$out/$name.cpu.json" \
            "$out/$name.$name_of_device.json" | awk -v name="$name" '
            { p[NR] = $1 }
            END {
                off = NR == 2 ? 100 * (p[2] / p[1] - 1) : 100
                printf("%s %s: %.6f on the processor, %.6f on the GPU, %+.4f %%\n",
                    off < 0.1 && off > -0.1 ? "ok" : "FAILED", name, p[1], p[2], off)
            }')"
    done
}

# One request over a connection of bash; prints the text of the answer.
ask() {
    local body="{\"prompt\":\"$2\",\"max_tokens\":48,\"temperature\":$3,\"seed\":7,\"ignore_eos\":true}"
    exec 3<>"/dev/tcp/127.0.0.1/$1" || return
    printf 'POST /v1/completions HTTP/1.1\r\nHost: pith\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s' \
        ${#body} "$body" >&3
    sed -n 's/.*"text":"\(.*\)","logprobs.*/\1/p' <&3
}

serve() {
    local model name port i n temp
    local -a prompts=("Once upon a time" "The river was" "At the edge of the town" "She opened the door and" \
        "In the year of the flood" "There are four reasons" "The old church" "My brother said that")
    for model in $(models); do
        name=$(basename "$model" .gguf)
        ./bin/pith serve -m "$model" --device "$device" --port 0 >"$out/serve.log" 2>&1 &
        local server=$!
        for i in $(seq 300); do
            port=$(sed -n 's#.*http://127.0.0.1:##p' "$out/serve.log")
            [ -z "$port" ] && kill -0 "$server" 2>/dev/null || break
            sleep 0.1
        done
        if [ -z "$port" ]; then
            verdict "FAILED $name: no server: $(tail -n 1 "$out/serve.log")"
            continue
        fi
        n=0
        for temp in 0 0.9; do
            for i in "${!prompts[@]}"; do
                ask "$port" "${prompts[i]}" $temp >"$out/alone.$i"
            done
            local -a clients=()
            for i in "${!prompts[@]}"; do
                ask "$port" "${prompts[i]}" $temp >"$out/together.$i" &
                clients+=($!)
            done
            wait "${clients[@]}"
            for i in "${!prompts[@]}"; do
                [ -s "$out/alone.$i" ] && cmp -s "$out/alone.$i" "$out/together.$i" && n=$((n + 1))
            done
        done
        kill "$server"
        wait "$server"
        verdict "$([ $n = 16 ] && echo ok || echo FAILED) $name: $n of 16 answers of eight clients are those alone"
        rm -f "$out"/alone.* "$out"/together.*
    done
}

# Test by test, since each launch takes many times as long.
sanitizer() {
    local tool program test log
    PATH=$PATH:/usr/local/cuda/bin
    if ! command -v compute-sanitizer >/dev/null; then
        say "skip: compute-sanitizer is not there"
        return
    fi
    for program in test_gpu_sample test_gpu test_gpu_attend test_gpu_wgmma test_gpu_keep test_gpu_note \
        test_gpu_read test_gpu_choices test_gpu_recall test_gpu_victim test_gpu_swap test_gpu_step; do
        for test in $("test/$program" --list | sed "s/.* //"); do
            for tool in memcheck racecheck; do
                log=$out/$tool-$program-$test.log
                [ ! -e "$log.ok" ] || continue
                PITH_TEST_DEVICE=$device within compute-sanitizer --tool $tool --error-exitcode 9 \
                    "test/$program" "$test" >"$log" 2>&1
                case $? in
                0) touch "$log.ok" ;;
                77) ;;
                124) verdict "no time for $tool on $program, $test" ;;
                *) verdict "FAILED $tool on $program, $test: $(grep -m 1 -E 'Error|Race|ERROR' "$log")" ;;
                esac
            done
        done
        say "ok $program: $(find "$out" -name "*-$program-*.ok" | wc -l) runs without a word of the sanitizer"
    done
}

products() {
    within test/bench_gpu --device "$device" --what products >"$out/products.csv" 2>"$out/products.err" ||
        verdict "no end: $(tail -n 1 "$out/products.err")"
}

attention() {
    within test/bench_gpu --device "$device" --what sampling,attention >"$out/attention.csv" 2>"$out/attention.err" ||
        verdict "FAILED attention: $(tail -n 1 "$out/attention.err")"
}

# A model of Qwen3-8B's shape with random weights, and how it is made.
random_model() {
    model=$scratch/pith-random.gguf
    if [ ! -e "$model" ]; then
        # shellcheck disable=SC2086
        within test/make_model "$model.part" $shape type=Q4_K_M vocab_file=models/pith-nano.gguf >/dev/null &&
            mv "$model.part" "$model" || verdict "FAILED: no random model in $scratch"
    fi
}

# Fails where a bit differs. The library offers the launch to nobody; bench_gpu asks for it.
step() {
    local model
    random_model
    if within test/bench_gpu --device "$device" --what step --model "$model" --depths 64,8192,32768 \
        >"$out/step.csv" 2>"$out/step.err"; then
        verdict "ok tokens in one launch have the bits of kernels one by one"
    else
        verdict "FAILED step: $(tail -n 1 "$out/step.err")"
    fi
}

# Tokens behind 32,768 entries with a round in them, and what they note, beside the full cache.
rounds() {
    local model case policy depth name
    random_model
    # POLICY@ENTRIES, 32,768 where there is no number. Those that overwrite choose at each token.
    for case in none knorm knorm:granularity=head keydiff vnorm streaming snapkv adakv pyramidkv \
        h2o:overwrite=off vatp:overwrite=off tova:overwrite=off h2o vatp tova longflow expected \
        none@4096 rkv@4096 snapkv@4096 h2o@4096 vatp@4096 tova@4096 longflow@4096 rkv; do
        name=$(printf %s "$case" | tr ':=' '--')
        [ ! -s "$out/rounds-$name.csv" ] || continue
        policy=${case%@*}
        depth=32768
        [ "$policy" = "$case" ] || depth=${case#*@}
        case $policy in
        none) set -- ;;
        *:*) set -- --keep "$policy,budget=$depth,slack=128" ;;
        *) set -- --keep "$policy:budget=$depth,slack=128" ;;
        esac
        if within ./bin/pith bench -m "$model" -r 1 -o csv --device "$device" -p 0 -n 160 -d "$depth" "$@" \
            >"$out/rounds-$name.part" 2>"$out/rounds-$name.err"; then
            mv "$out/rounds-$name.part" "$out/rounds-$name.csv"
        else
            verdict "no row of $policy: $(tail -n 1 "$out/rounds-$name.err")"
        fi
    done
}

# One call of `pith bench` a row, since a call prints when it has ended.
bench() {
    local model line file
    random_model
    while read -r file line; do
        [ ! -s "$out/bench-$file.csv" ] || continue
        # shellcheck disable=SC2086
        if within ./bin/pith bench -m "$model" -r 2 -o csv $line >"$out/bench-$file.part" 2>"$out/bench-$file.err"; then
            mv "$out/bench-$file.part" "$out/bench-$file.csv"
        else
            verdict "no row of: pith bench $line: $(tail -n 1 "$out/bench-$file.err")"
        fi
    done <<END
0 --device $device -p 512,2048 -n 64 -d 0 -np 1,8,64
8k --device $device -p 512,2048 -n 32 -d 8192
32k --device $device -p 512,2048 -n 32 -d 32768
cpu --device cpu -p 512 -n 16 -d 0 -np 1,8
q8 --device $device -p 2048 -n 32 -d 8192 -ctk q8_0 -ctv q8_0
turbo3 --device $device -p 2048 -n 32 -d 8192 -ctk q8_0 -ctv turbo3
q8-32k --device $device -p 2048 -n 32 -d 32768 -ctk q8_0 -ctv q8_0
quoka-512-32k --device $device -p 512,2048 -n 32 -d 32768 --read quoka:chunk=512,gate=1
quoka-128-32k --device $device -p 128 -n 0 -d 32768 --read quoka:chunk=128
quest-32k --device $device -p 0 -n 32 -d 32768 --read quest
sparq-32k --device $device -p 0 -n 32 -d 32768 --read sparq
tidaldecode-32k --device $device -p 0 -n 32 -d 32768 --read tidaldecode
sampleattention-32k --device $device -p 512 -n 0 -d 32768 --read sampleattention:weigh=logits
sampleattention-soft-32k --device $device -p 512 -n 0 -d 32768 --read sampleattention
snapkv-32k --device $device -p 512 -n 0 -d 32768 --read snapkv
lessismore-32k --device $device -p 0 -n 32 -d 32768 --read lessismore
sparq-soft-32k --device $device -p 0 -n 32 -d 32768 --read sparq:rank=softmax
tidaldecode-soft-32k --device $device -p 0 -n 32 -d 32768 --read tidaldecode:rank=softmax
lessismore-soft-32k --device $device -p 0 -n 32 -d 32768 --read lessismore:rank=softmax
keep-8k --device $device -p 512 -n 32 -d 32768 --kv-memory 12GiB --keep streaming:budget=8192
recall-8k --device $device -p 512 -n 32 -d 32768 --kv-memory 12GiB --keep streaming:budget=8192 --recall kv
recall-pinned-8k --device $device -p 512 -n 32 -d 32768 --keep streaming:budget=8192 --recall kv:ram=3GiB
turbo3-32k --device $device -p 2048 -n 32 -d 32768 -ctk q8_0 -ctv turbo3
pages16-8k --device $device -p 2048 -n 32 -d 8192 --page 16
q4-8k --device $device -p 2048 -n 32 -d 8192 -ctk q4_0 -ctv q4_0
turbo4-32k --device $device -p 2048 -n 32 -d 32768 -ctk q8_0 -ctv turbo4
END
}

# ---- the report ----

rows_of_bench() {
    echo "<!-- tables/${NAME:-card}-bench.csv -->"
    echo "| device | K | V | test | tokens | depth | sequences | tokens/s | +- | bound | of bound |"
    echo "|---|---|---|---|--:|--:|--:|--:|--:|--:|--:|"
    # Names of policies stand in quotes and have commas.
    cat "$out"/bench-*.csv | sed 's/"[^"]*"//g' | awk -F, '
        $1 == "type" { for (i = 1; i <= NF; i++) at[$i] = i; next }
        {
            printf "| %s | %s | %s | %s | %d | %d | %d | %.1f | %.1f | %.1f | %.0f %% |\n", $at["device"],
                $at["type_k"], $at["type_v"], $at["test"], $at["n"], $at["depth"], $at["sequences"],
                $at["tokens_per_s"], $at["deviation"], $at["bound"], 100 * $at["tokens_per_s"] / $at["bound"]
        }'
}

# Time of tokens beyond the full cache's.
rows_of_rounds() {
    local file name
    echo "<!-- tables/${NAME:-card}-rounds.csv -->"
    echo "| policy | tokens/s | longer than the full cache |"
    echo "|---|--:|--:|"
    for file in "$out"/rounds-none.csv $(ls "$out"/rounds-*.csv | grep -v -- -none.csv); do
        name=${file##*/rounds-}
        sed 's/"[^"]*"//g' "$file" | awk -F, -v name="${name%.csv}" '
            $1 == "type" { for (i = 1; i <= NF; i++) at[$i] = i; next }
            $at["n"] > 0 { print name, $at["tokens_per_s"] }'
    done | awk '
        { depth = $1 ~ /@/ ? $1 : ""; sub(/.*@/, "", depth) }
        $1 ~ /^none/ { full[depth] = $2 }
        { printf "| %s | %.1f | %.1f %% |\n", $1, $2, 100 * (full[depth] / $2 - 1) }'
}

rows_of_parts() {
    echo "<!-- tables/${NAME:-card}-$(basename "$1") -->"
    echo "| type | rows x columns, or sequences x entries | tokens | us | GB/s | TFLOP/s | bound us | of bound |"
    echo "|---|---|--:|--:|--:|--:|--:|--:|"
    awk -F, -v OFS=' | ' '$1 == "products" || $1 == "attention" || $1 == "sampling" || $1 == "step" {
        print "| " $2, $3, $4, $5, $6, $7, $8, $9 " % |" }' "$1"
    awk -F, '$1 == "device" { printf "\nThe bounds: reading %s GB/s (measured), f16 %s TFLOP/s (of the driver).\n",
        $6, $7 }' "$1"
}

print_report() {
    local p
    echo "# Pith on a GPU"
    for p in card tests greedy perplexity serve sanitizer step; do
        [ -s "$out/$p.txt" ] && printf '\n## %s\n\n' "$p" && sed 's/^/    /' "$out/$p.txt"
    done
    for p in products attention step; do
        [ -s "$out/$p.csv" ] && printf '\n## %s\n\n' "$p" && rows_of_parts "$out/$p.csv"
    done
    ls "$out"/bench-*.csv >/dev/null 2>&1 && printf '\n## bench\n\n' && rows_of_bench
    [ -s "$out/rounds-none.csv" ] && printf '\n## rounds\n\n' && rows_of_rounds
}

# Every call ends with it.
report() {
    :
}

# ---- the run ----

limit_of() {
    case $1 in
    tests | sanitizer | bench | rounds) echo 600 ;;
    *) echo 200 ;;
    esac
}

parts="card tests greedy perplexity serve sanitizer products attention step bench rounds"
# shellcheck disable=SC2086
[ $# -gt 0 ] || set -- $parts
bad=0
for part; do
    [ ! -e "$out/$part.done" ] || continue
    case " $parts report " in
    *" $part "*) ;;
    *)
        echo "run.sh: there is no part $part" >&2
        exit 2
        ;;
    esac
    : >"$out/$part.txt"
    failed=0
    end=$((SECONDS + ${LIMIT:-$(limit_of "$part")}))
    "$part"
    if [ $failed = 1 ]; then
        bad=1
    elif [ "$part" != report ]; then
        touch "$out/$part.done"
    fi
done
print_report >"$out/report.md"
cat "$out/report.md"
exit $bad
