# SPDX-License-Identifier: Apache-2.0
"""The environment that mpirun gives to its ranks and that their children inherit."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

# Open MPI 4 (OMPI, PMIX) and 5 (PRTE), and MPICH's PMI.
_PREFIXES = ("OMPI_", "PMIX_", "PRTE_", "PMI_")


def without_mpi_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which a process is no rank of anything."""
    return {name: value for name, value in environment.items() if not name.startswith(_PREFIXES)}


def leave_mpi(environment: MutableMapping[str, str]) -> None:
    """Make this process no rank, before it imports TensorRT-LLM.

    Importing TensorRT-LLM starts MPI. Under mpirun the draft's process inherits the identity of
    rank 0, which belongs to the target's process; a second process of the same rank is an error
    or a hang. Without these variables MPI starts as a world of one process. Not run with MPI.
    """
    kept = without_mpi_variables(environment)
    for name in environment.keys() - kept.keys():
        del environment[name]
