"""Which workers share a machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from keras_parallax.cluster.addresses import split_address
from keras_parallax.cluster.topology import Topology, assign_slots


@dataclasses.dataclass(frozen=True)
class Machines:
    """The workers of a job by machine, where each machine has as many.

    Attributes:
        places: `(machine, index on it)` of each worker, in order of rank.
        count: Number of machines.
        workers_each: Workers on each machine.
    """

    places: tuple[tuple[int, int], ...]
    count: int
    workers_each: int

    @classmethod
    def of(
        cls, topology: Topology, local_sizes: Sequence[int] | None = None
    ) -> Machines | None:
        """The machines of a job; None where some have more workers than others.

        Args:
            topology: This worker's place in the job.
            local_sizes: Workers of each machine, where they had to be asked for.
        """
        size, each = topology.size, topology.local_size
        if topology.workers:
            hosts = [split_address(worker)[0] for worker in topology.workers]
            numbers = {host: n for n, host in enumerate(dict.fromkeys(hosts))}
            places = tuple(
                (numbers[slot.host], slot.local_rank) for slot in assign_slots(hosts)
            )
        elif set(local_sizes or [each]) != {each}:
            return None
        else:
            # Launchers number the workers through, machine by machine.
            places = tuple(divmod(rank, each) for rank in range(size))
        count = len({machine for machine, _ in places})
        if count * each != size or max(index for _, index in places) >= each:
            return None
        return cls(places, count, each)

    def neighbours(self, rank: int) -> list[int]:
        """Ranks of the workers on the machine of `rank`, itself included."""
        machine = self.places[rank][0]
        return [r for r, place in enumerate(self.places) if place[0] == machine]

    def counterparts(self, rank: int) -> list[int]:
        """Ranks of the workers with the same index on their machines."""
        index = self.places[rank][1]
        return [r for r, place in enumerate(self.places) if place[1] == index]

    @property
    def have_two_stages(self) -> bool:
        """Whether there is something to gain by exchanging within machines first."""
        return self.count > 1 and self.workers_each > 1
