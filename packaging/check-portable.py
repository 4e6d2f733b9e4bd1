#!/usr/bin/env python3
"""Checks that programs run on every Linux with a C library that is new enough.

    check-portable.py [--glibc 2.34] FILE...    prints each violation; exit code 1 if there is any

A file may need only the C library and the unwinder, which every system has, and no symbol of a newer version of them.
"""
import argparse
import re
import subprocess
import sys

ALLOWED = {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "libpthread.so.0", "libdl.so.2", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}


def number(text):
    return tuple(int(part) for part in text.split("."))


def violations(file, glibc):
    """What this file needs beyond what may be needed."""
    dump = subprocess.run(["objdump", "-p", "-T", file], capture_output=True, text=True)
    if dump.returncode != 0:
        yield f"objdump cannot read it: {dump.stderr.strip()}"
        return
    for library in re.findall(r"^\s*NEEDED\s+(\S+)$", dump.stdout, re.M):
        if library not in ALLOWED:
            yield f"needs the library {library}"
    for version, symbol in re.findall(r"\*UND\*.*\(?GLIBC_([0-9.]+)\)?\s+(\S+)$", dump.stdout, re.M):
        if number(version) > glibc:
            yield f"needs {symbol} of glibc {version}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--glibc", default="2.34", type=number, help="the oldest C library on which the files must run")
    parser.add_argument("files", nargs="+")
    arguments = parser.parse_args()
    found = [f"{file}: {problem}" for file in arguments.files for problem in violations(file, arguments.glibc)]
    print("\n".join(found), end="\n" if found else "")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
