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
own="-qq -o Acquire::Retries=5 -o Dir::Cache=$scratch/cache -o APT::Sandbox::User=$(id -un)"
lists=
fetch() (cd "$scratch" && apt-get $own $lists download "$1")
lists() {  # our own, where there are none, or old ones
    lists="-o Dir::State::lists=$scratch/lists"
    apt-get $own $lists update
}
for pause in 0 2 10 none; do
    fetch "$1" 2>/dev/null && break
    if [ "$pause" = none ]; then
        echo "$1 cannot be had from apt: the tests that need it cannot run" >&2
        exit 0
    fi
    sleep "$pause"
    lists || true
done
shift
for library in "$@"; do  # another release may have it under another name: then the program says below what it misses
    fetch "$library" 2>/dev/null || { sleep 2; fetch "$library" 2>/dev/null; } || true
done
for package in "$scratch"/*.deb; do dpkg-deb -x "$package" "$scratch/tree"; done
find "$scratch/tree/usr/lib" -name '*.so.*' -exec cp -P {} "$folder/../lib/debian/" \; 2>/dev/null || true
for program in $programs; do
    found=$(ls "$scratch"/tree/usr/*bin/"$program")
    if ! LD_LIBRARY_PATH="$folder/../lib/debian" "$found" --version >"$scratch/said" 2>&1; then
        cat "$scratch/said" >&2
        echo "$program of apt does not run here: the tests that need it cannot run" >&2
        exit 0
    fi
    cp "$found" "$folder/$program.new" && mv "$folder/$program.new" "$folder/$program"
done
