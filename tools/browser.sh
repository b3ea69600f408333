#!/bin/sh
# Install Chromium for the tests of the page, where that can be done without asking: as root, with apt.
# Elsewhere nothing happens; the tests say then why they skip, and fail when CI is set.
set -eu
for name in chromium chromium-browser google-chrome chrome; do
    command -v "$name" >/dev/null 2>&1 && exit 0
done
[ -n "${CHROMIUM:-}" ] && exit 0
[ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 || exit 0
echo "installing chromium for the tests of the page ..." >&2
export DEBIAN_FRONTEND=noninteractive
said=$(mktemp)
trap 'rm -f "$said"' EXIT
# another apt may be at work, and a mirror may hiccup
patient="-qq -o DPkg::Lock::Timeout=600 -o Acquire::Retries=5"
install() { apt-get $patient install -y --no-install-recommends chromium; }
for pause in 1 5 20; do
    { install || { apt-get $patient update && install; }; } >"$said" 2>&1 && exit 0
    sleep "$pause"
done
tail -n 20 "$said" >&2
echo "chromium could not be installed: the page is not tested in a browser" >&2
