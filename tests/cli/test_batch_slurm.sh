#!/bin/sh
# usage: test_batch_slurm.sh PITH ROOT
#
# examples/batch.slurm as Slurm calls it: two tasks side by side, one of which is ended and
# requeued. Their outputs are those of one process.
set -eu
export PITH=$1
root=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export MODEL=$folder/model.gguf REQUESTS=$folder/requests.jsonl OUT=$folder/answers
export SLURM_ARRAY_TASK_COUNT=2 SLURM_CPUS_PER_TASK=1
cp "$root/models/pith-nano.gguf" "$MODEL"
i=0
while [ $i -lt 16 ]; do
    echo "{\"custom_id\":\"r$i\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":\"The way goes from\",\"max_tokens\":24,\"seed\":$i,\"temperature\":0.8}}"
    i=$((i + 1))
done >"$REQUESTS"
"$PITH" batch -m "$MODEL" -f "$REQUESTS" -o "$folder/whole.jsonl" -t 1 -q
SLURM_ARRAY_TASK_ID=0 bash "$root/examples/batch.slurm" &
first=$!
SLURM_ARRAY_TASK_ID=1 bash "$root/examples/batch.slurm"
wait $first
head -n 2 "$OUT.1.jsonl" >"$folder/cut" # what a task leaves that is ended: whole lines, and a rest
printf '{"id":"batch_req_0f","custom_id":"r1' >>"$folder/cut"
mv "$folder/cut" "$OUT.1.jsonl"
SLURM_ARRAY_TASK_ID=1 bash "$root/examples/batch.slurm" 2>"$folder/said"
# The texts by custom_id.
texts() {
    cat "$@" | sed 's/.*"custom_id":"\([^"]*\)".*"text":"\([^"]*\)".*/\1 \2/' | sort
}
texts "$folder/whole.jsonl" >"$folder/want"
texts "$OUT".0.jsonl "$OUT".1.jsonl >"$folder/got"
[ "$(wc -l <"$folder/want")" = 16 ] && [ -s "$OUT.0.jsonl" ] && [ -s "$OUT.1.jsonl" ]
cmp "$folder/want" "$folder/got"
