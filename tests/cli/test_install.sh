#!/bin/sh
# Installs the build into an empty folder, moves it, and builds the examples against it by
# pkg-config, and simple.c by find_package; programs and the installed command must run.
#
# usage: test_install.sh SOURCE BUILD COMPILER [FLAGS]
set -eu
source=$1 build=$2 compiler=$3 flags=${4-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$build" --prefix "$work/first" >/dev/null
mv "$work/first" "$work/moved"
prefix=$work/moved
LD_LIBRARY_PATH=$(dirname "$(find "$prefix" -name 'libpith.*' | head -n 1)")
export LD_LIBRARY_PATH

echo "the command"
"$prefix/bin/pith" --version | grep -q '^pith [0-9]*\.[0-9]*\.[0-9]* ('

echo "pages, completions and the unit"
for file in share/man/man1/pith.1 share/man/man1/pith-run.1 share/man/man1/pith-eval-needle.1 \
    share/bash-completion/completions/pith share/zsh/site-functions/_pith \
    share/fish/vendor_completions.d/pith.fish; do
    [ -s "$prefix/$file" ] || { echo "$file is not installed"; exit 1; }
done
if [ -f "$prefix/lib/systemd/system/pith.service" ]; then
    grep -q "^ExecStart=$work/first/bin/pith serve$" "$prefix/lib/systemd/system/pith.service"
    grep -q "^EnvironmentFile=-$work/first/etc/default/pith$" "$prefix/lib/systemd/system/pith.service"
    # Another installation leaves settings alone that somebody has changed.
    echo "PITH_PORT=8081" >"$prefix/etc/default/pith"
    cmake --install "$build" --prefix "$prefix" --component command >/dev/null
    [ "$(cat "$prefix/etc/default/pith")" = "PITH_PORT=8081" ]
fi

echo "pkg-config"
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name pith.pc)")
export PKG_CONFIG_PATH
for name in simple batch policy; do
    # shellcheck disable=SC2046,SC2086
    "$compiler" -std=c99 $flags $(pkg-config --cflags pith) "$source/examples/$name.c" \
        $(pkg-config --libs pith) -lm -o "$work/$name"
done

echo "find_package"
mkdir "$work/project"
cp "$source/examples/simple.c" "$work/project"
cat >"$work/project/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.21)
project(simple LANGUAGES C)
find_package(pith 0.1 REQUIRED)
add_executable(simple simple.c)
target_link_libraries(simple PRIVATE pith::pith)
END
cmake -S "$work/project" -B "$work/project/build" -DCMAKE_C_COMPILER="$compiler" \
    -DCMAKE_C_FLAGS="$flags" -DCMAKE_PREFIX_PATH="$prefix" >"$work/log" || { cat "$work/log"; exit 1; }
cmake --build "$work/project/build" >"$work/log" || { cat "$work/log"; exit 1; }

echo "the programs"
for program in "$work/simple" "$work/project/build/simple"; do
    text=$("$program" "$source/models/pith-nano.gguf" "The friend of") || exit 1
    [ -n "$text" ] || { echo "$program: no text"; exit 1; }
    if "$program" /nonexistent 2>"$work/err"; then
        echo "$program: no failure for a missing model"
        exit 1
    fi
    grep -q '/nonexistent' "$work/err"
done
if [ -f "$source/models/demo/prompt-2k.txt" ]; then
    [ -f "$prefix/share/pith/demo/prompt-2k.txt" ] && [ -f "$prefix/share/pith/pith-nano.gguf" ]
fi
