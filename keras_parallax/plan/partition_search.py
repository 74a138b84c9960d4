"""Which numbers of partitions to try next, and which to keep.

After Kim et al., "Parallax", EuroSys 2019, section 3.2: double the number while that
helps, then halve it from where the search began; fit `t0 + t1/P + t2·P`, take the
least. Plain data in, plain data out; see `callbacks.PartitionSearch` for the rest.
"""

from __future__ import annotations

import math

from keras_parallax.plan.partition_fit import PartitionFit

# A number that is this much slower than the best ends a direction: less is noise.
_WORSE = 1.05
# A fit that explains less than this of the samples is not believed.
_LEAST_R2 = 0.5


class PartitionSearch:
    """A search over powers of two.

    Args:
        start: Number of partitions to begin with.
        least: Fewest that can be, for a partition has its limit of bytes.
        most: Most that are tried.
        most_samples: How many numbers are tried at most.
    """

    def __init__(self, start: int, least: int, most: int, most_samples: int):
        powers = [1 << n for n in range(max(1, most).bit_length())]
        self.candidates = [p for p in powers if least <= p <= most] or [max(1, least)]
        self._start = min(self.candidates, key=lambda p: abs(math.log(p / start)))
        self._most_samples = most_samples
        self.samples: dict[int, float] = {}

    def next_count(self) -> int | None:
        """The number to try next; None when the search is over."""
        if not self.samples:
            return self._start
        if len(self.samples) >= self._most_samples:
            return None
        for direction in (1, -1):
            following = self._following(direction)
            if following is not None:
                return following
        return None

    def _following(self, direction: int) -> int | None:
        """The next in a direction, unless it has stopped helping there."""
        index = self.candidates.index(self._start)
        best = self.samples[self._start]
        while 0 <= index + direction < len(self.candidates):
            index += direction
            count = self.candidates[index]
            if count not in self.samples:
                return count
            if self.samples[count] > best * _WORSE:
                return None
            best = min(best, self.samples[count])
        return None

    def add(self, count: int, seconds: float) -> None:
        """Takes note of a sample: seconds of a step with `count` partitions."""
        self.samples[count] = seconds

    @property
    def fit(self) -> PartitionFit:
        """The fit to the samples."""
        return PartitionFit.of(self.samples.items())

    @property
    def chosen(self) -> int:
        """The best number: the fit's, among those between the samples; the fastest
        sample where the fit does not hold."""
        fastest = min(self.samples, key=lambda count: self.samples[count])
        if len(self.samples) < 4 or self.fit.r2 < _LEAST_R2:
            return fastest
        tried = [p for p in self.candidates if p in self.samples]
        between = [p for p in self.candidates if tried[0] <= p <= tried[-1]]
        chosen = self.fit.argmin(between)
        # The fit smooths out noise; it does not overrule what was seen by much.
        if self.samples.get(chosen, math.inf) > self.samples[fastest] * _WORSE:
            return fastest
        return chosen
