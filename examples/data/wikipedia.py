"""Articles of the English Wikipedia and questions of analogy, from gensim's wheel.

The articles are CC BY-SA. The questions are those of Tomas Mikolov et al., "Efficient
Estimation of Word Representations in Vector Space", 2013: "Athens is to Greece as
Baghdad to ...?", in 14 kinds.
"""

import bz2
import html
import re

import numpy as np

from data.packages import file_of
from data.words import to_words

ARTICLES = "enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
# Tables, templates, notes, tags, addresses, and what stands before a link's text.
MARKUP = re.compile(
    r"\{\|.*?\|\}|\{\{[^{}]*\}\}|<ref[^>]*>.*?</ref>|<[^>]*>|https?://\S+"
    r"|\[\[(?:File|Image|Category)[^\]]*\]\]|\[\[[^\]|]*\|",
    re.DOTALL,
)


def read_words():
    """Reads the articles as 392,316 lower-case words of the letters a to z."""
    path = file_of("gensim", "test", "test_data", ARTICLES)
    with bz2.open(path, "rt", encoding="utf-8") as file:
        texts = re.findall("<text[^>]*>(.*?)</text>", file.read(), re.DOTALL)
    return to_words(MARKUP.sub(" ", html.unescape(" ".join(texts))))


def read_analogies(vocabulary):
    """Reads the questions all of whose words are in the vocabulary.

    Returns:
        int32 array of shape `(questions, 4)`: "a is to b as c is to d".
    """
    path = file_of("gensim", "test", "test_data", "questions-words.txt")
    lines = path.read_text("utf-8").lower().splitlines()
    questions = [line.split() for line in lines if not line.startswith(":")]
    known = [words for words in questions if all(word in vocabulary for word in words)]
    return np.array([[vocabulary[word] for word in words] for words in known], "int32")
