"""Python imports this when it starts, in every process that a test has started.

There is no Matplotlib then, as with most users: Keras imports it wherever it is, and
that is a quarter of the time that a worker takes to start.
"""

import sys

sys.modules["matplotlib"] = None
