"""Which road each table takes: decided when its gradient is known, and again when
its use has been measured.

All workers call these methods, between the same two steps. What they decide from is
gathered from all of them, and decided by one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from keras_parallax import errors
from keras_parallax.cluster.session import Session
from keras_parallax.plan.choose import Choice, choose, saving_s
from keras_parallax.plan.network import Network
from keras_parallax.plan.plan import Plan
from keras_parallax.plan.routing import Routing
from keras_parallax.plan.sparsity import Counted, Sparsity
from keras_parallax.plan.use import Use
from keras_parallax.roads import ALLREDUCE, SERVERS
from keras_parallax.servers.homes import Homes
from keras_parallax.servers.progress_line import in_words
from keras_parallax.tables.apart import Apart
from keras_parallax.tables.factory import TableFactory
from keras_parallax.tables.measured import measured_bytes
from keras_parallax.tables.surroundings import Surroundings
from keras_parallax.tables.table import Table
from keras_parallax.tables.traffic import StepTraffic

logger = logging.getLogger("keras_parallax")

# A step traced anew takes seconds: less than this a step does not pay for it.
_LEAST_SAVING_S = 2e-4
_DENSE = "all dense variables"
#: In place of a road: the plan may choose.
AUTO = "auto"
_TOLD = "reroute() says so"
_GIVEN_BACK = "reroute() gave it back to the plan, which has not measured it since"


class Router:
    """Gives tables their roads.

    Args:
        session: The job.
        homes: The homes at the ends of the roads.
        factory: Makes and moves tables.
        traffic: Sends what steps want of tables.
        routing: What the user has said of roads.
        plan: Where decisions are written down.
        travel_bytes: Bytes of an element of a type as it travels.
        local_aggregation: Whether the workers of a machine act as one.
    """

    def __init__(
        self,
        session: Session,
        homes: Homes,
        factory: TableFactory,
        traffic: StepTraffic,
        routing: Routing,
        plan: Plan,
        travel_bytes: Callable[[tf.DType], int],
        local_aggregation: bool,
    ):
        self._job = session.job
        self._homes = homes
        self._factory = factory
        self._apart = Apart(traffic)
        self._routing = routing
        self._plan = plan
        self._travel_bytes = travel_bytes
        self._around = Surroundings(session, homes.first, local_aggregation)
        self._read: dict[Table, Counted] = {}
        self._read_exactly: dict[Table, Counted] = {}
        self._known: dict[str, Sparsity] = {}
        self._wanted: dict[str, str] | None = None
        # Tables whose road the user has said while training went on.
        self._told: set[Table] = set()

    @property
    def adapts(self) -> bool:
        """Whether there is more than one road to choose from."""
        return len(self._homes.roads) > 1

    @property
    def network(self) -> Network:
        """The network, measured when it is first asked for."""
        return self._around.cluster.network

    def settle(
        self,
        tables: Mapping[Table, set[str]],
        plain: Sequence[tuple[tf.Variable, set[str]]],
    ) -> bool:
        """Decides after a step was traced, and nothing of it is in use yet.

        Args:
            tables: Kinds of gradient of each table.
            plain: The same of plain variables.

        Returns:
            Whether something moved: what was traced before uses what is no more.
        """
        before = self._homes_of_all()
        with self._job.doing("the roads of variables, when a step was traced"):
            self._settle(tables, plain)
        return self._homes_of_all() != before

    def _homes_of_all(self) -> list:
        return [(t, t.storage, t.replica is None) for t in self._factory.tables]

    def _settle(
        self,
        tables: Mapping[Table, set[str]],
        plain: Sequence[tuple[tf.Variable, set[str]]],
    ) -> None:
        new = [table for table in tables if self._factory.is_unsettled(table)]
        for table, kinds in tables.items():
            self._factory.settle(table, kinds)
        looked_up = [
            variable
            for variable, kinds in plain
            if self._factory.settle_plain(variable, kinds)
        ]
        promoted = [self._promote(variable) for variable in looked_up]
        if not self.adapts:
            return
        new = [t for t in new if t.replica is None and tables[t] == {"sparse"}]
        if self._free(new + promoted):
            self._follow(self._choices(clings=bool(self._known)), least_saving_s=0.0)

    def _promote(self, variable: tf.Variable) -> Table:
        before = self._plan.get(variable._unique_id).where
        reason = "its rows are looked up, as the traced step shows"
        table = self._factory.promote(variable, SERVERS, reason)
        self._tell(table, before, reason)
        return table

    def measured(self, exactly: bool = False) -> list[Sparsity]:
        """Use of each table since it was last measured.

        Args:
            exactly: Also ask, where rows live, what all workers together have
                touched.
        """
        tables = self._present()
        read = self._read_exactly if exactly else self._read
        counted = [table.use(exactly) for table in tables]
        since = [
            now.since(read[table]) if table in read else now
            for table, now in zip(tables, counted, strict=True)
        ]
        everyone = self._job.gather(since)
        read.update(zip(tables, counted, strict=True))
        found = []
        for index, table in enumerate(tables):
            sparsity = Sparsity.of(
                table.path,
                table.num_rows,
                [worker[index] for worker in everyone],
                self._around.machines,
            )
            if sparsity is not None:
                found.append(sparsity)
                self._known[table.path] = sparsity
                self._plan.change(
                    table._unique_id,
                    alpha=sparsity.alpha,
                    measured_bytes=measured_bytes(table),
                )
        return found

    def reconsider(self) -> list[str]:
        """Measures, and moves tables whose road is not the best any more.

        What was measured may be of before and after a change of the batches: but for
        the first time, what seems better has to seem so twice in a row. Until then
        `is_undecided`, and had better be called again soon.

        Returns:
            What has changed, a line each. Steps have to be traced anew if anything
            has.
        """
        tables = self._present()
        later = self._apart.candidates(tables)
        if not self.adapts or not (later or self._free(tables)):
            return []
        is_first = not self._known
        self.measured()
        self._around.look_again()
        # Where tables are by now was chosen with nothing known of their use: they need
        # not be much better off elsewhere.
        choices = self._choices(clings=not is_first)
        wanted = {path: choice.road for path, choice in choices.items()}
        confirmed, self._wanted = is_first or wanted == self._wanted, None
        if confirmed:
            moved = self._follow(choices, _LEAST_SAVING_S)
        else:
            moved = []
            if self._moves(choices, _LEAST_SAVING_S):
                self._wanted = wanted
        set_apart = self._apart.decide(later, choices)
        for line in set_apart:
            self._note_change(line)
        return moved + set_apart

    @property
    def is_undecided(self) -> bool:
        """Whether something seemed better when last measured."""
        return self._wanted is not None

    def reroute(self, roads: Mapping[str, str]) -> None:
        """Moves tables to other roads, where they stay.

        Args:
            roads: Road of tables, by path; "auto" for whatever the plan finds best
                from now on.

        Raises:
            ConfigError: There is no such table or road.
        """
        for path, road in roads.items():
            table = self._table(path)
            if road == AUTO:
                self._give_back(table)
                continue
            if road not in self._homes.roads:
                raise errors.ConfigError(
                    f"Tables of this job can take the roads {self._homes.roads}, or "
                    f"{AUTO!r} for what the plan finds best. "
                    f"Received: {{{path!r}: {road!r}}}"
                )
            self._told.add(table)
            if road != table.storage.road:
                self._move(table, road, None, _TOLD)
            else:
                self._plan.change(table._unique_id, reason=_TOLD)

    def _give_back(self, table: Table) -> None:
        if not self._routing.adapts(table.path):
            raise errors.ConfigError(
                f"The road of {table.path} is fixed by `routes`, or by an "
                "`architecture` other than 'hybrid': the plan cannot choose it. "
                f"Received: {{{table.path!r}: {AUTO!r}}}"
            )
        if table in self._told:
            self._told.discard(table)
            self._plan.change(table._unique_id, reason=_GIVEN_BACK)

    def repartition(self, counts: Mapping[str, int]) -> None:
        """Moves tables into other numbers of partitions, on the road they have.

        Args:
            counts: Number of partitions of tables, by path.

        Raises:
            ConfigError: There is no such table, or a number cannot be.
        """
        for path, count in counts.items():
            table = self._table(path)
            if table.storage.road != SERVERS:
                raise errors.ConfigError(
                    f"{path} has a copy in every worker, and no partitions."
                )
            if type(count) is not int or not 1 <= count <= table.num_rows:
                raise errors.ConfigError(
                    f"{path} has {table.num_rows} rows; expected 1 to as many "
                    f"partitions. Received: {{{path!r}: {count!r}}}"
                )
            if count != table.storage.spec.num_partitions:
                reason = self._plan.get(table._unique_id).reason
                self._move(table, SERVERS, count, reason)

    def _table(self, path: str) -> Table:
        for table in self._present():
            if table.path == path:
                return table
        raise errors.ConfigError(
            "Expected the path of a table. Received: "
            f"{path!r}; tables are {[table.path for table in self._present()]}."
        )

    def _present(self) -> list[Table]:
        return [
            table
            for table in self._factory.tables
            if table.replica is None and not table.is_whole
        ]

    def _free(self, tables: Sequence[Table]) -> list[Table]:
        return [table for table in tables if self._is_free(table)]

    def _is_free(self, table: Table) -> bool:
        return self._routing.adapts(table.path) and table not in self._told

    def _choices(self, clings: bool) -> dict[str, Choice]:
        """What the plan finds best.

        Args:
            clings: Whether a change has to save much, for the roads of now were the
                best when they were chosen.
        """
        tables = self._present()
        uses = [self._use(table) for table in tables]
        dense = sum(
            entry.size_bytes for entry in self._plan if entry.gradient == "dense"
        )
        if dense:
            uses.append(Use(_DENSE, 1, dense, gradient="dense"))
        current = {table.path: table.storage.road for table in tables}
        fixed = {
            table.path: table.storage.road
            for table in tables
            if not self._is_free(table)
        }
        for table in tables:
            if not table.dense_means_same and current[table.path] != ALLREDUCE:
                # Its update leaves alone what was not touched, as the user wants.
                fixed.setdefault(table.path, current[table.path])
        found = choose(
            uses,
            self._around.cluster,
            current=current if clings else None,
            fixed=fixed,
            homes=[self._homes.first.name],
            # Whether slices had better be gathered depends on how many there are.
            roads=self._homes.roads if self._known else (SERVERS, ALLREDUCE),
        )
        return found

    def _use(self, table: Table) -> Use:
        known = self._known.get(table.path)
        spec = table.storage.spec
        elements = spec.row_bytes // spec.dtype.size
        return Use(
            path=table.path,
            num_rows=spec.num_rows,
            row_bytes=spec.row_bytes,
            # Before a step was taken: as good as nothing, so that only tables that
            # are too small for servers whatever is looked up leave them.
            alpha=known.alpha if known else min(1.0, 1 / spec.num_rows),
            alpha_machine=known.alpha_machine if known else None,
            alpha_all=known.alpha_all if known else None,
            slots=len(table.slots),
            updates_all_rows=self._plan.get(table._unique_id).update == "exact",
            id_bytes=spec.id_dtype.size,
            wire_row_bytes=elements * self._travel_bytes(spec.dtype),
        )

    def _follow(
        self, choices: Mapping[str, Choice], least_saving_s: float
    ) -> list[str]:
        """Moves tables to the roads chosen, if that saves enough."""
        for table in self._present():
            self._note(table, choices[table.path])
        return [
            self._move(table, choice.road, None, self._reason(table, choice))
            for table, choice in self._moves(choices, least_saving_s)
        ]

    def _moves(
        self, choices: Mapping[str, Choice], least_saving_s: float
    ) -> list[tuple[Table, Choice]]:
        """Tables that are elsewhere than chosen, if moving saves enough."""
        moves = [
            (table, choices[table.path])
            for table in self._present()
            if choices[table.path].road != table.storage.road
        ]
        roads = {table.path: table.storage.road for table in self._present()}
        return moves if saving_s(choices, roads) >= least_saving_s else []

    def _reason(self, table: Table, choice: Choice) -> str:
        if self._known.get(table.path):
            return choice.reason
        size = in_words(table.storage.spec.table_bytes)
        return f"{size}: too small for servers, however few rows are looked up"

    def _note(self, table: Table, choice: Choice) -> None:
        """Writes into the plan what was found out about a table that stays."""
        costs = [choice.cost, *choice.alternatives]
        self._plan.change(table._unique_id, costs=[cost.to_dict() for cost in costs])
        self._predict(table)
        measured = self._known.get(table.path) is not None
        stays = choice.road == table.storage.road and table not in self._told
        if stays and measured:
            self._plan.change(table._unique_id, reason=choice.reason)

    def _predict(self, table: Table) -> None:
        """Writes into the plan what a table costs on the road that it has."""
        for cost in self._plan.get(table._unique_id).costs:
            if cost["road"] == table.storage.road:
                self._plan.change(
                    table._unique_id,
                    predicted_bytes=round(cost["machine_bytes"] + cost["local_bytes"]),
                    predicted_seconds=cost["seconds"],
                )

    def _move(
        self, table: Table, road: str, partitions: int | None, reason: str
    ) -> str:
        before = self._plan.get(table._unique_id).where
        self._factory.move(table, road, partitions)
        self._plan.change(table._unique_id, reason=reason)
        self._predict(table)
        for read, exactly in ((self._read, False), (self._read_exactly, True)):
            read[table] = table.use(exactly)
        return self._tell(table, before, reason)

    def _tell(self, table: Table, before: str, reason: str) -> str:
        after = self._plan.get(table._unique_id).where
        line = f"{table.path}: {before} -> {after} ({reason})"
        self._note_change(line)
        return line

    def _note_change(self, line: str) -> None:
        self._plan.note_change(line)
        if self._job.rank == 0:
            logger.info("The plan has changed. %s", line)
