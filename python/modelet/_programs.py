"""The programs of Modelet, and how they are found."""
import os
import sys
from pathlib import Path
from typing import NoReturn

_OWN = Path(__file__).parent / "bin"  # a wheel brings the programs; Debian has them in packages of their own
_FOLDER = _OWN if _OWN.is_dir() else Path("/usr/bin")


def path(name: str) -> str:
    """The path of a program: "modelet", "modelet-agent" or "modelet-scheduler"."""
    return str(_FOLDER / name)


def _become(name: str) -> NoReturn:
    os.execv(path(name), [name, *sys.argv[1:]])


def modelet() -> NoReturn:
    _become("modelet")


def modelet_agent() -> NoReturn:
    _become("modelet-agent")


def modelet_scheduler() -> NoReturn:
    _become("modelet-scheduler")
