import subprocess
import sys
import threading

import pytest

from keras_parallax.cluster.place import place_in_program

# As of a library: calls, generators and scopes that come and go all the time.
BUSY = """
import contextlib

@contextlib.contextmanager
def scope(depth):
    if depth:
        with scope(depth - 1):
            yield
    else:
        yield

def work(depth):
    with scope(3):
        results = (work(depth - 1) if depth else 0 for _ in range(2))
        next(results)
        return sum(results) if depth % 9 == 0 else 0
"""


@pytest.fixture
def hurry():
    """Threads take turns as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def test_the_place_is_known_while_the_program_runs_on(hurry):
    library: dict = {}
    exec(compile(BUSY, "<library>", "exec"), library)  # noqa: S102 (of this file)
    places = []

    def look():
        for _ in range(5000):
            places.append(place_in_program())

    looking = threading.Thread(target=look)
    looking.start()
    while looking.is_alive():
        for depth in (5, 20, 60, 100):
            library["work"](depth)
    assert len(places) == 5000
    assert all(place and place.startswith("at test_place.py") for place in places)


# Finalizers that let the main thread run on, while its frames are being collected.
GARBAGE = """
import gc, sys, threading, time
from keras_parallax.cluster import place

class Garbage:
    def __init__(self):
        self.myself = self

    def __del__(self):
        time.sleep(1e-4)

def look():
    for _ in range(2000):
        for _ in range(3):
            Garbage()
        place.place_in_program()
    looked.set()

def work(depth):
    return work(depth - 1) + 1 if depth else 0

place._is_users = lambda frame: False
gc.set_threshold(20)
sys.setswitchinterval(1e-5)
looked = threading.Event()
threading.Thread(target=look).start()
while not looked.is_set():
    for depth in (5, 200, 40, 100):
        work(depth)
"""


def test_garbage_does_not_come_between():
    command = (sys.executable, "-X", "faulthandler", "-c", GARBAGE)
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
