"""Which tables that a step needs late are worth messages of their own.

What they carry can then travel while the step computes (`stages.py`); how much of it
finds something to hide behind is not known. So it has to take much longer than the
messages themselves do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from keras_parallax.plan.choose import Choice
from keras_parallax.plan.cost import Cost
from keras_parallax.roads import SERVERS
from keras_parallax.servers.storage import Storage
from keras_parallax.tables.table import Table
from keras_parallax.tables.traffic import StepTraffic

# How many times as long as messages of their own what they carry has to take.
_PAYS_OFF = 4


class Apart:
    """Decides it, from what tables cost; on all workers alike.

    Args:
        traffic: Sends what steps want of tables, and knows which are needed late.
    """

    def __init__(self, traffic: StepTraffic):
        self._traffic = traffic
        self._paths: set[str] = set()
        traffic.travels_apart = self._travels_apart

    def candidates(self, tables: Sequence[Table]) -> list[Table]:
        """Those of the tables that are needed late."""
        return [
            table for table in tables if table.storage in self._traffic.needed_later
        ]

    def decide(
        self, tables: Sequence[Table], choices: Mapping[str, Choice]
    ) -> list[str]:
        """Decides for tables that are needed late.

        Args:
            tables: The tables.
            choices: What the plan knows of them, by path.

        Returns:
            What has changed, a line each: steps have to be traced anew.
        """
        lines = []
        for table in tables:
            path = table.path
            if table.storage.road != SERVERS:
                continue
            is_apart = path in self._paths
            cost = _on_servers(choices[path])
            seconds, least = cost.transfer_s, cost.latency_s * _PAYS_OFF
            pays_off = seconds > (least / 2 if is_apart else least)
            if pays_off != is_apart:
                self._paths ^= {path}
                how = "while the step computes" if pays_off else "with the others"
                lines.append(
                    f"{path}: its rows travel {how} ({1e3 * seconds:.3g} ms a step)"
                )
        return lines

    def _travels_apart(self, storages: Sequence[Storage]) -> bool:
        return any(storage.spec.path in self._paths for storage in storages)


def _on_servers(choice: Choice) -> Cost:
    """What a table costs there, where the plan may want it elsewhere."""
    costs = (choice.cost, *choice.alternatives)
    return next(cost for cost in costs if cost.road == SERVERS)
