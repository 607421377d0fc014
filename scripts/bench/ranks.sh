#!/bin/bash
# Measures one model over two ranks in two network namespaces of this machine, whose net has a rate
# and a delay: what docs/distributed.md says of gathers. Needs root, iproute2 and Open MPI.
#   scripts/bench/ranks.sh PITH MODEL [RATE DELAY]...
# PITH is a command with MPI (-DPITH_MPI=ON). RATE and DELAY are tc netem's, for a packet one way; a
# kernel without netem can measure "- -", the net as it is.
set -euo pipefail
if [ $# -lt 2 ]; then
    echo "usage: scripts/bench/ranks.sh PITH MODEL [RATE DELAY]..." >&2
    exit 2
fi
pith=$(realpath "$1") model=$(realpath "$2")
shift 2
[ $# -gt 0 ] || set -- - - 1gbit 35us 10gbit 15us 100gbit 3us
agent=$(mktemp) report=$(mktemp)
end() {
    ip netns del pith0 2>/dev/null || true
    ip netns del pith1 2>/dev/null || true
    rm -f "$agent" "$report"
}
trap end EXIT
end

# Instead of ssh: a command in the other machine's namespace.
cat >"$agent" <<'END'
#!/bin/bash
while [ "${1#-}" != "$1" ]; do shift; done
shift
exec ip netns exec pith1 sh -c "$*"
END
chmod +x "$agent"
ip netns add pith0
ip netns add pith1
ip -n pith0 link add net type veth peer name net netns pith1
for i in 0 1; do
    ip -n pith$i addr add 10.77.0.$((i + 1))/24 dev net
    ip -n pith$i link set net up
    ip -n pith$i link set lo up
done

run=(run -m "$model" -p "Write a function that sorts a list." -n 32 --ignore-eos --temp 0 -t 1)
speed() { # speed NAME
    awk -v name="$1" '
        $1 == "prompt" { prompt = $2 } $1 == "generate" { s = $2; n = $4 }
        $1 == "ranks" { sent = $8 " " $9; gathers = $11; wait = $15 }
        END { printf "%-22s %8.1f tokens/s", name, n / s
              if (gathers > 0)
                  printf "  %5.1f %% of the time in %d gathers, %s sent", 100 * wait / (s + prompt),
                         gathers, sent
              printf "\n" }' "$report"
}

"$pith" "${run[@]}" >/dev/null 2>"$report"
speed "one rank, one thread"
while [ $# -ge 2 ]; do
    for i in 0 1; do
        [ "$1" = - ] && continue
        ip netns exec pith$i tc qdisc replace dev net root netem rate "$1" delay "$2"
    done
    ip netns exec pith0 mpirun --allow-run-as-root --mca plm_rsh_agent "$agent" \
        --bind-to none --mca btl tcp,self --mca btl_tcp_if_include 10.77.0.0/24 \
        --mca oob_tcp_if_include 10.77.0.0/24 --mca btl_tcp_links 1 \
        -np 2 -host 10.77.0.1,10.77.0.2 "$pith" "${run[@]}" >/dev/null 2>"$report" ||
        { cat "$report" >&2; exit 1; }
    speed "two ranks, $1 $2"
    shift 2
done
