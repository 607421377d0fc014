#!/bin/bash
# Measures one model over two ranks in two network namespaces of this machine: what
# docs/distributed.md says of nets. Needs root, iproute2 and Open MPI.
#   scripts/bench/ranks.sh PITH MODEL [RATE DELAY]...
# PITH is a command with MPI (-DPITH_MPI=ON). A net has a RATE as tc names it, and a DELAY one way
# in microseconds (35us), or "-" for none, which takes tbf in place of netem. "- -" is the net as it
# is. A kernel without netem has no delays: then ranks are in one namespace and wait as mpi_net.c
# says, the rate is in gbit, and no peer is beside. By environment:
#   LENGTHS="512 32"    tokens of the prompt, and generated
#   ROUNDS=3            of which the median counts; all ways take turns in a round
#   LLAMA=FOLDER        with llama-bench and ggml-rpc-server of llama.cpp (-DGGML_RPC=ON): beside
#   DLLAMA=FOLDER       with dllama of distributed-llama: beside, for a model of dllama_file.py
# Each line has a net, a way, tokens/s of the prompt and of generation, and the bytes that the net
# carried in all of a run, the start included.
set -euo pipefail
if [ $# -lt 2 ]; then
    echo "usage: scripts/bench/ranks.sh PITH MODEL [RATE DELAY]..." >&2
    exit 2
fi
pith=$(realpath "$1") model=$(realpath "$2")
shift 2
[ $# -gt 0 ] || set -- - - 1gbit - 1gbit 35us 10gbit 15us
read -r n_prompt n_gen <<<"${LENGTHS:-512 32}"
ROUNDS=${ROUNDS:-3} LLAMA=${LLAMA:-} DLLAMA=${DLLAMA:-}
work=$(mktemp -d)
other=
export host=pith$$- # its two namespaces, which another run does not take
# What a peer runs on the other machine.
stop_other() {
    [ -z "$other" ] || { kill "$other" && wait "$other"; } 2>/dev/null || true
    other=
}
end() {
    stop_other
    ip netns del "$host"0 2>/dev/null || true
    ip netns del "$host"1 2>/dev/null || true
    rm -rf "$work"
}
trap end EXIT

# Instead of ssh: a command in the other machine's namespace.
cat >"$work/agent" <<'END'
#!/bin/bash
while [ "${1#-}" != "$1" ]; do shift; done
shift
exec ip netns exec "$host"1 sh -c "$*"
END
chmod +x "$work/agent"
ip netns add "$host"0
ip netns add "$host"1
ip -n "$host"0 link add net type veth peer name net netns "$host"1
for i in 0 1; do
    ip -n "$host"$i addr add 10.77.0.$((i + 1))/24 dev net
    ip -n "$host"$i link set net up
    ip -n "$host"$i link set lo up
done

set_net() { # RATE DELAY
    local i
    for i in 0 1; do
        ip netns exec "$host"$i tc qdisc del dev net root 2>/dev/null || true
        case $1:$2 in
        -:*) ;;
        *:-) ip netns exec "$host"$i tc qdisc add dev net root tbf rate "$1" burst 256kb latency 50ms ;;
        *) ip netns exec "$host"$i tc qdisc add dev net root netem rate "$1" delay "$2" ;;
        esac
    done
}
delays=1
ip netns exec "$host"0 tc qdisc add dev net root netem delay 1ms 2>/dev/null || delays=0
[ $delays = 1 ] || mpicc -O2 -shared -fPIC -o "$work/mpi_net.so" "$(dirname "$0")/mpi_net.c"

carried() { # bytes in both directions so far
    ip -n "$host"0 -s -j link show net |
        python3 -c 'import json,sys; s=json.load(sys.stdin)[0]["stats64"]; print(s["rx"]["bytes"]+s["tx"]["bytes"])'
}

pith_options=(bench -m "$model" -p "$n_prompt" -n "$n_gen" -r 1 --no-warm-up -o csv)

# One process of one thread, as a rank has one, and two ranks.
one() { ip netns exec "$host"0 "$pith" "${pith_options[@]}" -t 1; }
ranks() {
    ip netns exec "$host"0 mpirun --allow-run-as-root --mca plm_rsh_agent "$work/agent" \
        --bind-to none --mca btl tcp,self --mca btl_tcp_if_include 10.77.0.0/24 \
        --mca oob_tcp_if_include 10.77.0.0/24 --mca btl_tcp_links 1 \
        -np 2 -host 10.77.0.1,10.77.0.2 "$pith" "${pith_options[@]}" -t 1 --chunk 128 --split "$1"
}
waiting_ranks() { # RATE DELAY WAY
    ip netns exec "$host"0 mpirun --allow-run-as-root --bind-to core --mca btl vader,self -np 2 \
        -x LD_PRELOAD="$work/mpi_net.so" -x PITH_NET_GBIT="${1%gbit}" -x PITH_NET_US="${2%us}" \
        "$pith" "${pith_options[@]}" -t 1 --chunk 128 --split "$3"
}
llama() { # with more options
    ip netns exec "$host"0 env LD_LIBRARY_PATH="$LLAMA" "$LLAMA/llama-bench" -m "$model" -p "$n_prompt" \
        -n "$n_gen" -r 1 -t 1 --no-warmup -o csv "$@"
}
# Half of the layers on the other machine.
llama_rpc() {
    local half
    half=$("$pith" info --json "$model" | python3 -c 'import json,sys; print(json.load(sys.stdin)["n_layer"]//2)')
    ip netns exec "$host"1 env LD_LIBRARY_PATH="$LLAMA" "$LLAMA/ggml-rpc-server" -H 10.77.0.2 -t 1 \
        >/dev/null 2>&1 &
    other=$!
    sleep 1
    llama -rpc 10.77.0.2:50052 -ngl "$half"
    stop_other
}

