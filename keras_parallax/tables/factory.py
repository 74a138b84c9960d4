"""Makes tables, and replicates those whose gradient turns out to be dense."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from keras_parallax.cluster.job import Job
from keras_parallax.plan.plan import ALLREDUCE, SERVERS, Entry, Plan
from keras_parallax.plan.routing import Routing
from keras_parallax.servers.home import Home
from keras_parallax.servers.memory import MemoryGuard
from keras_parallax.servers.storage import TableSpec
from keras_parallax.tables.creation import Creation
from keras_parallax.tables.initial import initial_value
from keras_parallax.tables.server_variable import ServerVariable
from keras_parallax.tables.table import Table
from keras_parallax.tables.traffic import StepTraffic

logger = logging.getLogger("keras_parallax")


class TableFactory:
    """Makes tables for one strategy.

    Args:
        job: This worker's place in the job.
        home: Where partitions live.
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
        home: Home,
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
        self._unsettled: set[Table] = set()

    def create(
        self, next_creator: Callable, kwargs: dict, owner: Table | None
    ) -> Table | tf.Variable:
        """The variable described by `kwargs`: a table, or a plain one.

        Args:
            next_creator: Makes plain variables.
            kwargs: Arguments of the variable creator.
            owner: The table whose slot the variable is to be, if any.
        """
        made = Creation.of(kwargs)
        if made is None:
            return next_creator(**kwargs)
        if owner is not None:
            if owner.replica is None and made.shape == tuple(owner.shape):
                return self._make(made, next_creator, kwargs, owner, "slot of a table")
            return next_creator(**kwargs)
        road, reason = self._routing.road(made.path, made.name, made.shape)
        if road == SERVERS:
            return self._make(made, next_creator, kwargs, None, reason)
        variable = next_creator(**kwargs)
        if made.trainable and self._routing.dense_on_servers:
            return self._on_server(made, next_creator, kwargs, variable)
        if made.trainable:
            self._note(variable, made, ALLREDUCE, 1, "workers", reason)
        return variable

    def _on_server(
        self, made: Creation, next_creator: Callable, kwargs: dict, copy: tf.Variable
    ) -> ServerVariable:
        reason = "everything is on servers"
        table = self._make(made, next_creator, kwargs, None, reason, whole=copy)
        variable = ServerVariable(self._strategy, copy, table)
        # The optimizer's slots are found by the identity of what Keras holds.
        self._plan.rename(table._unique_id, variable._unique_id)
        table._unique_id = variable._unique_id
        copy.assign(variable.numpy())
        self.server_variables.append(variable)
        return variable

    def unsettled(self) -> bool:
        """Whether the gradient of some table has never been seen."""
        return bool(self._unsettled)

    def settle(self, table: Table, kinds: set[str]) -> None:
        """Takes note of the kinds of gradient a traced step has for a table."""
        if not kinds or table not in self._unsettled:
            return
        self._unsettled.discard(table)
        gradient = "both" if len(kinds) == 2 else next(iter(kinds))
        self._plan.change(table._unique_id, gradient=gradient)
        if "dense" in kinds:
            logger.warning(
                "%s is used whole in the training step, and its gradient is dense: "
                "it goes the dense road, as a copy on every worker.",
                table.path,
            )
            self._plan.change(
                table._unique_id,
                road=ALLREDUCE,
                partitions=1,
                home="workers",
                reason="used whole in the training step: its gradient is dense",
            )
            for member in (table, *table.slots):
                member.replicate()

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
                len(self._home.devices),
            )
        else:
            count = owner.storage.spec.num_partitions
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
        begin = initial_value(
            made.initial_value if whole is None else self._job.share(whole.numpy()),
            made.shape,
            made.dtype,
            self._job,
            made.path,
        )

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
            storage=self._home.allocate(spec, begin.constant, begin.rows),
            home=self._home,
            traffic=self._traffic,
            plain_variable=plain_variable,
            strategy=self._strategy,
            owner=owner,
            barrier=self._job.barrier,
            is_whole=is_whole,
        )
        if begin.array is not None:
            table.assign(begin.array())
        if owner is None:
            self.tables.append(table)
            if not is_whole:
                self._unsettled.add(table)
            self._note(table, made, SERVERS, count, self._home.name, reason)
        return table

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
