"""Step time over the number of partitions, from a few samples.

Kim et al., "Parallax", EuroSys 2019, section 3.2: with `P` partitions a step takes

    t0 + t1/P + t2·P

`t0` is what does not depend on them; `t1` the work on rows that partitions share
among themselves; `t2` what each of them costs by being one. The samples are of one
machine and one step each, and noisy: coefficients are kept from being negative,
which no time is.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class PartitionFit:
    """The model, fitted to samples.

    Attributes:
        constant_s: `t0`, seconds.
        shared_s: `t1`, seconds.
        each_s: `t2`, seconds.
        samples: `(partitions, seconds)`, in order of partitions.
    """

    constant_s: float
    shared_s: float
    each_s: float
    samples: tuple[tuple[int, float], ...]

    @classmethod
    def of(cls, samples: Iterable[tuple[int, float]]) -> PartitionFit:
        """The least squares fit with no coefficient below zero.

        One sample fits a constant; two, a constant and whichever of the other terms
        goes through both.

        Args:
            samples: `(partitions, seconds)`; several of one number are welcome.

        Raises:
            ValueError: There is no sample, or one is no number of partitions with
                a positive time.
        """
        known = tuple(sorted((int(count), float(time)) for count, time in samples))
        good = all(
            count >= 1 and time > 0 and np.isfinite(time) for count, time in known
        )
        if not known or not good:
            raise ValueError(
                "Expected samples of (partitions, seconds), at least one, each of a "
                f"positive number and a positive time. Received: {list(known)}"
            )
        counts, times = (np.array(column, float) for column in zip(*known, strict=True))
        terms = np.stack([np.ones_like(counts), 1 / counts, counts], axis=1)
        # As many terms as there are different numbers of partitions can be told.
        most = min(3, len(set(counts)))
        best, coefficients = np.inf, np.array([times.mean(), 0.0, 0.0])
        for size in range(1, most + 1):
            for chosen in itertools.combinations(range(3), size):
                if 0 not in chosen and most < 3:
                    continue
                found = np.zeros(3)
                found[list(chosen)] = np.linalg.lstsq(
                    terms[:, chosen], times, rcond=None
                )[0]
                error = float(np.sum((terms @ found - times) ** 2))
                # A term more has to explain something.
                if (found >= 0).all() and error < best * (1 - 1e-9) - 1e-30:
                    best, coefficients = error, found
        constant, shared, each = coefficients.tolist()
        return cls(constant, shared, each, known)

    def seconds(self, partitions: float) -> float:
        """What the model says of so many partitions."""
        return self.constant_s + self.shared_s / partitions + self.each_s * partitions

    def argmin(self, candidates: Sequence[int]) -> int:
        """The number among `candidates` that takes least; of equals, the smallest.

        Raises:
            ValueError: There are none.
        """
        if not candidates:
            raise ValueError(
                "Expected numbers of partitions to choose from. "
                f"Received: {candidates!r}"
            )
        return min(sorted(candidates), key=self.seconds)

    @property
    def residual_s(self) -> float:
        """Root of the mean squared error over the samples, seconds."""
        errors = [self.seconds(count) - time for count, time in self.samples]
        return float(np.sqrt(np.mean(np.square(errors))))

    @property
    def r2(self) -> float:
        """Share of the samples' variance that the fit explains; 1 for one sample."""
        times = np.array([time for _, time in self.samples])
        variance = float(np.var(times))
        if variance <= 1e-18:
            return 1.0
        return 1 - self.residual_s**2 / variance

    def to_dict(self) -> dict:
        """It, as plain data."""
        return {
            "constant_s": self.constant_s,
            "shared_s": self.shared_s,
            "each_s": self.each_s,
            "r2": self.r2,
            "residual_s": self.residual_s,
            "samples": [list(sample) for sample in self.samples],
        }

    def __str__(self) -> str:
        return (
            f"{1e3 * self.constant_s:.3g} + {1e3 * self.shared_s:.3g}/P + "
            f"{1e3 * self.each_s:.3g}*P ms (R2 {self.r2:.2f} of "
            f"{len(self.samples)} samples)"
        )
