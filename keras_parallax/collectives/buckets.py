"""Which gradients are reduced together, so that the first can go before the last.

Backpropagation gives the gradients of the last layers first. Each bucket is reduced
as soon as its gradients are there, while the others are still being computed, as in Li
et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", 2020.
"""

from collections.abc import Sequence

import tensorflow as tf

#: What is worth a message of its own. A reduction costs time however little it
#: carries: its sum is handed around the ring of workers, twice, in as many pieces as
#: there are workers. So it is the size of a piece that has to be worth it. A model of
#: 1.2 MB by 100 Mbit/s was quickest in a single bucket on 8 hosts.
PIECE_BYTES = 1 << 18

#: With so many buckets, what cannot be hidden, the last of them, is an eighth of all.
#: More would add to what they cost, and hide little.
MOST_BUCKETS = 8


def in_buckets(
    tensors: Sequence[tf.Tensor], workers: int, piece_bytes: float = PIECE_BYTES
) -> list[list[int]]:
    """Puts tensors into buckets, the last tensor first.

    Args:
        tensors: In the order of the variables' creation, which is the reverse of
            that in which their gradients are known.
        workers: Number of workers that reduce them.
        piece_bytes: A bucket is full when it has as much for each worker, and an eighth
            of all. The last one of a type may have less: when its gradients are known,
            nothing is left to compute that could hide how long it takes.

    Returns:
        Indices of the tensors of each bucket, all of one type.
    """
    sizes = [(t.shape.num_elements() or 0) * t.dtype.size for t in tensors]
    least_bytes = max(piece_bytes * workers, sum(sizes) / MOST_BUCKETS)
    buckets: list[list[int]] = []
    filling: dict[tf.DType, list[int]] = {}
    for index in reversed(range(len(tensors))):
        bucket = filling.setdefault(tensors[index].dtype, [])
        bucket.append(index)
        if sum(sizes[member] for member in bucket) >= least_bytes:
            buckets.append(filling.pop(tensors[index].dtype))
    return [*buckets, *filling.values()]
