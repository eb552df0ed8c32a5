"""Keeping freed memory, for programs that train on a CPU."""

from __future__ import annotations

import ctypes
import sys

# Parameters of mallopt, from malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
_M_ARENA_MAX = -8

_SETTINGS = (
  # Blocks above 32 MB come from the kernel unless there are no mappings at
  # all, and only the main arena grows without them.
  (_M_ARENA_MAX, 1),
  (_M_MMAP_MAX, 0),
  (_M_TRIM_THRESHOLD, 2**31 - 1),
)


def keep_freed_memory() -> bool:
  """Tells the C library to keep memory that is freed, for the next step.

  A compiled program allocates its workspace anew at every call. glibc gets a
  workspace above 32 MB from the kernel and gives it back, so each step touches
  each page for the first time: 60,000 page faults in a step that needs 235 MB,
  and a third of its time. The price is that the process keeps the most memory
  it has ever used.

  Call it before JAX starts its threads, which happens at the first computation.
  Later it has no effect on their memory.

  Returns:
    True if the C library is glibc and took the settings; elsewhere nothing
    changes.
  """
  if sys.platform != "linux":
    return False
  libc = ctypes.CDLL(None)
  if not hasattr(libc, "gnu_get_libc_version"):
    return False
  return all(libc.mallopt(name, value) == 1 for name, value in _SETTINGS)
