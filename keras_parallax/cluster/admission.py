"""Who may join a job."""

from collections.abc import Mapping

from keras_parallax.cluster.failure import process_name
from keras_parallax.cluster.membership import MemberState


def why_not(
    newcomer: MemberState, members: Mapping[tuple[str, int], MemberState]
) -> str | None:
    """Why a process may not join a job, in sentences; None where it may.

    Args:
        newcomer: What it has told of itself.
        members: Those that have joined, by role and index.
    """
    name = process_name(newcomer.role, newcomer.index)
    there = members.get((newcomer.role, newcomer.index))
    if there is not None:
        return (
            f"{name} has joined already, as process {there.pid} on {there.host}. "
            "Each process of a job has a role and an index of its own."
        )
    for other in members.values():
        if other.role != newcomer.role:
            continue
        mine, theirs = (who.info.get("alike", {}) for who in (newcomer, other))
        for what in sorted({*mine, *theirs}):
            found, expected = (of.get(what, "of no version") for of in (mine, theirs))
            if found != expected:
                return (
                    f"{name}, on {newcomer.host}, has {what} {found}; "
                    f"{process_name(other.role, other.index)}, on {other.host}, has "
                    f"{expected}. Install the same on every host (`pip install`, then "
                    "`keras-parallax build-horovod`)."
                )
    return None
