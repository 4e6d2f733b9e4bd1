#!/bin/bash
# Modelet against real Horovod on nodes with shaped links; report.html and report.json in build/compare_horovod. --help says more.
set -euo pipefail
exec /usr/bin/python3 "$(dirname "${BASH_SOURCE[0]}")/baselines/compare_horovod.py" "$@"
