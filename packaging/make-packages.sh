#!/bin/bash
# Makes what users install: Debian packages for the release on which this runs, and one archive for any Linux.
set -euo pipefail

usage() {
  cat <<USAGE
usage: ${0##*/} [--out FOLDER] [--preset release] [--only debian|archive] [-h]
  --out     where the packages go (default: build/packages/out)
  --preset  of CMakePresets.json: another one, such as dev, makes packages to try things with, from what is compiled
            for it already (with ccache)
  --only    the Debian packages, or the archive

Debian packages: modelet (the program and the documents), modelet-agent, modelet-scheduler, python3-modelet,
libmodelet-dev. They need the libraries of this release; make them for another release in a root of that release. If
lintian is installed, its errors are errors.
The archive: modelet-VERSION-linux-ARCHITECTURE.tar.xz. Its programs need only a C library, from 2.34 on, and run in
whichever folder it is unpacked. Make it on Debian 12.
Installs the Debian packages that are missing for the build, and needs the network for them.
USAGE
}

out= preset=release only=
while (($# > 0)); do
  case $1 in
    --out) out=$(realpath -m "${2:?--out needs a folder}"); shift 2 ;;
    --preset) preset=${2:?--preset needs a name}; shift 2 ;;
    --only) only=${2:?--only needs debian or archive}; shift 2 ;;
    -h | --help) usage; exit 0 ;;
    *) echo "${0##*/}: unknown argument '$1'" >&2; usage >&2; exit 2 ;;
  esac
done
[[ -z $only || $only == debian || $only == archive ]] || { echo "${0##*/}: --only is debian or archive, not '$only'" >&2; exit 2; }
cd "$(dirname "$0")/.."
out=${out:-$PWD/build/packages/out}
mkdir -p "$out"
bash packaging/install-dependencies.sh --packages
options=(-DMODELET_BUILD_TESTS=OFF)
if command -v ccache >/dev/null; then options+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache); fi

# configure FOLDER OPTION...
configure() {
  cmake --preset "$preset" -B "$1" "${options[@]}" "${@:2}" >"$1.log" 2>&1 || { cat "$1.log" >&2; exit 1; }
}

make_debian() {
  local build=build/packages/debian tools=build/packages/tools
  # nanobind, which only the Python module needs, is not in every release of Debian.
  [[ -x $tools/bin/python ]] || /usr/bin/python3 -m venv "$tools"
  "$tools/bin/pip" install --quiet --constraint packaging/wheel-tools.txt nanobind
  configure "$build" -DCMAKE_INSTALL_PREFIX=/usr -DMODELET_BUILD_PYTHON=ON -DPython_EXECUTABLE="$PWD/$tools/bin/python"
  cmake --build "$build"
  rm -f "$out"/*.deb
  (cd "$build" && cpack -G DEB -B "$PWD/cpack")
  mv "$build"/cpack/*.deb "$out"
  if ! command -v lintian >/dev/null; then
    echo "lintian is not installed: the packages are not checked"
  elif ! lintian --fail-on error --allow-root "$out"/*.deb; then
    echo "${0##*/}: lintian has found errors" >&2
    exit 1
  fi
}

make_archive() {
  local build=build/packages/portable libraries=$PWD/build/packages/libraries name folder
  bash packaging/make-portable-libraries.sh "$libraries"
  configure "$build" -DCMAKE_INSTALL_PREFIX=/usr/local -DMODELET_PORTABLE_LIBRARIES="$libraries"
  cmake --build "$build" --target modelet-manual modelet-agent-manual modelet-scheduler-manual
  name=modelet-$(sed -n 's/^CMAKE_PROJECT_VERSION:.*=//p' "$build/CMakeCache.txt")-linux-$(uname -m)
  folder=$build/archive/$name
  rm -rf "$folder"
  for component in client agent scheduler; do
    cmake --install "$build" --prefix "$folder" --strip --component $component >/dev/null
  done
  python3 -B packaging/check-portable.py "$folder"/bin/*
  for program in modelet modelet-agent modelet-scheduler; do "$folder/bin/$program" --version; done
  tar -C "$build/archive" --sort=name --owner=0 --group=0 --numeric-owner -cJf "$out/$name.tar.xz" "$name"
}

mkdir -p build/packages
[[ $only == archive ]] || make_debian
[[ $only == debian ]] || make_archive
ls -l "$out"
