#!/bin/bash
# Run this first. It installs what is missing, builds, trains experiments/quickstart.toml on a scheduler and four agents on this machine,
# and prints the result.
set -euo pipefail

usage() {
  cat <<USAGE
usage: experiments/quickstart.sh [--nodes N] [-h]
  --nodes N   agents to train on, 1 to 256 (default: 4; 1: no scheduler, one process)

1. installs missing Debian packages (packaging/install-dependencies.sh; apt, through sudo when not root)
2. builds the programs into build/release
3. trains a model of 36,969 labels on real data, about a minute on two cores, into a new folder below runs/
4. prints a report
A second run builds only what has changed. Network and sudo are used only while packages are missing.
USAGE
}

wrong() {
  echo "quickstart.sh: $1" >&2
  usage >&2
  exit 2
}

nodes=4
while (($# > 0)); do
  case $1 in
    --nodes) (($# > 1)) || wrong "--nodes needs a number"; nodes=$2; shift 2 ;;
    --nodes=*) nodes=${1#*=}; shift ;;
    -h | --help) usage; exit 0 ;;
    *) wrong "unknown argument '$1'" ;;
  esac
done
[[ $nodes =~ ^[1-9][0-9]{0,2}$ ]] && ((nodes <= 256)) || wrong "--nodes is a whole number from 1 to 256, not '$nodes'"

cd "$(dirname "${BASH_SOURCE[0]}")/.."
step="starting"
on_exit() {
  local code=$?
  ((code == 0)) && return
  if ((code == 130)); then
    echo "quickstart.sh: interrupted while $step" >&2
  else
    echo "quickstart.sh: failed while $step (exit code $code); the messages above say why" >&2
  fi
}
trap on_exit EXIT
begin() {
  step=$1
  echo "== ${step^}"
}

begin "installing packages"
bash packaging/install-dependencies.sh

begin "building into build/release (several minutes the first time)"
mkdir -p build
log=build/quickstart-configure.log
cmake --preset release >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
cmake --build --preset release --target modelet modelet-agent modelet-scheduler
programs=build/release/bin

run=runs/quickstart-$(date +%Y%m%d-%H%M%S)
begin "training on $nodes node(s)"
"$programs/modelet" train experiments/quickstart.toml --nodes "$nodes" --out "$run"

begin "reporting"
"$programs/modelet" report "$run" --text
echo "As a page: $("$programs/modelet" report "$run")"
