#!/bin/sh
# What Pith is for, shown on a real model: ten facts in a long text, a question about each, and the
# answers under the full cache, under a budget, and under the budget with recall.
#   scripts/demo-real.sh [FOLDER_OF_MODELS]
# By environment: MODEL (a name of scripts/models.sh), LENGTH (tokens), SEED, KEEP, RECALL, THREADS,
# PITH. The text is Pith's own documentation. The statistics that the policy ranks by are made once,
# from other pages of it and from the source, and stand beside the model.
set -eu
cd "$(dirname "$0")/.."
folder=${1:-build-models}
MODEL=${MODEL:-coder-0.5b} LENGTH=${LENGTH:-4096} SEED=${SEED:-1} THREADS=${THREADS:-$(nproc)}
RECALL=${RECALL:-text} PITH=${PITH:-build/cli/pith}
file=$(scripts/models.sh "$folder" "$MODEL")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -z "${KEEP:-}" ]; then
    stats=$folder/$MODEL.stats
    if [ ! -e "$stats" ]; then
        echo "demo-real.sh: learning which entries matter, once, in a minute or two" >&2
        cat docs/eval.md docs/scheduler.md docs/batch.md >"$work/prose"
        cat src/policy/keep/*/*.c >"$work/code"
        "$PITH" calibrate importance -m "$file" -f "$work/prose" -f "$work/code" --pieces 4 -c 400 \
            -t "$THREADS" -o "$stats"
    fi
    KEEP=kvzap:stats=$stats,budget=25%
fi
cat docs/policies.md docs/read.md docs/recall.md docs/share.md docs/store.md >"$work/text"

measure() { # measure NAME OPTIONS ..
    name=$1
    shift
    echo "demo-real.sh: reading $LENGTH tokens and asking ten questions: $name" >&2
    "$PITH" eval facts -m "$file" -f "$work/text" -n "$LENGTH" --texts 1 --seed "$SEED" --chat \
        --text --no-paired -t "$THREADS" "$@" --json "$work/$name.json" >/dev/null
}

measure full
measure keep --keep "$KEEP"
measure recall --keep "$KEEP" --recall "$RECALL"
python3 - "$work" "$KEEP" "$RECALL" <<'TABLE'
import json, re, sys
work, keep, recall = sys.argv[1:]
results = {name: json.load(open(f"{work}/{name}.json")) for name in ("full", "keep", "recall")}
rows = {name: result["rows"] for name, result in results.items()}
short = re.sub(r"stats=[^,]*,?", "", keep).rstrip(",")


def table(lines, right):
    width = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    for line in lines:
        print("  ".join(part.rjust(width[i]) if i in right else part.ljust(width[i])
                        for i, part in enumerate(line)).rstrip())


def mark(row):
    said = " ".join(row["said"].split())
    return ("+ " if row["found"] else "- ") + (said if len(said) <= 28 else said[:25] + "...")


print(f"{results['full']['model']} reads {rows['full'][0]['tokens']} tokens once under each cache "
      f"and is asked for ten facts in them\n(+: the answer holds the fact, -: it does not):\n")
table([("at", "fact", "full cache", "budget", "budget and recall")] +
      [(f"{100 * a['at']:.0f} %", a["fact"], mark(a), mark(b), mark(c))
       for a, b, c in zip(rows["full"], rows["keep"], rows["recall"])], (0,))
print()
lines = [("cache", "found", "KV memory", "most on the way", "reading", "answering")]
for name, label in (("full", "full"), ("keep", short), ("recall", f"{short}, recall {recall}")):
    s = results[name]["summary"]
    lines.append((label, f"{sum(r['found'] for r in rows[name])} of 10",
                  f"{s['kv_held_bytes'] / 2**20:.1f} MiB", f"{s['kv_peak_bytes'] / 2**20:.1f} MiB",
                  f"{rows[name][0]['tokens'] / s['read_seconds']:.0f} tok/s",
                  f"{s['tokens_per_s']:.0f} tok/s"))
table(lines, (1, 2, 3, 4, 5))
TABLE