# It feeds a prompt's tokens but the last one. Its text is kept as NAME, to be compared.
dllama() { # NAME, with more options
    local name=$1
    shift
    ip netns exec "$host"0 "$DLLAMA/dllama" inference --model "$work/m" --tokenizer "$work/t" \
        --buffer-float-type q80 --nthreads 1 --max-seq-len $((n_prompt + n_gen)) \
        --prompt "$(printf '%*s' $((n_prompt + 1)) '' | tr ' ' a)" --temperature 0 \
        --steps $((n_prompt + n_gen)) "$@" >"$work/said" || { cat "$work/said" >&2; return 1; }
    sed -n 's/.*Pred.* | //p' "$work/said" >"$work/$name"
    echo "test,tokens_per_s"
    awk '/^Evaluation/ {test = "prompt"} /^Prediction/ {test = "generate"}
        $1 == "tokens/s:" {print test "," $2}' "$work/said"
}
dllama_two() {
    ip netns exec "$host"1 "$DLLAMA/dllama" worker --host 10.77.0.2 --port 9990 --nthreads 1 \
        >/dev/null 2>&1 &
    other=$!
    sleep 1
    dllama two --workers 10.77.0.2:9990
    stop_other
}

measure() { # NET WAY COMMAND ..
    local net=$1 way=$2 before
    shift 2
    before=$(carried)
    echo "ranks.sh: $net, $way" >&2
    "$@" >"$work/out" 2>"$work/err" || { cat "$work/err" >&2; exit 1; }
    python3 - "$net" "$way" $(($(carried) - before)) "$work/out" "$work/all" <<'END'
import csv, sys
net, way, size, out, total = sys.argv[1:]
prompt = generate = 0.0
with open(out, newline="") as f:
    for row in csv.DictReader(line.replace("\r", "") for line in f):
        if "tokens_per_s" in row:
            speed, is_prompt = float(row["tokens_per_s"]), row["test"] == "prompt"
        else:
            speed, is_prompt = float(row["avg_ts"]), int(row["n_prompt"]) > 0
        if is_prompt:
            prompt = speed
        else:
            generate = speed
with open(total, "a") as f:
    f.write(f"{net}|{way}|{prompt}|{generate}|{size}\n")
END
}

[ -z "$DLLAMA" ] || python3 -B "$(dirname "$0")/dllama_file.py" "$model" "$work/m" "$work/t"
set_net - -
for ((i = 0; i < ROUNDS; i++)); do
    measure "-" "one process" one
    [ -z "$LLAMA" ] || measure "-" "llama.cpp" llama
    [ -z "$DLLAMA" ] || measure "-" "dllama" dllama one
    nets=("$@")
    while [ ${#nets[@]} -ge 2 ]; do
        net="${nets[0]} ${nets[1]}"
        if [ $delays = 0 ] && [ "${nets[1]}" != - ]; then
            for way in rows layers; do
                measure "$net" $way waiting_ranks "${nets[@]:0:2}" $way
            done
            nets=("${nets[@]:2}")
            continue
        fi
        set_net "${nets[0]}" "${nets[1]}"
        measure "$net" rows ranks rows
        measure "$net" layers ranks layers
        [ -z "$LLAMA" ] || measure "$net" "llama.cpp RPC" llama_rpc
        [ -z "$DLLAMA" ] || measure "$net" "dllama two" dllama_two
        nets=("${nets[@]:2}")
    done
    set_net - -
done
python3 - "$work/all" <<'END'
import statistics, sys
cells = {}
with open(sys.argv[1]) as f:
    for line in f:
        net, way, *numbers = line.strip().split("|")
        cells.setdefault((net, way), []).append([float(x) for x in numbers])
print(f"{'net':16} {'way':16} {'prompt':>9} {'generate':>9} {'MB':>9}")
for (net, way), rows in cells.items():
    prompt, generate, size = (statistics.median(c) for c in zip(*rows))
    print(f"{net:16} {way:16} {prompt:9.1f} {generate:9.1f} {size / 1e6:9.1f}")
END
if [ -n "$DLLAMA" ]; then
    cmp -s "$work/one" "$work/two" && echo "dllama: one and two nodes have the same text" ||
        echo "dllama: one and two nodes have different texts"
fi
