#!/bin/sh
# usage: scripts/test-python.sh FOLDER BUILD
#
# Makes a virtual environment in FOLDER with the package of python/, linked to the libraries that
# were built in BUILD, and runs its tests there. Exit 77 where Python or a package that it needs
# cannot be had.
set -eu
folder=$1 build=$2
root=$(cd "$(dirname "$0")/.." && pwd)
skip() {
    echo "skipped: $1"
    exit 77
}
python3 -c 'import sys, venv; sys.exit(sys.version_info < (3, 9))' 2>/dev/null ||
    skip "there is no Python 3.9 with venv"
[ -x "$folder/bin/python" ] || python3 -m venv "$folder" >/dev/null 2>&1 ||
    skip "a virtual environment could not be made"
pip="$folder/bin/python -m pip --disable-pip-version-check install -q"
$folder/bin/python -c 'import cffi, numpy, pytest, scikit_build_core, mypy' 2>/dev/null ||
    $pip --no-compile 'cffi>=1.16' numpy pytest mypy 'scikit-build-core>=0.10' cmake ninja >"$folder/pip.log" 2>&1 ||
    skip "the packages that it needs cannot be had ($folder/pip.log)"
PATH="$folder/bin:$PATH" $pip --no-build-isolation --no-deps --force-reinstall \
    -C "cmake.define.PITH_BUILT=$build" -C "build-dir=$folder/wheel" "$root/python"
"$folder/bin/python" -m mypy --strict "$root/python/pithkv"
export PITH_TEST_COMMAND="$build/cli/pith"
cd "$root/python/tests" # where no folder pithkv hides the one that is installed
exec "$folder/bin/python" -m pytest -q -rs -p no:cacheprovider .
