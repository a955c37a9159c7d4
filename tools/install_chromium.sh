#!/usr/bin/env bash
# Install a browser, which only the test of the profile's HTML page needs.
#
#     tools/install_chromium.sh
#
# For Debian 12 and its derivatives, as root (or with sudo), with a network. Quick if a browser is already installed.
set -u

fail() {
    echo "tools/install_chromium.sh: $*" >&2
    exit 1
}

for name in chromium chromium-browser google-chrome; do
    command -v "$name" >/dev/null && exit 0
done
command -v apt-get >/dev/null || fail "apt-get was not found: install chromium with this system's package manager"
as_root=""
if [ "$(id -u)" != 0 ]; then
    sudo -n true 2>/dev/null || fail "the system package chromium is needed: run this script as root"
    as_root="sudo -n"
fi
log=$(mktemp)
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086  # $as_root must be split into words
{ $as_root apt-get update && $as_root apt-get install -y --no-install-recommends chromium; } >"$log" 2>&1 \
    || { tail -n 5 "$log" >&2; fail "apt-get could not install chromium (all of its output is in $log)"; }
rm -f "$log"
