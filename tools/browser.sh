#!/bin/sh
# Install Chromium for the tests of the page, where that can be done without asking: as root, with apt.
# Elsewhere nothing happens; the tests say then why they skip, and fail when CI is set.
set -eu
for name in chromium chromium-browser google-chrome chrome; do
    command -v "$name" >/dev/null 2>&1 && exit 0
done
[ -n "${CHROMIUM:-}" ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing chromium for the tests of the page ..." >&2
    export DEBIAN_FRONTEND=noninteractive
    { apt-get install -qq -y --no-install-recommends chromium || { apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium; }; } >/dev/null 2>&1 ||
        echo "chromium could not be installed: the page is not tested in a browser" >&2
fi
