#!/bin/bash
# Makes build/venv, a virtual environment with what the tests of the Python package need. Installs the package into it from the
# build folder of a preset, so that only the module itself is compiled. A second call does only what has changed. With $CI, pip
# fetches the build requirements of pyproject.toml into an environment of their own, as for users.
set -euo pipefail
cd "$(dirname "$0")/../.."

preset=${1:?usage: tests/python/make_venv.sh PRESET}
needs=(tests/python/requirements.txt tests/python/requirements-ray.txt)
venv=build/venv

if ! cmp -s <(cat "${needs[@]}") "$venv/requirements.txt"; then
  echo "Installing what ${needs[*]} name into $venv"
  rm -rf "$venv"
  python3 -m venv "$venv"
  install=("$venv/bin/pip" install --quiet --disable-pip-version-check --no-compile --requirement)
  "${install[@]}" "${needs[0]}"
  "${install[@]}" "${needs[1]}" || echo "Ray could not be installed: its test will be skipped" >&2
  cat "${needs[@]}" >"$venv/requirements.txt"
fi

# Settings of the preset; pyproject.toml has others for users.
cached() { sed -n "s/^$1:[A-Z]*=//p" "build/$preset/CMakeCache.txt"; }
batch=$(cached CMAKE_UNITY_BUILD_BATCH_SIZE)  # empty: CMake's own default
# This file names the environment that configured the folder last. From another one, the cache of CMake would be thrown away.
rm -f "build/$preset/.skbuild-info.json"
isolation=()
[[ -n ${CI:-} ]] || isolation=(--no-build-isolation)  # it would compile the module again each time
"$venv/bin/pip" install --quiet --disable-pip-version-check "${isolation[@]}" --no-deps --force-reinstall . \
  --config-settings=build-dir="build/$preset" \
  --config-settings=install.strip=true \
  --config-settings=cmake.build-type="$(cached CMAKE_BUILD_TYPE)" \
  --config-settings=cmake.define.MODELET_BUILD_TESTS="$(cached MODELET_BUILD_TESTS)" \
  --config-settings=cmake.define.CMAKE_UNITY_BUILD="$(cached CMAKE_UNITY_BUILD)" \
  --config-settings=cmake.define.CMAKE_UNITY_BUILD_BATCH_SIZE="${batch:-8}"
