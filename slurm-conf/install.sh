#!/bin/sh
# Puts slurm-serve in place on this host, or, with DESTDIR, into a folder (then without root). `make install` and the archive of
# `make dist` use it; no compiler and no make are needed here.
#
#   install.sh [install|uninstall]
#
#   DESTDIR=        in front of every path
#   PREFIX=         /usr/local: PREFIX/bin, PREFIX/lib/slurm-serve, PREFIX/lib/systemd/system, PREFIX/share/slurm-serve
#   SYSCONFDIR=     /etc: SYSCONFDIR/slurm-serve
#   SLURM_CONF_DIR= SYSCONFDIR/slurm: its plugstack.conf.d
#   UNITDIR=        PREFIX/lib/systemd/system
#   SLURM_VERSION=  the release that the plugin is made for; without it, that of the Slurm found here
#   BUILT=          the folder of the programs and the plugin, as built
#   PURGE=1         uninstall removes SYSCONFDIR/slurm-serve and /var/lib/slurm-serve too
#
# Every file appears whole or not at all (written beside and renamed), so a Slurm at work never reads half of one. Settings that were
# edited stay; the new ones then lie beside them as FILE.new.
set -eu
umask 022

here=$(cd "$(dirname "$0")" && pwd)
DESTDIR=${DESTDIR:-}
PREFIX=${PREFIX:-/usr/local}
SYSCONFDIR=${SYSCONFDIR:-/etc}
SLURM_CONF_DIR=${SLURM_CONF_DIR:-$SYSCONFDIR/slurm}
UNITDIR=${UNITDIR:-$PREFIX/lib/systemd/system}
bin=$PREFIX/bin
lib=$PREFIX/lib/slurm-serve
share=$PREFIX/share/slurm-serve
settings=$SYSCONFDIR/slurm-serve
snippet=$SLURM_CONF_DIR/plugstack.conf.d/serve.conf

say() { echo "slurm-serve: $*"; }
fail() { echo "slurm-serve: $*" >&2; exit 1; }

# put MODE FROM TO
put() {
    mkdir -p "$DESTDIR$(dirname "$3")"
    cp "$2" "$DESTDIR$3.$$.new"
    chmod "$1" "$DESTDIR$3.$$.new"
    mv -f "$DESTDIR$3.$$.new" "$DESTDIR$3"
}

# The same, with our usual paths replaced by those chosen.
put_text() {
    text=$(mktemp)
    sed -e "s|/usr/local/bin/|$bin/|g" -e "s|/usr/local/lib/slurm-serve/|$lib/|g" -e "s|/usr/lib/slurm-serve/|$lib/|g" "$2" >"$text"
    put "$1" "$text" "$3"
    rm -f "$text"
}

# put_settings FROM TO: what an admin may have edited. A copy of what was installed last tells.
put_settings() {
    last=$share/installed/$(basename "$2")
    fresh=$(mktemp)
    sed -e "s|/usr/lib/slurm-serve/|$lib/|g" "$1" >"$fresh"
    if [ ! -e "$DESTDIR$2" ] || cmp -s "$DESTDIR$2" "$DESTDIR$last"; then
        put 644 "$fresh" "$2"
        rm -f "$DESTDIR$2.new"
    elif ! cmp -s "$DESTDIR$2" "$fresh" && ! cmp -s "$DESTDIR$last" "$fresh"; then
        put 644 "$fresh" "$2.new"
        say "$2 was edited and stays; the new one is $2.new"
    fi
    put 644 "$fresh" "$last"
    rm -f "$fresh"
}

built() {
    if [ -n "${BUILT:-}" ]; then
        echo "$BUILT"
    elif [ -d "$here/../bin" ]; then
        echo "$here/../bin"
    else
        echo "$here/../target/release"
    fi
}

put_plugin() {
    # Stamped where nobody loads it from, then put in place: there is no moment at which Slurm finds one of another release.
    stamped=$(mktemp)
    cp "$from/libspank_serve.so" "$stamped"
    if [ -n "${SLURM_VERSION:-}" ]; then
        "$from/sserve" plugin stamp "$stamped" --slurm "$SLURM_VERSION" >/dev/null
    elif ! "$from/sserve" plugin stamp "$stamped" >/dev/null; then
        rm -f "$stamped"
        fail "no Slurm was found here: say its release, SLURM_VERSION=24.11.5"
    fi
    put 644 "$stamped" "$lib/spank_serve.so"
    rm -f "$stamped"
}

do_install() {
    from=$(built)
    for file in slurm-serve sserve libspank_serve.so; do
        [ -f "$from/$file" ] || fail "there is no $file in $from: build it first (make release), or set BUILT"
    done
    put 755 "$from/slurm-serve" "$bin/slurm-serve"
    put 755 "$from/sserve" "$bin/sserve"
    put_plugin
    put 755 "$here/health-check.sh" "$lib/health-check"
    for unit in "$here"/systemd/*.service; do
        put_text 644 "$unit" "$UNITDIR/$(basename "$unit")"
    done
    for recipe in "$here"/models.d/*.toml; do
        put 644 "$recipe" "$share/models.d/$(basename "$recipe")"
    done
    mkdir -p "$DESTDIR$settings/models.d"
    put_settings "$here/config.toml" "$settings/config.toml"
    # Last: from here on Slurm loads the plugin.
    put_settings "$here/plugstack.conf.d/serve.conf" "$snippet"
    if [ -z "$DESTDIR" ]; then
        plugstack=$SLURM_CONF_DIR/plugstack.conf
        grep -qs "^[[:space:]]*include[[:space:]].*plugstack\.conf\.d" "$plugstack" ||
            say "$plugstack does not include plugstack.conf.d yet: docs/install.md, \"Tell Slurm\""
    fi
    say "installed below $DESTDIR$PREFIX and $DESTDIR$SYSCONFDIR; recipes to choose from are in $DESTDIR$share/models.d"
}

do_uninstall() {
    # First: from here on Slurm loads it no more, and does not miss it.
    rm -f "$DESTDIR$snippet" "$DESTDIR$snippet.new"
    rm -f "$DESTDIR$UNITDIR/slurm-serve-agent.service" "$DESTDIR$UNITDIR/slurm-serve-gateway.service"
    rm -f "$DESTDIR$bin/slurm-serve" "$DESTDIR$bin/sserve"
    rm -rf "$DESTDIR$lib" "$DESTDIR$share"
    if [ -n "${PURGE:-}" ]; then
        rm -rf "$DESTDIR$settings" "$DESTDIR/var/lib/slurm-serve"
        say "removed, settings and state too"
    else
        say "removed; $DESTDIR$settings stays (PURGE=1 removes it and /var/lib/slurm-serve)"
    fi
}

case ${1:-install} in
install) do_install ;;
uninstall) do_uninstall ;;
*) fail "usage: install.sh [install|uninstall]" ;;
esac
