#!/bin/bash
# Installs what against_peers.py and compare_pytorch.py compare Modelet with, in pinned versions, into build/peers.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=$(cd "$here/../.." && pwd)/build/peers
python=${PEERS_PYTHON:-/usr/bin/python3}

# The packages of each peer. They are installed without their dependencies: libpecos alone asks for torch and transformers, which its
# linear models do not use. torch gets its dependencies, because it names each of them with a version.
matrices=(numpy==1.26.4 scipy==1.13.1 scikit-learn==1.5.2 joblib==1.6.0 threadpoolctl==3.8.0)
omikuji=(omikuji==0.5.2 milksnake==0.1.6 cffi==2.1.1 pycparser==3.12 numpy==1.26.4)
pecos=(libpecos==1.2.8 cloudpickle==3.1.2 "${matrices[@]}")
napkinxc=(napkinxc==0.7.2 "${matrices[@]}")
torch=(torch==2.15.0 numpy==2.4.6)
fasttext=fasttext==0.9.3
all=(omikuji pecos napkinxc torch fasttext)

usage() {
  cat <<USAGE
usage: experiments/bench/install_peers.sh [-h] [PEER...]
  PEER  of ${all[*]} (default: all)

Needs the package index that pip uses, Debian's python3-venv, and g++ for fastText. ${python} makes the environments (PEERS_PYTHON names
another one). torch comes with CUDA libraries that nobody uses here, 5.4 GB in all; PIP_INDEX_URL can name an index of CPU wheels, which are
far smaller. What is there in the pinned version is left alone. What cannot be installed is named, with the reason; the comparison
then leaves it out. Exit codes: 0 all that was asked for is there, 1 something is not, 2 wrong arguments.
USAGE
}

# has ENVIRONMENT MODULE PIN...: whether the module can be imported, and the packages have these versions.
has() {
  "$folder/$1/bin/python" - "${@:2}" 2>&1 <<'PYTHON'
import importlib, importlib.metadata, sys
for pin in sys.argv[2:]:
    name, _, wanted = pin.partition("==")
    found = importlib.metadata.version(name).partition("+")[0]
    if found != wanted:
        sys.exit(f"{name} {found} is installed instead of {wanted}")
importlib.import_module(sys.argv[1])
PYTHON
}

# install_package PEER ENVIRONMENT MODULE DEPENDENCIES PIN...
install_package() {
  local peer=$1 environment=$2 module=$3 dependencies=$4 problem
  shift 4
  if [[ -x $folder/$environment/bin/python ]] && has "$environment" "$module" "$@" >/dev/null; then
    echo "$peer: there"
    return
  fi
  [[ -x $folder/$environment/bin/pip ]] || "$python" -m venv --clear "$folder/$environment" >"$folder/$peer.log" 2>&1 ||
    { unavailable "$peer" "no virtual environment can be made with $python (Debian: apt-get install python3-venv)"; return; }
  echo "$peer: installing $*"
  # shellcheck disable=SC2086 # several words or none
  nice "$folder/$environment/bin/pip" install --disable-pip-version-check --prefer-binary $dependencies "$@" >"$folder/$peer.log" 2>&1 ||
    { unavailable "$peer" "$(explain "$folder/$peer.log")"; return; }
  problem=$(has "$environment" "$module" "$@") || { unavailable "$peer" "installed, but it does not work: ${problem##*$'\n'}"; return; }
  echo "$peer: installed"
}

# Compiles the program from the source in the Python package, with the instructions of this machine's CPU. Debian's program uses only
# those of any CPU.
install_fasttext() {
  local log=$folder/fasttext.log source
  if [[ -x $folder/fasttext && $(cat "$folder/fasttext.version" 2>/dev/null || true) == "$fasttext" ]]; then
    echo "fasttext: there"
    return
  fi
  command -v g++ >/dev/null || { unavailable fasttext "there is no compiler (Debian: apt-get install g++)"; return; }
  echo "fasttext: compiling $fasttext"
  source=$(mktemp -d)
  if "$python" -m venv "$source/venv" >"$log" 2>&1 &&
    "$source/venv/bin/pip" download --disable-pip-version-check --no-deps --no-binary :all: --dest "$source" "$fasttext" >>"$log" 2>&1 &&
    tar -xzf "$source"/fasttext-*.tar.gz -C "$source" --strip-components=1 >>"$log" 2>&1 &&
    nice g++ -O3 -march=native -funroll-loops -std=c++17 -pthread "$source"/src/*.cc -o "$folder/fasttext.new" >>"$log" 2>&1; then
    mv "$folder/fasttext.new" "$folder/fasttext"
    echo "$fasttext" >"$folder/fasttext.version"
    echo "fasttext: installed"
  else
    unavailable fasttext "$(explain "$log")"
  fi
  rm -rf "$source"
}

failed=()
unavailable() {
  failed+=("$1")
  printf '%s: not installed: %s\n' "$1" "$2 (log: $folder/$1.log)" >&2
}

# Finds the first known reason in a log.
explain() {
  local pattern reason
  while IFS=$'\t' read -r pattern reason; do
    if grep -qE -- "$pattern" "$1"; then
      echo "$reason"
      return
    fi
  done <<'KNOWN'
Temporary failure in name resolution|Connection refused|timed out|NewConnectionError	the package index cannot be reached
No space left on device	the disk is full
No matching distribution|Could not find a version	the package index has none of this version for this Python and CPU
Killed signal|internal compiler error: Killed	the compiler was killed, most likely for want of memory
error: command .* failed|Failed building wheel	it has no wheel for this Python and CPU, and cannot be compiled
KNOWN
  echo "for a reason that this script does not know"
}

wanted=()
for argument in "$@"; do
  case $argument in
    -h | --help) usage; exit 0 ;;
    *)
      [[ " ${all[*]} " == *" $argument "* ]] || { echo "install_peers.sh: unknown argument '$argument'" >&2; usage >&2; exit 2; }
      wanted+=("$argument")
      ;;
  esac
done
((${#wanted[@]} > 0)) || wanted=("${all[@]}")

mkdir -p "$folder"
for peer in "${wanted[@]}"; do
  case $peer in
    omikuji) install_package omikuji trees omikuji --no-deps "${omikuji[@]}" ;;
    pecos) install_package pecos trees pecos.xmc.xlinear --no-deps "${pecos[@]}" ;;
    napkinxc) install_package napkinxc trees napkinxc.models --no-deps "${napkinxc[@]}" ;;
    torch) install_package torch torch torch "" "${torch[@]}" ;;
    fasttext) install_fasttext ;;
  esac
done
((${#failed[@]} == 0)) || { echo "left out of comparisons: ${failed[*]}" >&2; exit 1; }
