"""Temporary folders. Each belongs to the process that made it, and goes with it.

A process has one folder, on which it holds a lock; what it makes is inside. The folder is removed when the process ends, also when
it is a worker of a pool. A forked child removes nothing of its parent's. What a killed process has left is removed by the next
process that makes a folder, or that has imported this module and ends.
"""
import functools
import os
import shutil
import tempfile
from multiprocessing import util
from pathlib import Path
from typing import Any, Self

from modelet import _modelet

# Folders are removed when the process has ended its workers, which may still read them.
_LATE, _LAST = -100, -101


@functools.cache
def _of_process(process: int) -> _modelet.TemporaryFolder:
    folder = _modelet.TemporaryFolder("python", tempfile.gettempdir())
    util.Finalize(None, folder.remove, exitpriority=_LATE)
    return folder


def _remove_left_behind() -> None:
    try:
        parent = tempfile.gettempdir()
    except FileNotFoundError:
        return
    _modelet.TemporaryFolder.remove_left_behind(parent)


util.Finalize(None, _remove_left_behind, exitpriority=_LAST)


class Folder:
    """A new folder. It is removed with this object or, at the latest, with the process."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(dir=_of_process(os.getpid()).path))
        # Unlike the finalizers of weakref and tempfile, this one does nothing in a forked child.
        self.remove = util.Finalize(self, shutil.rmtree, (self.path,), {"ignore_errors": True})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: Any) -> None:
        self.remove()
