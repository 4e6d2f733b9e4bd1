"""Runs a file of tests in build/venv, where make_venv.sh has installed the Python package.

    run.py FILE     exit code 77: it cannot run here, and says why; 1 instead if MODELET_PYTHON_TESTS is "required", unless
                    only Ray is missing, which does not exist for all machines
"""
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / "build" / "venv" / "bin" / "python"
SKIPPED = 77
MEMORY = Path("/dev/shm")  # in memory, because models are synced to disk, and the disk may be busy
MEMORY_NEEDED = 1 << 30  # bytes


def what_is_missing():
    make = "tests/python/make_venv.sh dev makes it (it needs the network, once)"
    if not PYTHON.exists():
        return f"there is no {PYTHON.relative_to(ROOT)}: {make}"
    if not has("modelet", "pytest"):
        return f"the package is not installed in build/venv: {make}"
    return None


def has(*modules):
    return subprocess.run([PYTHON, "-c", f"import {', '.join(modules)}"], cwd="/", capture_output=True).returncode == 0


def temporary_folder():
    in_memory = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= MEMORY_NEEDED
    return tempfile.TemporaryDirectory(prefix="modelet-tests-", dir=MEMORY if in_memory else None)


def main():
    if missing := what_is_missing():
        print(f"skipped: {missing}")
        return 1 if os.environ.get("MODELET_PYTHON_TESTS") == "required" else SKIPPED
    test = Path(__file__).parent / sys.argv[1]
    if test.name == "ray_test.py" and not has("ray"):
        print("skipped: Ray could not be installed in build/venv (tests/python/requirements-ray.txt)")
        return SKIPPED
    command = [PYTHON, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=5", test]
    with temporary_folder() as folder:
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": folder}
        # Not in the repository, because its folders have the names of modules.
        return subprocess.run(command, cwd="/", env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
