#!/bin/bash
# Builds Horovod (Gloo, PyTorch, no MPI) into a virtual environment on top of Debian's python3-torch.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
environment=$(cd "$here/../.." && pwd)/build/horovod-venv
log=
requirements=$here/requirements-horovod.txt
build_tools=(wheel==0.40.0 packaging==23.1)  # its setup.py imports both
packages=(python3-venv python3-dev python3-torch libtorch-dev pybind11-dev python3-numpy python3-psutil python3-yaml libopenblas0-openmp cmake g++ make)

usage() {
  cat <<USAGE
usage: experiments/baselines/install_horovod.sh [-h] [FOLDER]
  FOLDER  of the virtual environment (default: build/horovod-venv)

Pinned versions: ${requirements##*/}. The first run compiles for about five minutes on one core, at low priority; once it has succeeded
a run only checks. Needs the network, and these Debian packages, which it does not install by itself:
  ${packages[*]}
Exit codes: 0 Horovod works, 1 it does not (the last lines say why), 2 wrong arguments.
USAGE
}

fail() {
  printf 'install_horovod.sh: %s\n' "$@" >&2
  exit 1
}

works() {
  "$environment/bin/python" -c 'import horovod.torch as hvd; hvd.init(); assert hvd.gloo_built() and hvd.size() == 1' 2>&1
}

# Finds the first known reason in the log of a failed build.
explain() {
  local pattern reason
  while IFS=$'\t' read -r pattern reason; do
    if grep -qE -- "$pattern" "$log"; then
      echo "$reason"
      return
    fi
  done <<'KNOWN'
torch/extension.h: No such file	the headers of PyTorch are missing: apt-get install libtorch-dev
pybind11/pybind11.h: No such file	the headers of pybind11 are missing: apt-get install pybind11-dev
Python.h: No such file	the headers of Python are missing: apt-get install python3-dev
[Nn]o module named '?torch	this Python has no torch: apt-get install python3-torch
CMake .*or higher is required	CMake is too old
No CMAKE_CXX_COMPILER could be found	there is no C++ compiler: apt-get install g++
Killed signal|internal compiler error: Killed	the compiler was killed, most likely for want of memory
Could not find a version|No matching distribution	the package index that pip uses does not have a pinned version
Temporary failure in name resolution|Connection refused|timed out|NewConnectionError	the package index cannot be reached
No space left on device	the disk is full
KNOWN
  echo "for a reason that this script does not know"
}

case ${1-} in
  -h | --help) usage; exit 0 ;;
  -*) echo "install_horovod.sh: unknown argument '$1'" >&2; usage >&2; exit 2 ;;
  ?*) environment=$1 ;;
esac
(($# <= 1)) || { usage >&2; exit 2; }

if [[ -x $environment/bin/python ]] && works >/dev/null; then
  echo "Horovod works in $environment"
  exit 0
fi

missing=()
for package in "${packages[@]}"; do
  [[ $(dpkg-query -W -f='${db:Status-Abbrev}' "$package" 2>/dev/null || true) == ii* ]] || missing+=("$package")
done
((${#missing[@]} == 0)) || fail "missing packages: apt-get install --no-install-recommends ${missing[*]}"

# Debian's interpreter, because another python3 that comes first on PATH does not see Debian's torch.
/usr/bin/python3 -m venv --clear --system-site-packages "$environment"
log=$environment/build.log
export HOROVOD_WITH_PYTORCH=1 HOROVOD_WITH_GLOO=1 HOROVOD_CPU_OPERATIONS=GLOO
export HOROVOD_WITHOUT_MPI=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1
echo "building Horovod, minutes; log: $log"
pip=(nice "$environment/bin/python" -m pip install --disable-pip-version-check)
# --no-build-isolation, because an isolated build would not see Debian's torch.
{ "${pip[@]}" "${build_tools[@]}" && "${pip[@]}" --verbose --no-build-isolation --use-pep517 --requirement "$requirements"; } >"$log" 2>&1 ||
  fail "the build failed: $(explain)" "log: $log"
problem=$(works) || fail "Horovod was built but does not start: $problem"
echo "Horovod works in $environment"
