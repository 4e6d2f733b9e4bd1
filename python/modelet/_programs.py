"""The programs of Modelet that come with this package, and how they are found."""
import os
import sys
from pathlib import Path

_FOLDER = Path(__file__).parent / "bin"


def path(name):
    """The path of a program: "modelet", "modelet-agent" or "modelet-scheduler"."""
    return str(_FOLDER / name)


def _become(name):
    os.execv(path(name), [name, *sys.argv[1:]])


def modelet():
    _become("modelet")


def modelet_agent():
    _become("modelet-agent")


def modelet_scheduler():
    _become("modelet-scheduler")
