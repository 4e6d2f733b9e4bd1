#!/bin/bash
# Compares Modelet with real Horovod on nodes with shaped links. Writes report.html and report.json into build/compare_horovod. See
# --help.
set -euo pipefail
exec /usr/bin/python3 "$(dirname "${BASH_SOURCE[0]}")/baselines/compare_horovod.py" "$@"
