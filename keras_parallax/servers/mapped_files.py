"""Arrays that are files mapped into memory: read without holding what was read."""

import mmap
from typing import Any

import numpy as np


def release_pages(array: np.ndarray) -> None:
    """Gives back the memory of those parts of a mapped file that have been read.

    They are read again from the file when they are wanted again. An array that is
    no mapped file stays as it is, and so does one whose changes go to memory alone
    (`mode="c"`), for giving that memory back would lose them.

    Args:
        array: An `np.memmap`, or a view of one, or any array.
    """
    base: Any = array
    mode = "c"
    while isinstance(base, np.ndarray):
        if isinstance(base, np.memmap):
            mode = base.mode
        base = base.base
    if isinstance(base, mmap.mmap) and mode != "c" and hasattr(base, "madvise"):
        base.madvise(mmap.MADV_DONTNEED)
