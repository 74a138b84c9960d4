"""The contract of `tf.distribute`, kept thin: each method says who does the work.

One process is one worker is one replica. Keras calls in here to create variables,
to run a step, to sum gradients over the replicas and to update a variable; which
road a variable takes is decided once, when it is created, and looked up after.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial

import tensorflow as tf
from tensorflow.python.distribute import distribute_lib, values

from keras_parallax import scope
from keras_parallax.collectives.attendance import Attendance
from keras_parallax.collectives.dense import DenseRoad
from keras_parallax.data import share_of
from keras_parallax.errors import ConfigError
from keras_parallax.keras_steps import Step, step_of
from keras_parallax.plan.plan import Plan
from keras_parallax.plan.probe import probe
from keras_parallax.plan.routing import NOT_LOOKED_UP
from keras_parallax.shares import MeanVariable, MetricVariable, ShareWeights
from keras_parallax.tables.clipping import Clipping
from keras_parallax.tables.factory import TableFactory
from keras_parallax.tables.optimizer import TableOptimizer
from keras_parallax.tables.router import Router
from keras_parallax.tables.server_variable import ServerVariable
from keras_parallax.tables.table import Table
from keras_parallax.tables.traffic import StepTraffic

# Index of a process's replica among those of the process.
_ONLY_REPLICA = 0


class ParallaxExtended(tf.compat.v1.distribute.StrategyExtended):
    """`tf.distribute.StrategyExtended` of `ParallaxStrategy`.

    Args:
        strategy: The strategy that this extends.
        device: Device of this worker.
        dense: The dense road.
        plan: Where decisions are written down.
        factory: Makes tables.
        router: Gives them their roads.
        optimizer: Runs the user's optimizer on tables.
        traffic: Collects what a step wants of tables.
        attendance: Counts the calls that this worker has come to.
        rank: Rank of this worker.
        size: Number of workers.
        together: Whether the workers take their steps together.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        *,
        device: str,
        dense: DenseRoad,
        plan: Plan,
        factory: TableFactory,
        router: Router,
        optimizer: TableOptimizer,
        traffic: StepTraffic,
        attendance: Attendance,
        rank: int,
        size: int,
        together: bool = True,
    ):
        super().__init__(strategy)
        self._default_device = device
        self._device = device
        self._dense = dense
        self._plan = plan
        self._factory = factory
        self._router = router
        self._rank = rank
        self._size = size
        self._together = together or size == 1
        self._optimizer = optimizer
        self._traffic = traffic
        self._attendance = attendance
        self._weights = ShareWeights(dense, size, together)
        self._clipping = Clipping(traffic)
        self._step = Step()
        self._probing = False
        self._plain_seen: dict[str, tuple[tf.Variable, set[str]]] = {}
        self._sums_on_servers = False

    # Creation of variables.

    def _create_variable(self, next_creator: Callable, **kwargs):
        owner = kwargs.pop("colocate_with", None)
        with tf.init_scope(), tf.device(self._device):
            variable = self._factory.create(next_creator, kwargs, owner)
            if self._size == 1 or isinstance(variable, Table | ServerVariable):
                return variable
            return self._on_every_worker(variable, kwargs)

    def _on_every_worker(self, variable: tf.Variable, kwargs: dict):
        """The variable, alike on all workers and kept so by its own semantics."""
        strategy = self._container_strategy()
        if kwargs.get("synchronization") == tf.VariableSynchronization.ON_READ:
            return MetricVariable(
                strategy, variable, kwargs["aggregation"], self._weights
            )
        if variable.dtype == tf.uint32:
            # The state of a Keras seed generator: each worker draws dropout masks
            # of its own, for its own examples.
            offset = tf.constant([self._rank * 0x9E3779B9 % 2**32, 0], tf.uint32)
            variable.assign(variable + offset)
            return variable
        variable.assign(self._dense.broadcast(variable.read_value()))
        moving = not kwargs.get("trainable", True) and variable.dtype.is_floating
        if moving and kwargs.get("aggregation") in (
            tf.VariableAggregation.NONE,
            tf.VariableAggregation.MEAN,
        ):
            return MeanVariable(strategy, variable, self._weights)
        return variable

    def colocate_vars_with(self, colocate_with_variable):
        """Slots of a table are tables beside it."""
        self._refuse_foreign_variable(colocate_with_variable)
        owner = colocate_with_variable
        if isinstance(owner, ServerVariable):
            owner = owner.table

        def beside(next_creator, **kwargs):
            return next_creator(colocate_with=owner, **kwargs)

        return self._slots_made_by(beside)

    @contextlib.contextmanager
    def _slots_made_by(self, creator: Callable) -> Iterator[None]:
        strategy = self._container_strategy()
        with contextlib.ExitStack() as stack:
            # `optimizer.build` may be called anywhere: outside of the scope the
            # strategy would not be asked for the slots.
            if not tf.distribute.has_strategy():
                stack.enter_context(strategy.scope())
            stack.enter_context(tf.variable_creator_scope(creator))
            yield

    def _scope(self, strategy):
        return scope.Scope(super()._scope(strategy))

    def _refuse_foreign_variable(self, variable) -> None:
        made_by = getattr(variable, "_distribute_strategy", None)
        if made_by is not self._container_strategy():
            raise scope.built_outside(variable.name)

    # Running a step.

    @contextlib.contextmanager
    def stepping(self, function: Callable):
        """Notes whose step is run within the block."""
        before, self._step = self._step, step_of(function)
        self._refuse_foreign_optimizer()
        try:
            with self._clipping.of_step(self._step.model):
                yield self._step
        finally:
            self._step = before

    def _refuse_foreign_optimizer(self) -> None:
        model = self._step.model
        if model is None:
            return
        optimizer = getattr(model, "optimizer", None)
        made_by = getattr(optimizer, "_distribution_strategy", None)
        if made_by not in (None, self._container_strategy()):
            raise scope.compiled_outside(f"The model {model.name}")

    def _call_for_each_replica(self, fn: Callable, args: tuple, kwargs: dict):
        replica = tf.distribute.ReplicaContext(
            self._container_strategy(), replica_id_in_sync_group=self._rank
        )
        with replica, tf.device(self._device):
            if self._has_to_settle():
                self._settle(fn, args, kwargs)
            if self._size > 1:
                self._attendance.come(args)
            with (
                self._weights.of_step(self._step.model, args),
                self._traffic.step(
                    self._factory.server_variables, self._step.trains, inputs=args
                ),
            ):
                outputs = fn(*args, **kwargs)
            if self._step.predicts:
                outputs = tf.nest.map_structure(self._dense.all_gather, outputs)
            return outputs

    def _has_to_settle(self) -> bool:
        if self._probing or tf.executing_eagerly():
            return False
        model = self._step.model
        if model is None:
            return self._factory.unsettled()
        return self._factory.unsettled(w._value for w in model.trainable_variables)

    def _settle(self, fn: Callable, args: tuple, kwargs: dict) -> None:
        """Traces the step without running it, to give variables their roads."""
        self._probing = True
        self._plain_seen = {}
        try:
            seen = probe(fn, args, kwargs, self._factory.tables)
        finally:
            self._probing = False
        plain = [(variable, kinds) for variable, kinds in self._plain_seen.values()]
        self._plain_seen = {}
        with tf.init_scope():
            moved = self._router.settle(seen, plain)
        model = self._step.model
        if moved and model is not None:
            # Of the step that is being traced nothing is in use yet.
            model.test_function = model.predict_function = None

    # Reduction.

    def _replica_ctx_all_reduce(self, reduce_op, value, options=None):
        flat = self._weights.apply(tf.nest.flatten(value))
        self._clipping.expect(len(flat))
        if not self._together:
            # A step waits for nobody: the worker pushes what it has.
            self._sums_on_servers = True
            self._traffic.expect(len(flat))
            return tf.nest.pack_sequence_as(value, flat)
        # Slices are summed where their destination is known: in `update`.
        dense = [g for g in flat if not isinstance(g, tf.IndexedSlices)]
        gradients = self._weights.are_gradients(flat)
        self._sums_on_servers = gradients and bool(self._factory.server_variables)
        if self._sums_on_servers:
            self._traffic.expect(len(flat))
            return tf.nest.pack_sequence_as(value, flat)
        self._traffic.expect(len(flat) - len(dense))
        if gradients:
            reduced = iter(self._weights.reduce_gradients(dense))
        else:
            reduced = iter(self._dense.all_reduce(dense))
        flat = [
            g
            if isinstance(g, tf.IndexedSlices)
            else self._averaged(next(reduced), reduce_op)
            for g in flat
        ]
        return tf.nest.pack_sequence_as(value, flat)

    def _batch_reduce_to(self, reduce_op, value_destination_pairs, options):
        return self._replica_ctx_all_reduce(
            reduce_op, [value for value, _ in value_destination_pairs]
        )

    def _reduce_to(self, reduce_op, value, destinations, options):
        del destinations, options
        self._refuse_to_wait("strategy.reduce")
        local = (
            value.values[0] if isinstance(value, values.DistributedValues) else value
        )
        (total,) = self._dense.all_reduce([tf.convert_to_tensor(local)])
        return self._averaged(total, reduce_op)

    def _refuse_to_wait(self, call: str) -> None:
        """Raises where a graph would have a worker wait for steps of the others, of
        which there may be fewer."""
        if not self._together and not tf.executing_eagerly():
            raise ConfigError(
                f"`{call}` inside of a `tf.function` waits for all workers in each "
                "step, but in asynchronous training they take their steps by "
                "themselves. Have the function return this worker's value, and call "
                "it outside, on every worker alike. Received: synchronous=False"
            )

    def _averaged(self, total: tf.Tensor, reduce_op) -> tf.Tensor:
        if reduce_op == tf.distribute.ReduceOp.MEAN and self._size > 1:
            return total / tf.cast(self._size, total.dtype)
        return total

    def _gather_to_implementation(self, value, destinations, axis, options):
        del destinations, options
        self._refuse_to_wait("strategy.gather")
        moved = tf.experimental.numpy.moveaxis(tf.convert_to_tensor(value), axis, 0)
        gathered = self._dense.all_gather(moved)
        return tf.experimental.numpy.moveaxis(gathered, 0, axis)

    def _batch_gather_to(self, value_destination_pairs, axis, options=None):
        return [
            self._gather_to_implementation(value, destination, axis, options)
            for value, destination in value_destination_pairs
        ]

    def _broadcast_to(self, tensor, destinations):
        del destinations
        return tensor

    # Update.

    def _replica_ctx_update(self, var, fn, args=(), kwargs=None, group=True):
        return self._update(var, fn, args, kwargs or {}, group)

    def _update(self, var, fn, args, kwargs, group):
        del group
        # An optimizer without slots asks for nothing before.
        self._refuse_foreign_variable(var)
        fn = self._clipping.by_value(fn, args)
        if isinstance(var, Table) and var.replica is None:
            return self._update_table(var, fn, args, kwargs)
        slices = bool(args) and isinstance(args[0], tf.IndexedSlices)
        if args:
            kind = "sparse" if slices else "dense"
            self._plan.change(var._unique_id, gradient=kind)
            if not slices and self._plan.reason(var._unique_id) == NOT_LOOKED_UP:
                self._plan.change(var._unique_id, reason="its gradient is dense")
            if self._probing:
                seen = self._plain_seen.setdefault(var._unique_id, (var, set()))
                seen[1].add(kind)
        if isinstance(var, ServerVariable):
            if args:
                gradient = args[0]
                if not slices and not self._sums_on_servers:
                    # In a custom loop it is the sum already: each pushes its part.
                    gradient = self._averaged(gradient, tf.distribute.ReduceOp.MEAN)
                args = (var.slices(gradient), *args[1:])
            return self._update_table(var.table, fn, args, kwargs)
        if args and (slices or self._sums_on_servers):
            # A dense variable whose rows were looked up: the sum of its slices is
            # what the mathematics asks for, duplicates included.
            gradient = tf.convert_to_tensor(args[0])
            (gradient,) = self._dense.all_reduce([gradient], "slices")
            args = (gradient, *args[1:])
            self._traffic.passed()
        local = var.values[0] if isinstance(var, values.DistributedVariable) else var
        return self._update_here(local, fn, args, kwargs)

    def _update_table(self, table: Table, fn: Callable, args: tuple, kwargs: dict):
        if self._probing:
            return self._optimizer.study(table, fn, args, kwargs)
        update = partial(self._optimizer.update, table, fn, args, kwargs)
        held = self._clipping.by_norm(fn, args)
        return update() if held is None else held.add_table(update)

    def _update_here(self, local, fn: Callable, args: tuple, kwargs: dict):
        def update(*args):
            with distribute_lib.UpdateContext(_ONLY_REPLICA), tf.device(self._device):
                return fn(local, *args, **kwargs)

        held = None if self._probing else self._clipping.by_norm(fn, args)
        if held is None:
            return update(*args)
        return held.add(args[0], lambda total: update(total, *args[1:]))

    def _update_non_slot(self, colocate_with, fn, args, kwargs, group):
        del group
        with distribute_lib.UpdateContext(_ONLY_REPLICA), tf.device(self._device):
            return fn(*args, **kwargs)

    def _use_merge_call(self):
        return False

    # Data.

    def _experimental_distribute_dataset(self, dataset, options):
        del options
        return share_of(dataset, self._rank, self._size)

    def _distribute_datasets_from_function(self, dataset_fn, options):
        del options
        return dataset_fn(
            tf.distribute.InputContext(
                num_input_pipelines=self._size,
                input_pipeline_id=self._rank,
                num_replicas_in_sync=self._size,
            )
        )

    def _experimental_distribute_values_from_function(self, value_fn):
        return value_fn(distribute_lib.ValueContext(self._rank, self._size))

    # What tf.distribute asks about the cluster.

    def _local_results(self, val):
        return (val,)

    def value_container(self, value):
        """A value is its own container: there is one replica in this process."""
        return value

    def read_var(self, v):
        """Reads a variable, whole."""
        return v.read_value()

    def non_slot_devices(self, var_list):
        """Device of what belongs to no variable."""
        del var_list
        return (self._device,)

    @property
    def _num_replicas_in_sync(self):
        return self._size

    @property
    def worker_devices(self):
        """Devices of this process's replicas."""
        return (self._device,)

    @property
    def parameter_devices(self):
        """Devices on which this process makes variables."""
        return (self._device,)

    def _in_multi_worker_mode(self):
        return self._size > 1

    def _get_local_replica_id(self, replica_id_in_sync_group):
        del replica_id_in_sync_group
        return 0

    def _get_replica_id_in_sync_group(self, replica_id):
        del replica_id
        return self._rank

    @property
    def experimental_between_graph(self):
        """Every worker builds its own graph."""
        return True

    @property
    def experimental_should_init(self):
        """Every worker initialises its own variables."""
        return True

    @property
    def should_checkpoint(self):
        """Worker 0 writes checkpoints."""
        return self._rank == 0

    @property
    def should_save_summary(self):
        """Worker 0 writes summaries."""
        return self._rank == 0
