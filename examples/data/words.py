"""Text to words, and words to ids."""

import collections
import re

import numpy as np

UNKNOWN = "<unk>"


def to_words(text):
    """Splits text into lower-case words of the letters a to z."""
    return re.findall("[a-z]+", text.lower())


def build_vocabulary(words, least_count=1):
    """Numbers the different words, the most frequent first.

    Log-uniform sampling of candidates, `tf.nn.sampled_softmax_loss`'s own, expects
    that order. Words that are not in `words` share the last id.

    Args:
        words: List of the training words.
        least_count: Words that occur less often have no id of their own.

    Returns:
        Dict of word to id, `UNKNOWN` last.
    """
    by_count = sorted(collections.Counter(words).items(), key=lambda x: (-x[1], x[0]))
    kept = [word for word, count in by_count if count >= least_count]
    return {word: index for index, word in enumerate([*kept, UNKNOWN])}


def encode(words, vocabulary):
    """Turns words into an int32 array of their ids, unseen ones into `UNKNOWN`'s."""
    unknown = vocabulary[UNKNOWN]
    return np.array([vocabulary.get(word, unknown) for word in words], "int32")
