"""The King James text in windows of words, and what it is to know word counts only."""

import typing

import numpy as np

from data.bible import read_words
from data.words import build_vocabulary, encode


class Corpus(typing.NamedTuple):
    """The text in windows of ids.

    Attributes:
        train, test: Dicts of two arrays of shape `(windows, length)`: `words`, and
            `targets`, the word after each of them, which is the one to predict.
        vocabulary_size: Number of different ids.
    """

    train: dict
    test: dict
    vocabulary_size: int


def load_corpus(length, batch_size, max_batches=None):
    """Reads the text, holds out a part, numbers its words, cuts it into windows.

    Args:
        length: Words in a window.
        batch_size: Windows in a batch. The windows fill whole batches.
        max_batches: Greatest number of batches of each part. `None` keeps all.

    Returns:
        `Corpus`.
    """
    train, test = split_passages(read_words())
    vocabulary = build_vocabulary(train)
    train, test = (
        cut_windows(encode(words, vocabulary), length, batch_size, max_batches)
        for words in (train, test)
    )
    return Corpus(train, test, len(vocabulary))


def split_passages(words, passage_words=1000, every=20):
    """Holds out one passage in `every` for testing, spread over the whole text.

    The end of the text would be a harder and narrower test: other books, other
    names. Passages taken from all over test what was learned about all of it.

    Args:
        words: List of words.
        passage_words: Length of a passage, in words.
        every: One passage in this many is held out.

    Returns:
        Two lists of words, `(train, test)`, each in the order of the text.
    """
    train, test = [], []
    for number, start in enumerate(range(0, len(words), passage_words)):
        part = test if number % every == every - 1 else train
        part.extend(words[start : start + passage_words])
    return train, test


def cut_windows(ids, length, batch_size, max_batches=None):
    """Cuts a stream of ids into windows, and drops what does not fill a batch.

    Args:
        ids: Array of shape `(words,)`.
        length: Words in a window.
        batch_size: Windows in a batch.
        max_batches: Greatest number of batches to keep. `None` keeps all.

    Returns:
        Dict of two arrays of shape `(windows, length)`: `words`, and `targets`, the
        word that follows each of them.

    Raises:
        ValueError: If the ids do not fill one batch.
    """
    batches = (len(ids) - 1) // (length * batch_size)
    if batches < 1:
        raise ValueError(
            "The text does not fill one batch. Expected at least length * batch_size "
            f"+ 1 = {length * batch_size + 1} ids; make the batch smaller. "
            f"Received: len(ids)={len(ids)}, length={length}, batch_size={batch_size}"
        )
    if max_batches is not None:
        batches = min(batches, max_batches)
    end = batches * batch_size * length
    return {
        "words": ids[:end].reshape(-1, length),
        "targets": ids[1 : end + 1].reshape(-1, length),
    }


def unigram_perplexity(corpus):
    """Perplexity of the model that knows how often each word occurs, and no more.

    Its counts are those of the training words, each raised by one, so that no word
    is impossible.

    Args:
        corpus: `Corpus`, of which it predicts the test targets.

    Returns:
        Float, at least 1.
    """
    words = corpus.train["words"].reshape(-1)
    counts = np.bincount(words, minlength=corpus.vocabulary_size) + 1
    log_probabilities = np.log(counts / counts.sum())
    return float(np.exp(-log_probabilities[corpus.test["targets"]].mean()))
