#!/bin/sh
# Runs llama-server's own tests against `pith serve`.
#
#   scripts/llama-server-tests/run.sh LLAMA_CPP [pytest arguments]
#
# LLAMA_CPP is an unpacked llama.cpp; nothing is written there. The tests are copied to
# build/llama-server-tests, and changed as changes.py lists. PYTHON names an interpreter that has
# pytest, pytest-timeout, filelock, requests and openai; PITH and PITH_MODEL as in llama-server.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
llama=${1:?give the folder of an unpacked llama.cpp}
shift
tests=$llama/tools/server/tests
[ -d "$tests/unit" ] || { echo "$tests/unit: no tests there" >&2; exit 2; }

work=${WORK:-$root/build/llama-server-tests}
rm -rf "$work"
mkdir -p "$work/tools/server"
cp -R "$tests" "$work/tools/server/tests"
ln -s "$(cd "$llama" && pwd)/models" "$work/models"

export PITH="${PITH:-$root/build/cli/pith}"
export PITH_MODEL="${PITH_MODEL:-$root/models/pith-mini.gguf}"
export LLAMA_SERVER_BIN_PATH="$here/llama-server"
export PORT="${PORT:-18200}"
export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}"
python=${PYTHON:-python3}
"$python" "$here/changes.py" "$work/tools/server/tests"
cd "$work/tools/server/tests"
[ $# -gt 0 ] || set -- $("$python" "$here/changes.py" --files)
exec "$python" -m pytest -p relations -p no:cacheprovider -m "not slow" --timeout 120 -q "$@"
