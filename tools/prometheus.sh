#!/bin/sh
# Put prometheus and promtool into a folder, for the tests that ask a real server: from Debian's package, which is only
# unpacked, so that nobody needs to be root. Where they are on PATH, or there is no apt, nothing is done.
# usage: prometheus.sh FOLDER
set -eu
folder=$1
if command -v prometheus >/dev/null && command -v promtool >/dev/null; then exit 0; fi
if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
    echo "no prometheus on PATH and no apt-get: install it to run the tests that ask a real server" >&2
    exit 0
fi
echo "fetching prometheus for the tests ..." >&2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch/lists/partial" "$scratch/cache/archives/partial"
own="-qq -o Dir::Cache=$scratch/cache -o APT::Sandbox::User=$(id -un)"
fetch() (cd "$scratch" && apt-get $own "$@" download prometheus)
if ! fetch 2>/dev/null; then  # there are no lists here, or they are old: make our own
    lists="-o Dir::State::lists=$scratch/lists"
    if ! { apt-get $own $lists update && fetch $lists; }; then
        echo "prometheus cannot be had from apt: the tests that ask a real server cannot run" >&2
        exit 0
    fi
fi
dpkg-deb -x "$scratch"/prometheus_*.deb "$scratch/tree"
cp "$scratch/tree/usr/bin/prometheus" "$scratch/tree/usr/bin/promtool" "$folder/"
