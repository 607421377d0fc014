#!/bin/sh
# Makes one self-contained archive of the command: the program, the libraries it needs beside it,
# pages of man, completions, the models of the demo and all licences. It runs from any folder of a
# machine with the C library alone.
#   scripts/release.sh [OUT [OPTION...]]
# OUT is a folder, build-release/out by default, and OPTION one of cmake's.
# BUILD names the build folder (default build-release), JOBS the compiler's processes. The last
# lines printed are the archive, its SHA-256 and the oldest C library that it runs with. Where /proc
# may be mounted, it is tried in a root folder that has nothing else.
set -eu
cd "$(dirname "$0")/.."
build=${BUILD:-build-release}
out=${1:-$build/out}
jobs=${JOBS:-$(nproc)}
[ $# -lt 1 ] || shift
# Parts of the C library come with every machine: the libraries of another one would not fit its
# loader.
system='^(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util|anl|mvec|nss_.*))\.so'

fail() {
    echo "release.sh: $*" >&2
    exit 1
}

# An old-style RPATH holds for libraries of libraries, too.
cmake -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DPITH_TESTS=OFF -DPITH_BENCH=OFF -DPITH_CUDA=AUTO \
    -DCMAKE_INSTALL_PREFIX=/usr/local '-DCMAKE_INSTALL_RPATH=$ORIGIN/../lib/pith' \
    -DCMAKE_EXE_LINKER_FLAGS=-Wl,--disable-new-dtags "$@" >"$build.log" 2>&1 ||
    fail "cmake failed: $(tail -n 3 "$build.log")"
cmake --build "$build" --target pith-cli -j "$jobs" >"$build.log" 2>&1 ||
    fail "the build failed: $(tail -n 3 "$build.log")"
rm -f "$build.log"

version=$("$build/cli/pith" --version | sed -n '1s/^pith \([^ ]*\).*/\1/p')
name=pith-$version-linux-$(uname -m)
stage=$build/stage
rm -rf "$stage"
mkdir -p "$stage" "$out"
cmake --install "$build" --component command --prefix "$PWD/$stage/$name" >/dev/null
folder=$stage/$name
# The unit of systemd names the folder that it was made in.
rm -rf "$folder/lib/systemd" "$folder/etc"
strip "$folder/bin/pith"

# Libraries that the program loads, and what the package of each says of its licence.
mkdir -p "$folder/lib/pith" "$folder/share/doc/pith/libraries"
ldd "$build/cli/pith" | sed -n 's/.* => \(\/[^ ]*\).*/\1/p' | while read -r library; do
    file=$(basename "$library")
    ! echo "$file" | grep -Eq "$system" || continue
    cp -L "$library" "$folder/lib/pith/$file"
    if command -v dpkg >/dev/null; then
        package=$(dpkg -S "$(readlink -f "$library")" 2>/dev/null | sed -n '1s/:.*//p')
        ! [ -e "/usr/share/doc/$package/copyright" ] ||
            cp -L "/usr/share/doc/$package/copyright" "$folder/share/doc/pith/libraries/$package"
    fi
done

# The same bytes for the same files.
epoch=$(git log -1 --format=%ct 2>/dev/null || echo 0)
archive=$out/$name.tar.gz
tar -C "$stage" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$epoch" -cf - "$name" |
    gzip -9n >"$archive"

# Every library comes from the folder or is a part of the C library.
stray=$(env -i LD_TRACE_LOADED_OBJECTS=1 "$folder/bin/pith" |
    sed -n 's/^[[:space:]]*\([^ ]*\) => \(.*\) (0x.*/\1 \2/p; s/.*=> not found/missing &/p' |
    grep -v " $PWD/$folder/\| .*/bin/\.\./lib/pith/" | grep -Ev "$system" || true)
[ -z "$stray" ] || fail "libraries come from outside of the archive: $stray"
# A root folder that has the C library, its loader and the archive. The loader finds the folder of a
# program by /proc.
try_bare() {
    bare=$build/bare
    umount "$bare/proc" 2>/dev/null || true
    rm -rf "$bare"
    mkdir -p "$bare/proc"
    if ! mount -t proc proc "$bare/proc" 2>/dev/null; then
        echo "release.sh: not tried in a root folder of its own: this user cannot mount /proc" >&2
        return 0
    fi
    tar -C "$bare" -xzf "$archive"
    { ldd "$build/cli/pith"; find "$folder/lib/pith" -type f -exec ldd {} +; } |
        grep -o '/[^ ]*\.so[^ ]*' | sort -u | while read -r library; do
        basename "$library" | grep -Eq "$system" || continue
        mkdir -p "$bare$(dirname "$library")"
        cp -L "$library" "$bare$library"
    done
    ok=0
    chroot "$bare" "/$name/bin/pith" run -m "/$name/share/pith/pith-nano.gguf" -p Once -n 4 \
        >/dev/null || ok=1
    umount "$bare/proc"
    rm -rf "$bare"
    return $ok
}
try_bare || fail "the archive does not run in a root folder of its own"

needed=$(find "$folder" -type f \( -name pith -o -name '*.so*' \) -exec objdump -T {} + 2>/dev/null |
    grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)
echo "$archive"
(cd "$out" && sha256sum "$name.tar.gz" | tee "$name.tar.gz.sha256")
echo "needs ${needed:-the C library of this machine} or newer"
