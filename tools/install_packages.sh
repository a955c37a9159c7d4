#!/usr/bin/env bash
# Install system packages that are missing, for the other scripts in this folder.
#
#     tools/install_packages.sh PACKAGE...
#
# For Debian 12 and its derivatives, as root (or with sudo), with a network. Quick if everything is already installed.
set -u

fail() {
    echo "tools/install_packages.sh: $*" >&2
    exit 1
}

missing=""
for package in "$@"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q "ok installed" || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
command -v apt-get >/dev/null || fail "apt-get was not found: install$missing with this system's package manager"
as_root=""
if [ "$(id -u)" != 0 ]; then
    sudo -n true 2>/dev/null || fail "the system packages$missing are needed: run this script as root"
    as_root="sudo -n"
fi
log=$(mktemp)
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086  # $missing and $as_root must be split into words
{ $as_root apt-get update && $as_root apt-get install -y --no-install-recommends $missing; } >"$log" 2>&1 \
    || { tail -n 5 "$log" >&2; fail "apt-get could not install$missing (all of its output is in $log)"; }
rm -f "$log"
