#!/bin/sh
# In the image of manylinux_2_28: the libraries that the extension takes along. Its SQLite is older
# than 3.35, which recall of text needs, so a newer one is built as a static library. PITH_SQLITE
# says where its source archive is fetched: the address of a folder of Debian's pool or of a copy of
# it.
set -eu
name=sqlite3_3.46.1.orig.tar.xz
sum=d0cdd2ece271b29e7ce18095745d892517ee26d0f270065b3a25c2e9eb11639c
: "${PITH_SQLITE:?wheel-deps.sh: set it to the address of the folder that has $name}"
dnf -y --enablerepo=powertools install pcre2-devel jansson-devel tcl
curl -fsSLO "$PITH_SQLITE/$name"
echo "$sum  $name" | sha256sum -c -
tar xf "$name"
cd sqlite3-3.46.1
CFLAGS="-O2 -fPIC -DSQLITE_ENABLE_FTS5" ./configure --prefix=/opt/sqlite --disable-shared --disable-tcl \
    --disable-readline --disable-load-extension
make -j"$(nproc)" libsqlite3.la
make install
