#!/bin/sh
# Learns how important entries are for a model from mixed texts (prose, code, mathematics, dialogue)
# and writes the statistics to OUT; does nothing if OUT is there. Minutes for a model of 1.5 billion
# parameters on two cores. wiki.test.raw is not read: evaluations measure on it.
#     scripts/importance.sh MODEL OUT [DATA_DIR] [OPTION...]
# DATA_DIR (build-data, which scripts/data.sh fills) holds text/wiki.valid.raw, a book and
# questions/gsm8k_test.jsonl. The book is text/corpus/00.txt.xz, which docs/real.md was measured
# with, or else text/war-and-peace.txt. OPTIONs go to pith calibrate: "-c 380", "--hidden", --keep.
# PITH names the command (build/cli/pith), PIECES the pieces of each text (5).
set -eu
if [ $# -lt 2 ]; then
    echo "usage: scripts/importance.sh MODEL OUT [DATA_DIR] [OPTION...]" >&2
    exit 2
fi
model=$1
out=$2
shift 2
root=$(cd "$(dirname "$0")/.." && pwd)
data=$root/build-data
[ -e "$data" ] || data=$root/../shared/data
if [ $# -gt 0 ]; then
    data=$1
    shift
fi
pith=${PITH:-$root/build/cli/pith}
pieces=${PIECES:-5}
if [ -e "$out" ]; then
    echo "importance.sh: $out is there"
    exit 0
fi
texts=$(mktemp -d)
trap 'rm -rf "$texts"' EXIT

python3 - "$root" "$data" "$texts" "$pieces" <<'END'
import glob, json, lzma, os, sys

root, data, texts, pieces = sys.argv[1:4] + [int(sys.argv[4])]
BLOCK = 40000  # characters around each piece


def write(name, text):
    with open(f"{texts}/{name}.txt", "w", encoding="utf-8") as file:
        file.write(text)


def blocks(text, first, step):
    """Blocks first, first + step, ... of as many as there are pieces, evenly spaced."""
    far = max(0, len(text) - BLOCK)
    return {i: text[far * i // pieces:][:BLOCK] for i in range(first, pieces, step)}


wiki = open(f"{data}/text/wiki.valid.raw", encoding="utf-8").read()
book = f"{data}/text/corpus/00.txt.xz"
opened = lzma.open(book) if os.path.exists(book) else open(f"{data}/text/war-and-peace.txt", "rb")
corpus = opened.read(8000000).decode("utf-8", "ignore")
prose = {**blocks(wiki, 0, 2), **blocks(corpus, 1, 2)}
write("prose", "\n".join(prose[i] for i in range(pieces)))

sources = sorted(glob.glob(f"{root}/src/**/*.c", recursive=True) + glob.glob(f"{root}/eval/*.c"))
write("code", "\n".join(open(path, encoding="utf-8").read() for path in sources))

with open(f"{data}/questions/gsm8k_test.jsonl", encoding="utf-8") as file:
    items = [json.loads(line) for line in file][200:]  # scripts/docs/real_reason.sh asks the first
half = len(items) // 2
write("mathematics", "\n\n".join(f"{x['question']}\n{x['answer']}" for x in items[:half]))
write("dialogue", "\n\n".join(f"User: {x['question']}\n\nAssistant: {x['answer']}"
                              for x in items[half:]))
END

keep=
for option in "$@"; do
    [ "$option" = --keep ] && keep=given
done
if [ -z "$keep" ]; then
    set -- "$@" --keep triattention:global --keep expected --keep h2o --keep keydiff
fi
"$pith" calibrate importance -m "$model" -f "$texts/prose.txt" -f "$texts/code.txt" \
    -f "$texts/mathematics.txt" -f "$texts/dialogue.txt" --pieces "$pieces" -o "$out" "$@"
