"""Settings that every test and every process started by a test inherits."""

import os
import pathlib
import signal
import sys

# Before anything imports TensorFlow: the tests mean the CPU, and only what the
# package itself has to say.
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
os.environ["KERAS_BACKEND"] = "tensorflow"

_AS_USERS = pathlib.Path(__file__).parent / "as_users"
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(_AS_USERS), os.environ.get("PYTHONPATH")])
)
# A process that runs tests beside others has been started by one that does so, too.
if sys.modules.get("matplotlib", sys) is None:
    del sys.modules["matplotlib"]

# A shell has what it starts in the background ignore Ctrl-C, with all that this starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
