#!/bin/bash
# Builds, as archives, the libraries that Debian has only as shared ones, for programs that run on any Linux with a C library
# that is new enough (cmake/ModeletPortable.cmake). The sources are those of this Debian release's own packages, in the same
# versions as the headers with which Modelet is compiled. Does nothing when the archives are there.
set -euo pipefail

if (($# != 1)) || [[ $1 == -* ]]; then
  echo "usage: ${0##*/} FOLDER    libraries go to FOLDER/lib; sources and logs are in FOLDER/work. Needs the network" >&2
  exit 2
fi
mkdir -p "$1"
folder=$(realpath "$1") work=$(realpath "$1")/work
packages=(fmtlib spdlog highway onetbb zeromq3)
versions=$(dpkg-query -W -f='${source:Package} ${source:Version}\n' libfmt-dev libspdlog-dev libhwy-dev libtbb-dev libzmq3-dev libtomlplusplus-dev)
if [[ -f $folder/versions && $(<"$folder/versions") == "$versions" ]]; then
  echo "$folder has the libraries."
  exit 0
fi

rm -rf "$folder"
mkdir -p "$work"/{lists,archives}/partial "$work/lists"
# This release's sources, with an apt state of their own: nothing changes on this system.
for file in /etc/apt/sources.list.d/*.sources; do
  [[ ! -f $file ]] || { sed 's/^Types: .*/Types: deb deb-src/' "$file"; echo; } >>"$work/all.sources"
done
if [[ -s /etc/apt/sources.list ]]; then
  sed -n 's/^deb /deb-src /p; /^deb /p' /etc/apt/sources.list >"$work/all.list"
fi
sources=$work/all.sources
[[ -s $sources ]] || sources=$work/all.list
apt=(apt-get -q -o Dir::Etc::SourceList="$sources" -o Dir::Etc::SourceParts=/dev/null -o Dir::State::Lists="$work/lists"
  -o Dir::Cache="$work" -o APT::Sandbox::User="$(id -un)")

logged() {
  "$@" >>"$work/log" 2>&1 || {
    tail -40 "$work/log" >&2
    echo "${0##*/}: this failed: $* (all of it: $work/log)" >&2
    exit 1
  }
}
cd "$work"
logged "${apt[@]}" update
logged "${apt[@]}" source --download-only "${packages[@]}"

launcher=
if command -v ccache >/dev/null; then launcher=ccache; fi
# build PACKAGE OPTION...
build() {
  echo "building $1"
  logged dpkg-source --no-check -x "$work/$1"_*.dsc "$work/$1"
  logged cmake -S "$work/$1" -B "$work/$1-build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX="$folder" \
    -DCMAKE_INSTALL_LIBDIR=lib -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DBUILD_SHARED_LIBS=OFF -DCMAKE_PREFIX_PATH="$folder" \
    -DCMAKE_C_COMPILER_LAUNCHER="$launcher" -DCMAKE_CXX_COMPILER_LAUNCHER="$launcher" "${@:2}"
  logged cmake --build "$work/$1-build"
  logged cmake --install "$work/$1-build"
}
build fmtlib -DFMT_TEST=OFF -DFMT_DOC=OFF
build spdlog -DSPDLOG_FMT_EXTERNAL=ON -DSPDLOG_BUILD_EXAMPLE=OFF -DSPDLOG_BUILD_TESTS=OFF
build highway -DBUILD_TESTING=OFF -DHWY_ENABLE_TESTS=OFF -DHWY_ENABLE_EXAMPLES=OFF -DHWY_ENABLE_CONTRIB=OFF
build onetbb -DTBB_TEST=OFF -DTBB_STRICT=OFF -DTBBMALLOC_BUILD=OFF -DTBB_DISABLE_HWLOC_AUTOMATIC_SEARCH=ON
build zeromq3 -DBUILD_SHARED=OFF -DBUILD_STATIC=ON -DBUILD_TESTS=OFF -DWITH_PERF_TOOL=OFF -DWITH_DOCS=OFF -DENABLE_CURVE=ON \
  -DWITH_LIBSODIUM=ON -DWITH_LIBBSD=OFF -DWITH_OPENPGM=OFF -DWITH_NORM=OFF -DWITH_TLS=OFF -DENABLE_WS=OFF -DENABLE_DRAFTS=OFF
echo "building tomlplusplus"  # its headers have the whole library, for one file to compile
printf '#define TOML_IMPLEMENTATION\n#define TOML_HEADER_ONLY 0\n#include <toml++/toml.h>\n' >"$work/toml.cc"
logged c++ -std=c++17 -O2 -fPIC -c "$work/toml.cc" -o "$work/toml.o"
logged ar rcs "$folder/lib/libtomlplusplus.a" "$work/toml.o"
rm -rf "$work"/*-build "${packages[@]/#/$work/}"
echo "$versions" >"$folder/versions"
ls "$folder"/lib/*.a
