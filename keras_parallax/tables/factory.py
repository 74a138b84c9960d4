"""Makes tables, moves them, and replicates those whose gradient is dense."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Iterable

import numpy as np
import tensorflow as tf

from keras_parallax import errors
from keras_parallax.cluster.job import Job
from keras_parallax.plan.plan import Entry, Plan
from keras_parallax.plan.routing import Routing
from keras_parallax.roads import ALLREDUCE, SERVERS
from keras_parallax.servers.homes import Homes
from keras_parallax.servers.memory import MemoryGuard
from keras_parallax.servers.progress_line import in_words
from keras_parallax.servers.storage import TableSpec
from keras_parallax.tables.creation import Creation
from keras_parallax.tables.initial import InitialValue, initial_value
from keras_parallax.tables.origin import Origin, origin_of
from keras_parallax.tables.server_variable import ServerVariable
from keras_parallax.tables.table import Table
from keras_parallax.tables.traffic import StepTraffic

logger = logging.getLogger("keras_parallax")

# A variable of this size is not made whole before it is known that it has to be.
PROVISIONAL_BYTES = 64 << 20
# A plain variable smaller than this is not worth a table, whatever its gradient.
LOOK_BYTES = 1 << 20


class TableFactory:
    """Makes tables for one strategy.

    Args:
        job: This worker's place in the job.
        home: Where rows live.
        traffic: Collects what a step wants of tables.
        routing: Decides which variables become tables.
        plan: Where the decisions are written down.
        strategy: The strategy.
        scope_name: Sets the tables of one strategy apart from those of another on
            the same servers; the same on every worker.
    """

    def __init__(
        self,
        job: Job,
        home: Homes,
        traffic: StepTraffic,
        routing: Routing,
        plan: Plan,
        strategy: tf.distribute.Strategy,
        scope_name: str,
    ):
        self.tables: list[Table] = []
        self.server_variables: list[ServerVariable] = []
        self._job = job
        self._home = home
        self._memory = MemoryGuard(job, home)
        self._traffic = traffic
        self._routing = routing
        self._plan = plan
        self._strategy = strategy
        self._scope_name = scope_name
        self._made = 0
        # Identities of variables whose gradient has never been seen.
        self._unsettled: set[str] = set()

    def create(
        self, next_creator: Callable, kwargs: dict, owner: Table | tf.Variable | None
    ) -> Table | tf.Variable:
        """The variable described by `kwargs`: a table, or a plain one.

        Args:
            next_creator: Makes plain variables.
            kwargs: Arguments of the variable creator.
            owner: The variable whose slot it is to be, if any.
        """
        made = Creation.of(kwargs)
        if made is None:
            return next_creator(**kwargs)
        if owner is not None:
            return self._slot(made, next_creator, kwargs, owner)
        road, reason = ALLREDUCE, ""
        # What is not trained is an optimizer's, whatever its path, or frozen.
        if made.trainable or made.is_embedding:
            road, reason = self._routing.road(made.path, made.is_embedding, made.shape)
        if road != ALLREDUCE:
            table = self._make(made, next_creator, kwargs, None, reason, road=road)
            if self._routing.dense_on_servers:
                Origin.of(made, next_creator, kwargs).note_on(table)
            return table
        begin = self._beginning_in_partitions(made) if made.trainable else None
        if begin is not None:
            size = in_words(made.size_bytes)
            reason = f"{size}: in partitions until its gradient is known"
            return self._make(made, next_creator, kwargs, None, reason, begin=begin)
        variable = next_creator(**kwargs)
        if not made.trainable:
            return variable
        origin = Origin.of(made, next_creator, kwargs)
        if self._routing.dense_on_servers:
            variable = self._on_server(origin, variable)
        else:
            self._note(variable, made, ALLREDUCE, 1, "workers", reason)
        if self._routing.promotes(made.path) and _is_worth_a_look(made):
            origin.note_on(variable)
            self._unsettled.add(variable._unique_id)
        return variable

    def _slot(
        self,
        made: Creation,
        next_creator: Callable,
        kwargs: dict,
        owner: Table | tf.Variable,
    ) -> Table | tf.Variable:
        slot: Table | tf.Variable
        beside = isinstance(owner, Table) and owner.replica is None
        if beside and made.shape == tuple(owner.shape):
            slot = self._make(made, next_creator, kwargs, owner, "slot of a table")
        else:
            slot = next_creator(**kwargs)
        origin = origin_of(owner)
        if origin is not None and made.shape == origin.made.shape:
            origin.slots.append((slot, Origin.of(made, next_creator, kwargs)))
        return slot

    def _beginning_in_partitions(self, made: Creation) -> InitialValue | None:
        """How a variable begins that is so large that it should not be made whole
        before its gradient is known; None where it is not, or has to be."""
        if made.size_bytes < PROVISIONAL_BYTES or len(made.shape) < 2:
            return None
        if not made.dtype.is_floating or not self._routing.adapts(made.path):
            return None
        try:
            begin = self._begin(made)
        except errors.TableError:
            return None
        return begin if begin.array is None else None

    def _on_server(
        self,
        origin: Origin,
        copy: tf.Variable,
        reason: str = "everything is on servers",
    ) -> ServerVariable:
        table = self._make(
            origin.made, origin.next_creator, origin.kwargs, None, reason, whole=copy
        )
        # It is beside this that an optimizer's slots are made.
        origin.note_on(table)
        variable = ServerVariable(self._strategy, copy, table)
        # The optimizer's slots are found by the identity of what Keras holds.
        self._plan.rename(table._unique_id, variable._unique_id)
        table._unique_id = variable._unique_id
        copy.assign(variable.numpy())
        self.server_variables.append(variable)
        return variable

    def unsettled(self, variables: Iterable | None = None) -> bool:
        """Whether the gradient of some of the variables has never been seen.

        Args:
            variables: What Keras's variables hold; None for all that there are.
        """
        if variables is None:
            return bool(self._unsettled)
        return any(v._unique_id in self._unsettled for v in variables)

    def is_unsettled(self, variable: Table | tf.Variable) -> bool:
        """Whether the gradient of a variable has never been seen."""
        return variable._unique_id in self._unsettled

    def settle(self, table: Table, kinds: set[str]) -> None:
        """Takes note of the kinds of gradient a traced step has for a table."""
        if not kinds or table._unique_id not in self._unsettled:
            return
        self._unsettled.discard(table._unique_id)
        gradient = "both" if len(kinds) == 2 else next(iter(kinds))
        self._plan.change(table._unique_id, gradient=gradient)
        if "dense" in kinds:
            logger.warning(
                "%s is used whole in the training step, and its gradient is dense: "
                "it goes the dense road, as %s.",
                table.path,
                "a whole on a server"
                if self._routing.dense_on_servers
                else "a copy on every worker",
            )
            reason = "used whole in the training step: its gradient is dense"
            if self._routing.dense_on_servers:
                self._make_whole(table, reason)
                return
            self._plan.change(
                table._unique_id,
                road=ALLREDUCE,
                partitions=1,
                home="workers",
                reason=reason,
            )
            for member in (table, *table.slots):
                member.replicate()

    def settle_plain(self, variable: tf.Variable, kinds: set[str]) -> bool:
        """The same for a plain variable; tells whether it had better be a table."""
        if variable._unique_id not in self._unsettled:
            return False
        self._unsettled.discard(variable._unique_id)
        return kinds == {"sparse"} and origin_of(variable) is not None

    def promote(self, variable: tf.Variable, road: str, reason: str) -> Table:
        """Puts a table in the place of a plain variable, and of its slots.

        Value and slots stay what they are. Every worker calls it, between steps.
        """
        origin = origin_of(variable)
        if origin is None:
            raise ValueError(f"{variable.name} was not made to become a table.")
        table = self._in_place_of(variable, origin, None, road, reason)
        for slot, made in origin.slots:
            self._in_place_of(slot, made, table, road, "slot of a table")
        if isinstance(variable, ServerVariable):
            self.server_variables.remove(variable)
            self._drop(variable.table)
        return table

    def _make_whole(self, table: Table, reason: str) -> None:
        """Puts a variable that is whole on a server in the place of a table."""
        origin = origin_of(table)
        if origin is None:
            raise ValueError(f"{table.path} was not made to become a whole.")
        slots = list(origin.slots)
        copy = table.plain_variable(table.numpy(), True)
        # The optimizer finds slots by the identity of what Keras holds.
        copy._unique_id = table._unique_id
        variable = self._on_server(origin, copy, reason)
        self._plan.change(variable._unique_id, gradient="dense")
        origin.hand_over(variable)
        for slot, made in slots:
            self._in_place_of(slot, made, variable.table, SERVERS, "slot of a table")
        self._drop(table)

    def _drop(self, table: Table) -> None:
        """Frees a table; all workers have read what they need of it."""
        for member in (table, *table.slots):
            self._home.destroy(member.storage)
        self.tables.remove(table)

    def _in_place_of(
        self,
        variable: Table | tf.Variable,
        origin: Origin,
        owner: Table | None,
        road: str,
        reason: str,
    ) -> Table:
        made = dataclasses.replace(origin.made, initial_value=variable.numpy())
        table = self._make(
            made, origin.next_creator, origin.kwargs, owner, reason, road=road
        )
        if owner is None:
            # The optimizer finds slots by the identity of what Keras holds.
            self._plan.replace(table._unique_id, variable._unique_id)
            self._plan.change(variable._unique_id, gradient="sparse")
            self._unsettled.discard(table._unique_id)
            table._unique_id = variable._unique_id
        origin.hand_over(table)
        return table

    def move(self, table: Table, road: str, partitions: int | None = None) -> None:
        """Moves a table and its slots to the end of another road, or into other
        partitions; values stay what they are.

        Every worker calls it, between two steps. What was traced before uses rows
        that are there no more: it has to be traced anew.

        Args:
            table: The table.
            road: Its new road.
            partitions: Number of partitions; None for what suits the road.

        Raises:
            TableError: It does not fit there; nothing has been moved.
        """
        count = partitions or self._routing.partitions(
            table.path,
            table.num_rows,
            table.storage.spec.row_bytes,
            len(self._home.at_end_of(road).devices),
        )
        members = (table, *table.slots)
        self._job.barrier()
        moved = []
        for member in members:
            self._made += 1
            spec = dataclasses.replace(
                member.storage.spec,
                name=f"{self._scope_name}/{self._made}",
                num_partitions=min(count, table.num_rows),
            )
            if road == SERVERS:
                self._memory.check(spec, slot_of="" if member is table else table.path)
            storage = self._home.allocate(spec, 0.0, None, road)
            self._home.copy(member.storage, storage)
            moved.append(storage)
        # Nobody frees rows before everybody has read them.
        self._job.barrier()
        for member, storage in zip(members, moved, strict=True):
            before, member.storage = member.storage, storage
            self._home.destroy(before)
        self._plan.change(
            table._unique_id,
            road=road,
            partitions=moved[0].spec.num_partitions,
            home=self._home.of(moved[0]).name,
        )

    def close(self) -> None:
        """Frees all tables."""
        for table in self.tables:
            for member in (table, *table.slots):
                if member.replica is None:
                    self._home.destroy(member.storage)
        self.tables.clear()
        self.server_variables.clear()
        self._unsettled.clear()

    def _make(
        self,
        made: Creation,
        next_creator: Callable,
        kwargs: dict,
        owner: Table | None,
        reason: str,
        whole: tf.Variable | None = None,
        road: str = SERVERS,
        begin: InitialValue | None = None,
    ) -> Table:
        is_whole = whole is not None or (owner is not None and owner.is_whole)
        num_rows, *row_shape = (1, *made.shape) if is_whole else made.shape
        first_home = 0
        if is_whole:
            count = 1
            # Whole variables go to the servers in turn, a variable's slots beside it.
            first_home = self._made if owner is None else owner.storage.spec.first_home
        elif owner is None:
            count = self._routing.partitions(
                made.path,
                num_rows,
                TableSpec("", 1, tuple(row_shape), made.dtype, 1).row_bytes,
                len(self._home.at_end_of(road).devices),
            )
        else:
            count = owner.storage.spec.num_partitions
            road = owner.storage.road
        self._made += 1
        spec = TableSpec(
            name=f"{self._scope_name}/{self._made}",
            num_rows=num_rows,
            row_shape=tuple(row_shape),
            dtype=made.dtype,
            num_partitions=count,
            first_home=first_home,
            path=made.path,
        )
        self._memory.check(spec, slot_of="" if owner is None else owner.path)
        if whole is not None:
            value = self._job.share(whole.numpy())
            made = dataclasses.replace(made, initial_value=value)
        begin = begin or self._begin(made)

        def plain_variable(value: np.ndarray, trainable: bool) -> tf.Variable:
            changed = {
                "initial_value": value,
                "dtype": value.dtype,
                "shape": None,
                "trainable": trainable,
            }
            return next_creator(**{**kwargs, **changed})

        table = Table(
            path=made.path,
            name=made.name,
            storage=self._home.allocate(spec, begin.constant, begin.rows, road),
            home=self._home,
            traffic=self._traffic,
            plain_variable=plain_variable,
            strategy=self._strategy,
            owner=owner,
            barrier=functools.partial(self._job.barrier, f"values of {made.path}"),
            is_whole=is_whole,
        )
        if begin.array is not None:
            table.assign(begin.array())
        if owner is None:
            self.tables.append(table)
            if not is_whole:
                self._unsettled.add(table._unique_id)
            home = self._home.at_end_of(road).name
            self._note(table, made, road, count, home, reason)
        return table

    def _begin(self, made: Creation) -> InitialValue:
        return initial_value(
            made.initial_value, made.shape, made.dtype, self._job, made.path
        )

    def _note(
        self,
        variable: Table | tf.Variable,
        made: Creation,
        road: str,
        partitions: int,
        home: str,
        reason: str,
    ) -> None:
        """Writes a new variable into the plan; its gradient is not known yet."""
        self._plan.add(
            variable._unique_id,
            Entry(
                variable=made.path,
                shape=made.shape,
                dtype=made.dtype.name,
                gradient="unknown",
                road=road,
                partitions=partitions,
                home=home,
                update="",
                reason=reason,
            ),
        )


def _is_worth_a_look(made: Creation) -> bool:
    """Whether a plain variable would be moved if its rows were looked up."""
    return (
        len(made.shape) >= 2
        and made.dtype.is_floating
        and made.size_bytes >= LOOK_BYTES
    )
