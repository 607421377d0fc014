#!/bin/sh
# Builds the library for 64-bit Arm and runs its kernel tests under qemu-user; with --all, every
# test. Needs Debian or Ubuntu: the cross compiler is installed, the libraries that the build links
# (PCRE2, SQLite, Jansson, cmocka) are unpacked into the build directory, so the system stays as it
# is.
set -eu
cd "$(dirname "$0")/.."
targets="test_base test_dtype test_matmul test_attend test_attend_codes test_kv_score test_kv_gather test_vec"
tests="^($(echo "$targets" | tr ' ' '|'))\$"
if [ "${1:-}" = --all ]; then
    targets=all
    tests=.
fi
scripts/deps.sh gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user

build=$PWD/build-neon
root=$build/root
missing=
for library in cmocka libpcre2-8 sqlite3 jansson; do # a build directory may be older than one of them
    [ -e "$root/usr/lib/aarch64-linux-gnu/pkgconfig/$library.pc" ] || missing="$missing $library"
done
if [ -n "$missing" ]; then
    # A package state of its own, for the other architecture.
    apt=$build/apt
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$apt/packages" "$root"
    options="-o Dir::State::Lists=$apt/lists -o Dir::Cache=$apt/cache
        -o Dir::State::status=/dev/null -o APT::Architecture=arm64 -o APT::Architectures=arm64
        -o APT::Sandbox::User=root"
    # shellcheck disable=SC2086
    if ! (apt-get $options -qq update && cd "$apt/packages" &&
        apt-get $options -qq download libcmocka0 libcmocka-dev libpcre2-8-0 libpcre2-dev \
            libsqlite3-0 libsqlite3-dev libjansson4 libjansson-dev); then
        echo "test-neon.sh: this system's package sources have no arm64 packages" >&2
        exit 1
    fi
    for package in "$apt"/packages/*.deb; do
        dpkg-deb -x "$package" "$root"
    done
fi

# With debug information means -O2: gcc 12 for Arm fails with an internal error on a test at -O3.
export PKG_CONFIG_LIBDIR="$root/usr/lib/aarch64-linux-gnu/pkgconfig"
export PKG_CONFIG_SYSROOT_DIR="$root"
cmake -S . -B "$build" -DCMAKE_TOOLCHAIN_FILE="$PWD/cmake/aarch64-linux-gnu.cmake" \
    -DCMAKE_FIND_ROOT_PATH="$root" -DCMAKE_LIBRARY_ARCHITECTURE=aarch64-linux-gnu \
    -DCMAKE_C_FLAGS="-isystem $root/usr/include" -DCMAKE_BUILD_TYPE=RelWithDebInfo \
    -DPITH_CLI=OFF -DPITH_BENCH=OFF -DPITH_HTTP=OFF -DPITH_TESTS=ON >/dev/null
# shellcheck disable=SC2086
cmake --build "$build" -j "$(nproc)" --target $targets
ctest --test-dir "$build" -R "$tests" -j "$(nproc)" --output-on-failure
