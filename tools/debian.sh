#!/bin/sh
# Put programs into a folder, for the tests that need real ones: from Debian's packages, which are only unpacked, so that
# nobody needs to be root. Libraries of theirs go to lib/debian beside that folder. Where the programs are on PATH, or
# there is no apt, nothing is done: the tests say then why they skip, and fail when CI is set.
# usage: debian.sh FOLDER "PROGRAM ..." PACKAGE ...
set -eu
folder=$1 programs=$2
shift 2
missing=
for program in $programs; do command -v "$program" >/dev/null || missing=$program; done
[ -n "$missing" ] || exit 0
if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
    echo "no $missing on PATH and no apt-get: install it to run the tests that need it" >&2
    exit 0
fi
echo "fetching $1 for the tests ..." >&2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch/lists/partial" "$scratch/cache/archives/partial" "$folder/../lib/debian"
own="-qq -o Dir::Cache=$scratch/cache -o APT::Sandbox::User=$(id -un)"
lists=
fetch() (cd "$scratch" && apt-get $own $lists download "$1")
if ! fetch "$1" 2>/dev/null; then  # there are no lists here, or they are old: make our own
    lists="-o Dir::State::lists=$scratch/lists"
    if ! { apt-get $own $lists update && fetch "$1"; }; then
        echo "$1 cannot be had from apt: the tests that need it cannot run" >&2
        exit 0
    fi
fi
shift
for library in "$@"; do fetch "$library" 2>/dev/null || true; done  # another release may have it under another name
for package in "$scratch"/*.deb; do dpkg-deb -x "$package" "$scratch/tree"; done
for program in $programs; do cp "$scratch"/tree/usr/*bin/"$program" "$folder/"; done
find "$scratch/tree/usr/lib" -name '*.so.*' -exec cp -P {} "$folder/../lib/debian/" \; 2>/dev/null || true
