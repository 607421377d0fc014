#!/bin/sh
# Fetches the texts, questions, statistics, vocabularies and chat templates of others that tests and
# scripts/docs/ use, as far as they are public:
#   scripts/data.sh [FOLDER]        build-data without FOLDER: tests look there
#   scripts/data.sh --list          the files and where each is from
# Sources are git repositories, each at one commit, a Python package, and models that
# scripts/models.sh has fetched into build-models. Only data is taken, and nothing is compiled. Each
# file is checked against scripts/data.sha256 before it gets its name. A file that is there is not
# fetched again. By environment: PITH_GIT, the address in front of the names of the repositories;
# PITH_MODELS, another folder of models.
set -eu
cd "$(dirname "$0")/.."
PITH_GIT=${PITH_GIT:-https://github.com}

# A source (git REPOSITORY COMMIT, pip PACKAGE VERSION or model NAME FILE), a file there, and its
# name here. One * in both stands for the same characters.
table() {
    cat <<'TABLE'
git pytorch/examples ca907342507c1139696f542de0a3351d7a382eee word_language_model/data/wikitext-2/test.txt text/wiki.test.raw
git pytorch/examples ca907342507c1139696f542de0a3351d7a382eee word_language_model/data/wikitext-2/valid.txt text/wiki.valid.raw
git karpathy/char-rnn 6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e data/tinyshakespeare/input.txt text/tinyshakespeare.txt
git ollama/ollama fb30760996871fa9460115c753afd2c60d4ab0f7 tokenizer/testdata/war-and-peace.txt text/war-and-peace.txt
git antirez/ds4 8d576642c39b9a2d782a80159ba84ef5a81c0b81 speed-bench/promessi_sposi.txt text/promessi_sposi.txt
git openai/grade-school-math 3101c7d5072418e28b9008a6636bde82a006892c grade_school_math/data/test.jsonl questions/gsm8k_test.jsonl
git QwenLM/Qwen2.5-Math a45202bd16f1ec06f433442dc1152d0074773465 evaluation/data/amc23/test.jsonl questions/qwenmath_amc23.jsonl
git DerrickYLJ/LessIsMore 6753bf72144679c7d1183fcab9d8f84e8b905dbb experiments/reasoning/data/*/test.jsonl questions/lessismore_*.jsonl
git DerrickYLJ/LessIsMore 6753bf72144679c7d1183fcab9d8f84e8b905dbb experiments/LongBench/config/*.json questions/longbench_*.json
git Zefan-Cai/KVCache-Factory c97f9d706d63d1b56e980f8b81b2a924c21162b3 data/LongBench/multi_news.jsonl questions/multi_news.jsonl
git Zefan-Cai/KVCache-Factory c97f9d706d63d1b56e980f8b81b2a924c21162b3 data/RULER/4096/niah_multikey_3.jsonl questions/ruler4096_niah_multikey_3.jsonl
git WeianMao/triattention c3744ee6a50522a1559a577f85aef2b165a344f2 triattention/benchmarks/dfs/datasets/*.json questions/dfs/*.json
git WeianMao/triattention c3744ee6a50522a1559a577f85aef2b165a344f2 triattention/calibration/for_aime24_experiment/*.pt stats/aime24_*.pt
git domvox/triattention-ggml e61673bc95cfd3af67b7c98444d0c811552e3e61 stats/*.bin stats/*.tria.bin
git icppWorld/icpp_llm 6c9bf2ee6c19a98a13d54e93d5d415bf20781cce llama2_c/stories260K/*.bin weights/*.bin
pip llama-cpp-python 0.3.36 vendor/llama.cpp/models/ggml-vocab-* tokenizer/ggml-vocab-*
pip llama-cpp-python 0.3.36 vendor/llama.cpp/models/templates/*.jinja templates/*.jinja
model smollm2 smollm2-135m-instruct-q4_1.gguf tokenizer.chat_template templates/SmolLM2-135M-Instruct.gguf.jinja
model coder-1.5b qwen2.5-coder-1.5b-instruct-q4_k_m.gguf tokenizer.chat_template templates/Qwen2.5-Coder-1.5B-Instruct.gguf.jinja
TABLE
}

say() { echo "data.sh: $*" >&2; }

# ---- sources: each fills $tmp/KIND/NAME, or says why not ----

# A repository's tree at a commit; files come when they are asked for.
fetch_git() {
    repo=$tmp/git/$1
    mkdir -p "$repo"
    git -C "$repo" init -q
    git -C "$repo" config remote.origin.url "$PITH_GIT/$1"
    git -C "$repo" config remote.origin.promisor true
    git -C "$repo" config remote.origin.partialclonefilter blob:none
    git -C "$repo" -c http.lowSpeedLimit=1000 -c http.lowSpeedTime=30 \
        fetch -q --depth 1 --filter=blob:none origin "$2" 2>"$tmp/error"
}

# A package's source archive. pip asks its build tool for the name and the version, no more.
fetch_pip() {
    mkdir -p "$tmp/pip/$1.sdist"
    python3 -m pip download -q --disable-pip-version-check --no-deps --no-binary "$1" \
        -d "$tmp/pip/$1.sdist" "$1==$2" >"$tmp/error" 2>&1 || return 1
    mkdir "$tmp/pip/$1"
    tar -xzf "$(find "$tmp/pip/$1.sdist" -name '*.tar.gz')" --strip-components 1 -C "$tmp/pip/$1" \
        2>"$tmp/error"
}

# A model is not fetched for a template alone.
fetch_model() {
    [ ! -r "$models/$2" ] || return 0
    echo "scripts/models.sh $models $1 fetches it" >"$tmp/error"
    return 1
}

# A text among a GGUF file's metadata, to standard output.
gguf_text() {
    python3 -c '
import struct, sys
head = open(sys.argv[1], "rb").read(64 << 20)
key = sys.argv[2].encode()
mark = struct.pack("<Q", len(key)) + key + struct.pack("<I", 8)
at = head.index(mark) + len(mark)
sys.stdout.buffer.write(head[at + 8:][:struct.unpack_from("<Q", head, at)[0]])' "$1" "$2"
}

# The names of the files of a source that is there.
list() { # list KIND NAME VERSION
    case $1 in
    git) git -C "$tmp/git/$2" ls-tree -r --name-only "$3" ;;
    pip) (cd "$tmp/pip/$2" && find . -type f | cut -c 3-) ;;
    model) echo tokenizer.chat_template ;;
    esac
}

# One of them, to standard output.
show() { # show KIND NAME VERSION FILE
    case $1 in
    git) git -C "$tmp/git/$2" show "$3:$4" 2>"$tmp/error" ;;
    pip) cat "$tmp/pip/$2/$4" ;;
    model) gguf_text "$models/$3" "$4" ;;
    esac
}

# ---- what is wanted ----

# Whether files that stand in the list of sums and fit a pattern are lacking.
lacks() {
    for file in $wanted; do
        # shellcheck disable=SC2254 # a pattern
        case $file in $1) [ -e "$folder/$file" ] || return 0 ;; esac
    done
    return 1
}

take() { # take KIND NAME VERSION FILE TO
    sum=$(sed -n "s|  $5\$||p" scripts/data.sha256)
    [ -n "$sum" ] && [ ! -e "$folder/$5" ] || return 0
    mkdir -p "$(dirname "$folder/$5")"
    if show "$1" "$2" "$3" "$4" >"$folder/$5.new" &&
        echo "$sum  $folder/$5.new" | sha256sum --check --status; then
        mv "$folder/$5.new" "$folder/$5"
    else
        rm -f "$folder/$5.new"
        say "$4 of $2 is not the file with the SHA-256 of scripts/data.sha256"
    fi
}

if [ "${1:-}" = --list ]; then
    table | while read -r kind name version from to; do
        echo "$to: $from of $name ($kind $version)"
    done
    exit 0
fi
[ $# -le 1 ] || { say "usage: scripts/data.sh [FOLDER | --list]"; exit 2; }
folder=${1:-build-data}
models=${PITH_MODELS:-build-models}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
set -f # patterns are no files
wanted=$(sed 's/^[^ ]*  //' scripts/data.sha256)
failed=" "
mkdir -p "$folder"
table >"$tmp/table"
while read -r kind name version from to <&3; do
    lacks "$to" || continue
    case $failed in *" $kind/$name "* | *" $kind "*) continue ;; esac
    if [ ! -e "$tmp/$kind/$name" ]; then
        if ! "fetch_$kind" "$name" "$version"; then
            say "$name cannot be had: $(tail -n 1 "$tmp/error")"
            failed="$failed$kind/$name "
            [ "$kind" != git ] || failed="$failed$kind " # the same address for all
            continue
        fi
    fi
    pattern=$(echo "$from" | sed 's/[.]/[.]/g; s/[*]/\\(.*\\)/')
    here=$(echo "$to" | sed 's/[*]/\\1/')
    list "$kind" "$name" "$version" | sed -n "s|^$pattern\$|& $here|p" >"$tmp/list"
    while read -r path file; do
        take "$kind" "$name" "$version" "$path" "$file"
    done <"$tmp/list"
done 3<"$tmp/table"
n=0 n_lack=0
for file in $wanted; do
    n=$((n + 1))
    [ -e "$folder/$file" ] || n_lack=$((n_lack + 1))
done
say "$((n - n_lack)) of $n files are in $folder"
[ "$n_lack" = 0 ]
