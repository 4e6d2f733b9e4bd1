#!/bin/bash
# Installs the Debian packages that building Modelet needs. Does nothing, and needs neither root nor the network, when all
# of them are there. cmake/ModeletDependencies.cmake is the list as the build sees it.
set -euo pipefail

usage() {
  cat <<USAGE
usage: ${0##*/} [--dev] [--ci] [--packages] [--aarch64] [-h]
  --dev      also the packages that only the tests and sanitizer builds use
  --ci       also prometheus, which runs as a service from then on: some tests use its programs, and are skipped without
  --packages also what make-packages.sh needs
  --aarch64  also the cross compiler, the emulator, and the aarch64 libraries, unpacked into build/aarch64-sysroot
USAGE
}

libraries=(
  libzmq3-dev cppzmq-dev libflatbuffers-dev liblz4-dev libxxhash-dev libsodium-dev libsqlite3-dev
  libtbb-dev libhwy-dev libboost-dev libboost-context-dev libboost-iostreams-dev
  libspdlog-dev nlohmann-json3-dev libcli11-dev libtomlplusplus-dev
  libgtest-dev libgmock-dev
)
packages=(g++ cmake ninja-build pkg-config ccache flatbuffers-compiler python3 xz-utils "${libraries[@]}")
dev_packages=(clang clang-format clang-tidy python3-numpy python3-dev python3-venv mkdocs mkdocs-material chromium)
# The run-time library of the sanitizers. Debian 12 has it only under the name of the compiler's version.
dev_packages+=("$(. /etc/os-release && [[ ${VERSION_CODENAME:-} == bookworm ]] && echo libclang-rt-14-dev || echo libclang-rt-dev)")
package_packages=(lintian dpkg-dev python3-dev python3-venv libzstd-dev liblzma-dev libbz2-dev zlib1g-dev)
aarch64_packages=(g++-aarch64-linux-gnu qemu-user-static)
sysroot=

for argument in "$@"; do
  case $argument in
    --dev) packages+=("${dev_packages[@]}") ;;
    --ci) packages+=(prometheus) ;;
    --packages) packages+=("${package_packages[@]}") ;;
    --aarch64) packages+=("${aarch64_packages[@]}") sysroot=build/aarch64-sysroot ;;
    -h | --help) usage; exit 0 ;;
    *) echo "${0##*/}: unknown argument '$argument'" >&2; usage >&2; exit 2 ;;
  esac
done

fail() {
  printf '%s\n' "$@" >&2
  exit 1
}

command -v dpkg-query >/dev/null ||
  fail "This is not a Debian system (no dpkg-query). Install the equivalents of: ${packages[*]}"

unpack_sysroot() {
  [[ -z $sysroot ]] || bash "$(dirname "$0")/make-sysroot.sh" arm64 "$(dirname "$0")/../$sysroot" "${libraries[@]}"
}

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f='${db:Status-Abbrev}' "$package" 2>/dev/null || true)
  [[ $status == ii* ]] || missing+=("$package")
done
if ((${#missing[@]} == 0)); then
  echo "All ${#packages[@]} packages that Modelet needs are installed."
  unpack_sysroot
  exit 0
fi

echo "Installing ${#missing[@]} of the ${#packages[@]} Debian packages that Modelet needs: ${missing[*]}"
as_root=()
if ((EUID != 0)); then
  command -v sudo >/dev/null ||
    fail "Neither root nor sudo. Ask an administrator to run:" "  apt-get install ${missing[*]}"
  as_root=(sudo)
fi
apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=120)
echo "+ ${apt[*]} update"
"${apt[@]}" update ||
  fail "apt-get update failed. Is the network there, and is /etc/apt/sources.list right?"
echo "+ ${apt[*]} install --yes --no-install-recommends ${missing[*]}"
"${apt[@]}" install --yes --no-install-recommends "${missing[@]}" ||
  fail "apt-get install failed; its messages above say why. Modelet is built with the packages of Debian 12 (bookworm);" \
    "an older release does not have all of them."
unpack_sysroot
