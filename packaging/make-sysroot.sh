#!/bin/bash
# Unpacks Debian packages of another architecture, and all they depend on, into a folder that a cross compiler takes as its sysroot.
# apt works on a state of its own below that folder: nothing is installed on this system, dpkg learns of no second architecture
# (whose development packages may push out the native ones), and no root is needed. Does nothing when the same packages are there.
set -euo pipefail

if (($# < 3)) || [[ $1 == -* ]]; then
  echo "usage: ${0##*/} ARCHITECTURE FOLDER PACKAGE...   (Debian's name of the architecture, e.g. arm64)" >&2
  exit 2
fi
architecture=$1 folder=$2
shift 2
# A cross compiler brings its own copy of these two; the libraries must fit the ones that run in the emulator.
packages=(libc6-dev libstdc++-12-dev "$@")

stamp=$folder/.packages
wanted="$architecture ${packages[*]}"
if [[ -f $stamp && $(<"$stamp") == "$wanted" ]]; then
  echo "$folder has the $architecture libraries."
  exit 0
fi
echo "Unpacking the $architecture libraries into $folder"

rm -rf "$folder"
mkdir -p "$folder"
apt_home=$(mktemp -d "$(dirname "$folder")/.apt-$architecture-XXXXXX")
trap 'rm -rf "$apt_home"' EXIT
apt_home=$(realpath "$apt_home")
mkdir -p "$apt_home"/{lists,archives}/partial
: >"$apt_home/status"
apt=(apt-get -q
  -o APT::Architecture="$architecture" -o APT::Architectures="$architecture"
  -o Dir::State="$apt_home" -o Dir::State::lists="$apt_home/lists" -o Dir::State::status="$apt_home/status"
  -o Dir::Cache="$apt_home" -o Dir::Cache::archives="$apt_home/archives"
  -o Dir::Log="$apt_home" -o APT::Sandbox::User="$(id -un)")
"${apt[@]}" update >"$apt_home/log" 2>&1 &&
  "${apt[@]}" install --download-only --yes --no-install-recommends "${packages[@]}" >>"$apt_home/log" 2>&1 || {
  cat "$apt_home/log" >&2
  echo "${0##*/}: apt could not fetch the $architecture packages; its messages above say why." >&2
  exit 1
}
for package in "$apt_home"/archives/*.deb; do dpkg-deb --extract "$package" "$folder"; done
# Links such as libm.so -> /lib/aarch64-linux-gnu/libm.so.6 would lead out of the folder.
find "$folder" -type l -lname '/*' -printf '%p\t%l\n' |
  while IFS=$'\t' read -r link target; do ln -sfnr "$folder$target" "$link"; done
echo "$wanted" >"$stamp"
