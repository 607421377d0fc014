# cells.sh - read by the scripts that measure a table cell by cell. A cell is one JSON file in $out,
# written when it is complete, so that a script that is started again goes on where it stopped. A
# cell that fails leaves its sentence in NAME.err, and is tried again only with RETRY=1.
# The script that reads this sets me (its name), models (a folder of scripts/models.sh) and out; for
# bases_of and learn_map also root, data, PITH and THREADS.

# The file of a model.
file_of() {
    case $1 in
    smollm2) echo "$models/smollm2-135m-instruct-q4_1.gguf" ;;
    coder-0.5b) echo "$models/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf" ;;
    coder-1.5b) echo "$models/qwen2.5-coder-1.5b-instruct-q4_k_m.gguf" ;;
    *) echo "$me: there is no model \"$1\", only smollm2, coder-0.5b, coder-1.5b" >&2; exit 2 ;;
    esac
}

# Fails where the file of a model is not there.
need_model() {
    local file
    file=$(file_of "$1")
    [ -e "$file" ] || { echo "$me: $file is not there: scripts/models.sh $models $1" >&2; exit 1; }
}

# bases_of MODEL: the file of the bases that Loki scores keys in, of a text that no task asks about.
bases_of() {
    if [ ! -s "$out/$1.loki" ]; then
        head -c 100000 "$data/text/wiki.valid.raw" >"$out/loki.txt"
        "$PITH" calibrate loki -m "$(file_of "$1")" -f "$out/loki.txt" -c 2048 \
            -o "$out/$1.loki" -t "$THREADS" >&2
    fi
    echo "$out/$1.loki"
}

# learn_map MODEL FILE POLICY: makes statistics of a model, with a map of the policy's scores, where
# they are not there yet.
learn_map() {
    [ -e "$2" ] || PITH=$PITH PIECES=4 "$root/scripts/importance.sh" "$(file_of "$1")" "$2" "$data" \
        -c 800 --keep "$3" </dev/null >&2
}

is_done() {
    [ -s "$out/$1.json" ] || { [ -e "$out/$1.err" ] && [ -z "${RETRY:-}" ]; }
}

# measure NAME COMMAND ..: runs the command with --json FILE behind it, unless the cell is there.
# NAME.time gets the seconds it took: wall, user, system.
measure() {
    local name=$1 TIMEFORMAT="%R %U %S" status=0
    shift
    ! is_done "$name" || return 0
    echo "$me: $name" >&2
    { time "$@" --json "$out/$name.new" </dev/null >/dev/null 2>"$out/$name.log" || status=$?; } \
        2>"$out/$name.time"
    if [ $status -eq 0 ]; then
        mv "$out/$name.new" "$out/$name.json"
        rm -f "$out/$name.log" "$out/$name.err"
    else
        [ $status -ne 130 ] || exit 130
        tail -n 1 "$out/$name.log" >"$out/$name.err"
        rm -f "$out/$name.log" "$out/$name.new" "$out/$name.time"
        echo "$me: $name: $(cat "$out/$name.err")" >&2
    fi
}
