#!/bin/sh
# What Pith is for, shown on a real model: a fact in a long text, a question about it, and the answer
# under the full cache, under a budget, and under the budget with recall.
#   scripts/demo-real.sh [FOLDER_OF_MODELS]
# By environment: MODEL (a name of scripts/models.sh), LENGTH (tokens), DEPTH (percent), KEEP, RECALL,
# THREADS, PITH. The text is Pith's own documentation.
set -eu
cd "$(dirname "$0")/.."
folder=${1:-build-models}
MODEL=${MODEL:-coder-0.5b} LENGTH=${LENGTH:-4096} DEPTH=${DEPTH:-50} THREADS=${THREADS:-$(nproc)}
KEEP=${KEEP:-triattention:v3,budget=25%} RECALL=${RECALL:-kv} PITH=${PITH:-build/cli/pith}
file=$(scripts/models.sh "$folder" "$MODEL")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat docs/policies.md docs/read.md docs/recall.md docs/share.md docs/store.md >"$work/text"

measure() { # measure NAME OPTIONS ..
    name=$1
    shift
    "$PITH" eval needle -m "$file" -f "$work/text" -n "$LENGTH" -d "$DEPTH" --chat --text \
        --predict 24 --no-paired -t "$THREADS" "$@" --json "$work/$name.json"
}

measure full >/dev/null
measure keep --keep "$KEEP" >/dev/null
measure recall --keep "$KEEP" --recall "$RECALL" >/dev/null
python3 - "$work" "$KEEP" "$RECALL" <<'TABLE'
import json, sys
work, keep, recall = sys.argv[1:]
rows = [("full cache", "full"), (keep, "keep"), (f"{keep}, recall {recall}", "recall")]
results = [(name, json.load(open(f"{work}/{file}.json"))) for name, file in rows]
first = results[0][1]
settings, row = first["settings"], first["rows"][0]
print(f"{first['model']} reads {int(row['tokens'])} tokens, in which, {100 * row['at']:.0f} % of the"
      f" way, one sentence says")
print(f"    {settings['needle'].format(name='', word=settings['word'], number=settings['number'])}")
print(f"and is asked\n    {settings['question']}\n")
head = ("cache", "answer", "right", "p(right)", "KV memory", "prompt", "answer")
lines = [head]
for name, result in results:
    summary, row = result["summary"], result["rows"][0]
    said = " ".join(row["texts"][0]["answer"].split())
    chance = row["probability"]
    lines.append((name, said if len(said) <= 32 else said[:29] + "...",
                  "yes" if row["pass"] else "no", "-" if chance is None else f"{chance:.2g}",
                  f"{summary['kv_peak_bytes'] / 2**20:.1f} MiB",
                  f"{summary['prompt_tokens_per_s']:.0f} tok/s",
                  f"{summary['tokens_per_s']:.1f} tok/s"))
width = [max(len(line[i]) for line in lines) for i in range(len(head))]
for line in lines:
    print("  ".join(part.ljust(width[i]) if i < 3 else part.rjust(width[i])
                    for i, part in enumerate(line)).rstrip())
TABLE
