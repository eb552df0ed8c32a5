"""Several processes as one program."""

from __future__ import annotations

from collections.abc import Callable
import os

import jax
from jax.experimental import multihost_utils
import numpy as np


def initialize(
  *,
  coordinator_address: str | None = None,
  num_processes: int | None = None,
  process_id: int | None = None,
  automatic: bool = False,
) -> None:
  """Joins the other processes, if there are any.

  Does nothing unless asked: by the three arguments, by `automatic`, or by
  JAX's own variable `JAX_COORDINATOR_ADDRESS`. Call it before anything else
  touches a device.

  Args:
    coordinator_address: `host:port` of process 0.
    num_processes: number of processes.
    process_id: this process, from 0.
    automatic: take whatever is not given from the cluster (TPU slices, Slurm,
      Open MPI, Kubernetes).

  Raises:
    ValueError: if only some of the arguments are given and nothing can fill
      in the rest, if one is outside its range, or if the others cannot be
      reached.
  """
  given = {
    "coordinator_address": coordinator_address,
    "num_processes": num_processes,
    "process_id": process_id,
  }
  missing = [name for name, value in given.items() if value is None]
  automatic = automatic or bool(os.environ.get("JAX_COORDINATOR_ADDRESS"))
  if len(missing) == len(given) and not automatic:
    return
  if missing and not automatic:
    raise ValueError(
      "coordinator_address, num_processes and process_id must be given"
      f" together; {' and '.join(missing)} missing"
    )
  if num_processes is not None and num_processes < 1:
    raise ValueError(f"num_processes must be at least 1, got {num_processes}")
  if process_id is not None and not 0 <= process_id < (
    num_processes or process_id + 1
  ):
    raise ValueError(
      f"process_id must be in [0, {num_processes}), got {process_id}"
    )
  try:
    jax.distributed.initialize(
      coordinator_address=coordinator_address,
      num_processes=num_processes,
      process_id=process_id,
    )
  except (RuntimeError, ValueError) as error:
    raise ValueError(f"cannot join the other processes: {error}") from error


def check_agreement(name: str, fingerprint: str) -> None:
  """Raises ValueError unless all processes have the same value.

  Args:
    name: what is compared, for the message.
    fingerprint: a hexadecimal digest.
  """
  if jax.process_count() == 1:
    return
  digest = np.frombuffer(bytes.fromhex(fingerprint)[:32], np.uint8)
  everyone = multihost_utils.process_allgather(digest.astype(np.int32))
  differing = np.flatnonzero(np.any(everyone != everyone[:1], axis=1))
  if differing.size:
    raise ValueError(
      f"{name} differs between process 0 and process {differing[0]}; every"
      " process must see the same"
    )


def on_first_process(name: str, action: Callable[[], object]) -> None:
  """Runs something on process 0 and lets the others wait for it.

  Args:
    name: what is done, for the message.
    action: called without arguments.

  Raises:
    ValueError: in every process, if it raises in process 0.
  """
  error = None
  if jax.process_index() == 0:
    try:
      action()
    except Exception as caught:  # told to the others, then raised
      error = caught
  if jax.process_count() > 1:
    failed = multihost_utils.broadcast_one_to_all(np.int32(error is not None))
    if failed and error is None:
      raise ValueError(f"process 0 could not {name}; see its message")
  if error is not None:
    raise error
