"""A small residual network, by system and number of hosts: no table at all.

300,000 weights, batch statistics, images of 16 x 16, 8 a worker. Here there is nothing
to win over Horovod, and nothing may be lost to it.
"""

from benchmarks import comparison

BATCH = 8
RATE = 100
SYSTEMS = ("one process", "ours", "horovod", "naive ps")
NAIVE_TARGET = 1.53


def cases(quick):
    def case(hosts, rate=RATE, systems=SYSTEMS):
        turns, steps = (3, 3) if quick else (7, 6)
        return comparison.Case(
            "resnet", hosts, rate, systems, BATCH, turns=turns, steps=steps
        )

    if quick:
        return [case(4)]
    found = [case(hosts) for hosts in (8, 4, 2)]
    return [*found, case(1, None, ("one process", "ours"))]


def check(results):
    for key in comparison.cases_of_rows(results.rows):
        if key[0] > 1:
            comparison.check_speedup(results, key, "naive ps", NAIVE_TARGET)
    comparison.check_everywhere(results)


if __name__ == "__main__":
    comparison.main(__doc__, "image_classification", cases, check, comparison.plot)
