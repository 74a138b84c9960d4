"""Verses of two versions of the Bible side by side, for a translator from one to the
other."""

import typing

import numpy as np

from data.bible import read_verses
from data.words import build_vocabulary, encode

# Ids of what is no word: the filling of short verses, where one begins, where it ends.
PAD, BEGIN, END = 0, 1, 2
SPECIAL = 3


class Verses(typing.NamedTuple):
    """Pairs of verses, as ids.

    Attributes:
        source: int32 array of shape `(n, length)`.
        target_in: int32 array of shape `(n, length + 1)`: `BEGIN`, then the words.
        target_out: int32 array of shape `(n, length + 1)`: the words, then `END`.
    """

    source: np.ndarray
    target_in: np.ndarray
    target_out: np.ndarray


class Parallel(typing.NamedTuple):
    """The verses, and how to read and write them.

    Attributes:
        train, test: `Verses`.
        source_words, target_words: Lists of words, each at its id.
    """

    train: Verses
    test: Verses
    source_words: list
    target_words: list


def load_parallel(source, target, length, least_count=2, test_every=20):
    """Reads two versions and keeps the verses that are short in both.

    Args:
        source, target: Names of the packages of the two versions.
        length: Most words of a verse, in either.
        least_count: Words that occur less often in training are unknown.
        test_every: One verse in so many is held out, all over the text.

    Returns:
        `Parallel`.
    """
    sides = [read_verses(source), read_verses(target)]
    numbers = [
        verse
        for verse in sides[0]
        if verse in sides[1] and all(0 < len(side[verse]) <= length for side in sides)
    ]
    parts = [], []
    for position, verse in enumerate(numbers):
        parts[position % test_every == test_every - 1].append(verse)
    vocabularies = [
        build_vocabulary(
            [word for verse in parts[0] for word in side[verse]], least_count
        )
        for side in sides
    ]
    train, test = (pair_up(part, sides, vocabularies, length) for part in parts)
    special = ["<pad>", "<begin>", "<end>"]
    return Parallel(train, test, *(special + list(words) for words in vocabularies))


def pair_up(numbers, sides, vocabularies, length):
    """Arrays of the verses with these numbers, as `Verses`."""
    source, target = (
        [encode(side[verse], vocabulary) + SPECIAL for verse in numbers]
        for side, vocabulary in zip(sides, vocabularies, strict=True)
    )
    return Verses(
        fill([ids for ids in source], length),
        fill([[BEGIN, *ids] for ids in target], length + 1),
        fill([[*ids, END] for ids in target], length + 1),
    )


def fill(rows, length):
    """Rows of ids as one array, short rows filled up."""
    return np.array([[*ids, *[PAD] * (length - len(ids))] for ids in rows], "int32")


def bigram_perplexity(parallel, damping=1.0):
    """Perplexity of the model that knows which target word follows which, and no more.

    A pair's probability is drawn towards that of its second word alone, as if each
    first word had been seen `damping` more times, and that towards one over the number
    of words.

    Returns:
        Float: of the test verses' words, and ends, of `parallel`.
    """
    size = len(parallel.target_words)

    def pairs(verses):
        real = verses.target_out != PAD
        return verses.target_in[real].astype("int64"), verses.target_out[real]

    first, second = pairs(parallel.train)
    single = np.bincount(second, minlength=size) + 1 / size
    single = single / single.sum()
    seen, counts = np.unique(first * size + second, return_counts=True)
    after = np.bincount(first, minlength=size)
    first, second = pairs(parallel.test)
    place = np.searchsorted(seen, first * size + second).clip(max=len(seen) - 1)
    found = np.where(seen[place] == first * size + second, counts[place], 0)
    likely = (found + damping * single[second]) / (after[first] + damping)
    return float(np.exp(-np.log(likely).mean()))
