#!/bin/sh
# Makes the packages of Debian, installs the command's into an empty root, runs what it brought, and
# purges it: nothing may be left. Dependencies are checked against what this system has installed.
#
# usage: test_package.sh BUILD
set -eu
build=$1
skip() {
    echo "skipped: $1"
    exit 77
}
for tool in dpkg dpkg-deb dpkg-shlibdeps file cpack; do
    command -v "$tool" >/dev/null || skip "there is no $tool"
done
[ "$(id -u)" = 0 ] || skip "only root installs packages"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root

echo "the packages"
(cd "$build" && cpack -G DEB -B "$work/packages") >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
deb=$(find "$work/packages" -maxdepth 1 -name 'pith_*.deb')
dev=$(find "$work/packages" -maxdepth 1 -name 'libpith-dev_*.deb')
[ -f "$deb" ] && [ -f "$dev" ]
[ "$(dpkg-deb -f "$deb" Package)" = pith ]
dpkg-deb -f "$deb" Depends | grep -q 'libc6 (>= ' || { echo "no dependency on libc6"; exit 1; }
dpkg-deb -f "$deb" Depends | grep -q 'libjansson4' || { echo "no dependency on libjansson4"; exit 1; }
dpkg-deb -c "$dev" >"$work/contents"
grep -q './usr/include/pith/pith.h' "$work/contents"
# Everything belongs to root, and nobody else may write.
dpkg-deb -c "$deb" >"$work/contents"
if awk '$2 != "root/root" || $1 ~ /^.....w|^........w/' "$work/contents" | grep .; then
    echo "not root's alone"
    exit 1
fi
if grep 'include/pith' "$work/contents"; then
    echo "headers in the command's package"
    exit 1
fi

echo "the installation"
# A database that knows this system's packages, and none of their files.
mkdir -p "$root/var/lib/dpkg/info" "$root/var/lib/dpkg/updates"
awk -v RS= -v ORS='\n\n' '/(^|\n)Package: (pith|libpith-dev)\n/ { next } { print }' /var/lib/dpkg/status \
    >"$root/var/lib/dpkg/status"
(cd /var/lib/dpkg/info && for list in *.list; do : >"$root/var/lib/dpkg/info/$list"; done)
find "$root" | sort >"$work/before"
run_dpkg() {
    dpkg --root="$root" --log="$work/dpkg.log" --force-script-chrootless --force-not-root \
        --no-triggers "$@" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
}
run_dpkg -i "$deb"
pith=$root/usr/bin/pith
for file in usr/bin/pith usr/share/pith/pith-nano.gguf usr/share/man/man1/pith.1 \
    usr/share/man/man1/pith-run.1 usr/share/bash-completion/completions/pith \
    usr/share/fish/vendor_completions.d/pith.fish usr/share/doc/pith/copyright; do
    [ -f "$root/$file" ] || { echo "$file is not installed"; exit 1; }
done
find "$root/usr/share/zsh" -name _pith | grep -q _pith

echo "the command"
"$pith" --version | grep -q '^pith '
text=$("$pith" run -m "$root/usr/share/pith/pith-nano.gguf" -p "The friend of" -n 4 --temp 0 -q -t 1)
[ -n "$text" ] || { echo "no text"; exit 1; }
"$pith" demo -t 1 </dev/null | grep -q "KV memory"

if "$pith" help serve | grep -q -- --port; then
    echo "the service"
    unit=$(find "$root" -name pith.service)
    grep -q '^ExecStart=/usr/bin/pith serve$' "$unit"
    grep -q '^EnvironmentFile=-/etc/default/pith$' "$unit"
    if command -v systemd-analyze >/dev/null; then
        # The program stands elsewhere here: the rest of the unit must be right.
        sed "s,^ExecStart=/usr/bin/pith,ExecStart=$pith," "$unit" >"$work/pith.service"
        systemd-analyze verify "$work/pith.service" 2>"$work/log" || true
        if grep "pith.service" "$work/log" | grep -v "man pith-serve"; then
            exit 1
        fi
    fi
    # What the settings name are options: each is read when it is on.
    sed -n 's/^#\(PITH_[A-Z_]*=\)/\1/p' "$root/etc/default/pith" >"$work/settings"
    [ "$(wc -l <"$work/settings")" -ge 5 ]
    while IFS='=' read -r name value; do
        option=--$(echo "${name#PITH_}" | tr 'A-Z_' 'a-z-')
        "$pith" help serve | grep -q -- "$option" || { echo "$name is no option: $value"; exit 1; }
    done <"$work/settings"
    # Settings that somebody changed stay when it is removed, and go when it is purged.
    echo "PITH_KV_MEMORY=1GiB" >>"$root/etc/default/pith"
    run_dpkg -i "$deb"
    grep -q "^PITH_KV_MEMORY=1GiB" "$root/etc/default/pith"
    mkdir -p "$root/var/lib/private/pith/slots"
    run_dpkg -r pith
    [ ! -f "$pith" ] && [ -f "$root/etc/default/pith" ]
fi

echo "purged"
run_dpkg -P pith
# dpkg's own files and the folders that any system has may stay.
find "$root" ! -path "$root/var/lib/dpkg/*" \( ! -type d -o -name '*pith*' \) | sort >"$work/after"
if grep -v -x -F -f "$work/before" "$work/after"; then
    echo "left behind"
    exit 1
fi
