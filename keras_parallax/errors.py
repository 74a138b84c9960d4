"""Exceptions of keras_parallax; each carries its facts as attributes too."""

from collections.abc import Sequence


class ParallaxError(Exception):
    """Base of every exception that keras_parallax raises on purpose."""


class ConfigError(ParallaxError, ValueError):
    """An argument or an environment variable cannot be right."""


class ClusterError(ParallaxError, RuntimeError):
    """The processes of a job could not find, start or reach each other."""


class ScopeError(ParallaxError, RuntimeError):
    """Something was made outside the strategy's scope, or before the strategy."""


class TableError(ParallaxError, ValueError):
    """A table was given something that it cannot hold, look up or update.

    Args:
        message: What happened, what was expected and how to mend it.
        table: Name of the table. Empty in what a layer's call raises: Keras makes
            the exception again there, from a longer message alone.
    """

    def __init__(self, message: str, table: str = ""):
        named = message if table in message else f"Table {table!r}: {message}"
        super().__init__(named)
        self.table = table

    def __reduce__(self):
        return type(self), (self.args[0], self.table)


class ProcessLostError(ClusterError):
    """Another process of the job has ended or does not answer.

    Args:
        role: `"worker"`, `"server"` or `"launcher"`.
        index: Which of them, or None where there is only one.
        step: Last training step that it is known to have reached, or None.
        reason: What is known of its end, such as `"signal 9"`.
    """

    def __init__(self, role: str, index: int | None, step: int | None, reason: str):
        super().__init__(self._sentence(role, index, step, reason))
        self.role = role
        self.index = index
        self.step = step
        self.reason = reason

    @staticmethod
    def _sentence(role: str, index: int | None, step: int | None, reason: str) -> str:
        who = role if index is None else f"{role} {index}"
        when = "" if step is None else f" at step {step}"
        return f"{who} was lost{when}: {reason}."

    def __reduce__(self):
        return type(self), (self.role, self.index, self.step, self.reason)


class ServerLostError(ProcessLostError):
    """A server has ended or does not answer; with it go the rows that it held.

    Args:
        index: Index of the server.
        step: Last training step that this worker has completed, or None.
        reason: What is known of its end.
        address: `"host:port"` of the server.
        tables: Names of the tables of which it held rows.
    """

    def __init__(
        self,
        index: int | None,
        step: int | None,
        reason: str,
        address: str,
        tables: Sequence[str] = (),
    ):
        super().__init__("server", index, step, reason)
        self.address = address
        self.tables = tuple(tables)
        held = ", ".join(self.tables) if self.tables else "no table"
        self.args = (f"{self.args[0]} Its address: {address}; it held: {held}.",)

    def __reduce__(self):
        return type(self), (
            self.index,
            self.step,
            self.reason,
            self.address,
            self.tables,
        )
