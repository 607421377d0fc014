#!/bin/sh
# What drafts are worth, and that they change nothing (docs/draft.md, docs/benchmarks.md).
#
#   scripts/bench/draft.sh MODELS OUT [times|same]
#
# MODELS has the files of scripts/models.sh, OUT receives the prompts and what was printed. `times`
# measures three editing tasks (a source file of ours, a name to be replaced, all of it to be
# printed), three tasks of writing code and three of writing text with Qwen2.5-Coder-1.5B, with
# lookup and with Qwen2.5-Coder-0.5B as the drafting model. `same` compares 1,000 texts with and
# without drafts: seeds, temperatures and prompts differ, and in every second text drafts are made
# wherever they can be.
set -eu
models=$1 out=$2 part=${3:-times}
root=$(cd "$(dirname "$0")/../.." && pwd)
bench=${BENCH:-$root/build/bench/bench_draft}
big=$models/qwen2.5-coder-1.5b-instruct-q4_k_m.gguf
small=$models/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf
least=$models/smollm2-135m-instruct-q4_1.gguf
mkdir -p "$out"

edit() { # NAME FILE OLD NEW
    {
        cat "$root/$2"
        printf '\n\nPrint this whole C file again, with %s renamed to %s everywhere. ' "$3" "$4"
        printf 'Answer with the code only.\n'
    } > "$out/$1.txt"
}

edit edit-1 src/text/stop.c match_ending_at longest_match
edit edit-2 src/base/number.c is_digit is_decimal
edit edit-3 src/base/status.c log_user log_owner
printf 'Write a C program with a hash map from strings to integers: insert, find, remove, free, and a main that tests each of them.\n' > "$out/code-1.txt"
printf 'Write a Python class for an LRU cache with a doubly linked list, with type hints, and unit tests for it.\n' > "$out/code-2.txt"
printf 'Write a C function that parses a line of CSV with quoted fields, and a main with five examples.\n' > "$out/code-3.txt"
printf 'Write a short story about a lighthouse keeper who finds a letter in a bottle.\n' > "$out/free-1.txt"
printf 'Explain to a child why the sky is blue and why sunsets are red.\n' > "$out/free-2.txt"
printf 'What should somebody consider who moves from the city to the country? Write an essay.\n' > "$out/free-3.txt"

cd "$out"
case $part in
times)
    rounds=${ROUNDS:-3}
    "$bench" -m "$big" -n 900 --rounds "$rounds" edit-1.txt edit-2.txt edit-3.txt
    "$bench" -m "$big" -d "$small" -n 160 --rounds "$rounds" code-1.txt code-2.txt code-3.txt
    "$bench" -m "$big" -n 100 --temp 0.8 --rounds "$rounds" free-1.txt free-2.txt free-3.txt
    ;;
same)
    "$bench" -m "$least" --vary --rounds 100 -n 24 edit-2.txt edit-3.txt code-1.txt code-2.txt \
        code-3.txt free-1.txt free-2.txt free-3.txt
    "$bench" -m "$small" --vary --rounds 30 -n 24 edit-3.txt code-1.txt free-1.txt
    "$bench" -m "$big" -d "$small" --vary --rounds 19 -n 24 code-1.txt free-1.txt
    ;;
*)
    echo "draft.sh: $part: times or same" >&2
    exit 2
    ;;
esac | tee "$out/$part.out"
