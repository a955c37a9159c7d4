#!/usr/bin/env bash
# Install a browser, which only the test of the profile's HTML page needs: see tools/install_packages.sh.
set -u

for name in chromium chromium-browser google-chrome; do
    command -v "$name" >/dev/null && exit 0
done
exec "$(dirname "${BASH_SOURCE[0]}")/install_packages.sh" chromium
