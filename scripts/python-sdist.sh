#!/bin/sh
# usage: scripts/python-sdist.sh FOLDER [BUILD'S OPTIONS]
#
# Writes the source distribution of pithkv to FOLDER: the package of python/ with Pith's sources in
# a folder pith/ of it, so that `pip install pithkv-*.tar.gz` needs nothing else. Needs the module
# build. Wheels of all platforms are made of it: `cibuildwheel FOLDER/pithkv-*.tar.gz`.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
out=$1
shift
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
cp -R "$root/python/." "$stage"
rm -rf "$stage/build"
mkdir "$stage/pith" "$stage/models"
for part in CMakeLists.txt LICENSE cmake include src eval page; do
    cp -R "$root/$part" "$stage/pith/$part"
done
cp "$root/LICENSE" "$stage"
cp "$root/models/pith-nano.gguf" "$stage/models" # which the tests ask
python3 -m build --sdist --outdir "$out" "$@" "$stage"
