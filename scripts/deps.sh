#!/bin/sh
# Installs what Pith needs to build and test, where it is missing, on Debian and Ubuntu: with
# --command what the command alone needs. Further words are packages.
set -eu
packages="gcc cmake make pkg-config libpcre2-dev libsqlite3-dev libcurl4-openssl-dev libjansson-dev
    libedit-dev libmicrohttpd-dev libzmq3-dev"
if [ "${1-}" = --command ]; then
    shift
else
    packages="$packages g++ ninja-build libcmocka-dev python3 libopenmpi-dev openmpi-bin"
fi
packages="$packages $*"
missing=""
for package in $packages; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
done
[ -z "$missing" ] && exit 0
if ! command -v apt-get >/dev/null; then
    echo "deps.sh: install these packages by hand:$missing" >&2
    exit 1
fi
sudo=""
[ "$(id -u)" = 0 ] || sudo=sudo
echo "deps.sh: installing$missing"
$sudo apt-get update -qq
DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends $missing
