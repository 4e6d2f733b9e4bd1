#!/bin/bash
# Installs what is missing, builds, and runs every test. The last line is the sum of all ctest runs. The exit code is 0 only if
# all of them passed. A second run builds only what has changed.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<USAGE
usage: tests/run.sh [--preset dev|asan-ubsan|tsan|aarch64]... [--jobs N] [-h]
Without --preset: the first three. Of the sanitizer builds only the tests that are labelled for them are built and run
(LABELS asan: parses input; LABELS tsan: threads), and the fuzz targets. aarch64 is cross-built and emulated: the tests
with the label asan.
USAGE
}

presets=()
jobs=$(nproc)
while (($# > 0)); do
  case $1 in
    --preset) presets+=("${2:?--preset needs a value}"); shift 2 ;;
    --jobs | -j) jobs=${2:?--jobs needs a value}; shift 2 ;;
    -h | --help) usage; exit 0 ;;
    *) echo "tests/run.sh: unknown argument '$1'" >&2; usage >&2; exit 2 ;;
  esac
done
((${#presets[@]} > 0)) || presets=(dev asan-ubsan tsan)

needed=(--dev)
[[ -z ${CI:-} ]] || needed+=(--ci)
[[ " ${presets[*]} " != *" aarch64 "* ]] || needed+=(--aarch64)

passed=0 failed=0 failures=() times=()
# timed NAME COMMAND...: runs the command and keeps how long it took.
timed() {
  local name=$1 begun=$SECONDS
  shift
  "$@"
  times+=("$(printf '%3d:%02d  %s' $(((SECONDS - begun) / 60)) $(((SECONDS - begun) % 60)) "$name")")
}
build_preset() {
  cmake --preset "$1" "${options[@]}" >"build/$1-configure.log" 2>&1 || { cat "build/$1-configure.log"; exit 1; }
  cmake --build --preset "$1" --parallel "$jobs" "${@:2}"
}
python_package() {
  if tests/python/make_venv.sh "$1"; then
    export MODELET_PYTHON_TESTS=required
  elif [[ -e build/venv/requirements.txt ]]; then  # written once everything that the package needs is there
    echo "== $1: the Python package could not be built" >&2
    failures+=("$1: Python package")
  else
    echo "== $1: what the Python package needs could not be installed into build/venv: it is not tested" >&2
  fi
}
browser() {
  tests/browser/run.sh --install ||
    echo "== $1: what the tests in a browser need could not be installed into build/browser: they are skipped" >&2
}
chart() {
  sh packaging/helm/check.sh --install ||
    echo "== $1: helm could not be installed into build/helm: the chart is not checked" >&2
}
# Fails only if ctest did not reach its summary, because failed tests are counted.
test_preset() {
  local preset=$1 log=build/$1-ctest.log summary bad all
  shift
  # A test that ran out of time on a busy machine gets a second chance; one that failed gets none.
  ctest --preset "$preset" --no-tests=error --repeat after-timeout:2 --output-junit "$PWD/build/$preset-ctest.xml" "$@" 2>&1 |
    tee "$log" || failures+=("$preset")
  # "97% tests passed, 1 tests failed out of 30"
  summary=$(grep -E '^[0-9]+% tests passed' "$log") || { echo "== $preset: ctest did not finish" >&2; exit 1; }
  bad=$(sed -E 's/.*, ([0-9]+) tests failed.*/\1/' <<<"$summary")
  all=$(sed -E 's/.* out of ([0-9]+).*/\1/' <<<"$summary")
  failed=$((failed + bad)) passed=$((passed + all - bad))
}
run_preset() {
  # Tests wait for other threads and programs much of the time, and those without a sanitizer most of the time.
  local preset=$1 target=() filter=() at_once=$((jobs + jobs / 2))
  case $preset in
    dev) at_once=$((2 * jobs)) ;;
    asan-ubsan) target=(--target asan-tests) filter=(-L '^(asan|fuzz)$') ;;
    aarch64) target=(--target asan-tests) filter=(-L '^asan$') ;;
    tsan) target=(--target tsan-tests) filter=(-L '^tsan$') ;;
    *) echo "tests/run.sh: unknown preset '$preset'" >&2; exit 2 ;;
  esac
  echo "== $preset: build"
  timed "$preset: build" build_preset "$preset" "${target[@]}"
  if [[ $preset == dev ]]; then
    # Without a package index, everything except the Python package, the page and the chart can be tested; their tests say that they are skipped.
    timed "$preset: Python package" python_package "$preset"
    timed "$preset: browser" browser "$preset"
    timed "$preset: helm" chart "$preset"
  fi
  echo "== $preset: test"
  timed "$preset: test" test_preset "$preset" --parallel "$at_once" "${filter[@]}"
}

mkdir -p build
timed "installing packages" bash packaging/install-dependencies.sh "${needed[@]}"
options=()
# If nothing is built twice, larger units compile faster.
if [[ -n ${CI:-} ]]; then options+=(-DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=16); fi
if command -v ccache >/dev/null; then options+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
for preset in "${presets[@]}"; do run_preset "$preset"; done

echo "== how long each part took, in minutes"
printf '%s\n' "${times[@]}"

((failed == 0)) || python3 tests/failed_tests.py "${presets[@]/%/-ctest.xml}"
((${#failures[@]} == 0)) || echo "== failed: ${failures[*]}"
echo "$((100 * passed / (passed + failed)))% tests passed, $failed tests failed out of $((passed + failed))"
((${#failures[@]} == 0))
