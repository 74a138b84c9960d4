"""The translator, by system and number of hosts.

An encoder and a decoder with attention: tables of 40,000 source and 4,000 target words,
width 64, and a dense softmax over the target words; 128 sentences of 10 words a worker,
drawn by Zipf's law. After the paper's NMT, which has dense variables and sparse ones of
about the same size.
"""

from benchmarks import comparison

MODEL = {"source_words": 40_000, "target_words": 4_000, "width": 64}
BATCH = 128
RATE = 50
FEW = ("one process", "ours", "horovod", "naive ps")
SYSTEMS = (*FEW, "ours, servers", "optimised ps")
HOROVOD_TARGET, NAIVE_TARGET = 2.3, 1.7


def cases(quick):
    def case(hosts, rate=RATE, systems=SYSTEMS):
        turns, steps = (3, 3) if quick else (5, 6)
        return comparison.Case(
            "translator", hosts, rate, systems, BATCH, MODEL, turns=turns, steps=steps
        )

    if quick:
        return [case(4, systems=FEW)]
    found = [case(hosts) for hosts in (8, 4, 2)]
    return [*found, case(1, None, ("one process", "ours"))]


def check(results):
    for key in comparison.cases_of_rows(results.rows):
        if key[0] == 8:
            comparison.check_speedup(results, key, "horovod", HOROVOD_TARGET)
            comparison.check_speedup(results, key, "naive ps", NAIVE_TARGET)
    comparison.check_everywhere(results)


if __name__ == "__main__":
    comparison.main(__doc__, "translation", cases, check, comparison.plot)
