"""The translator, by system and number of hosts.

An encoder and a decoder with attention: tables of 40,000 source and 4,000 target words,
width 64, and a dense softmax over the target words; 256 sentences of 10 words a worker,
drawn by Zipf's law. After the paper's NMT, where what Horovod gathers and what it
reduces are of about the same size. Fewer hosts have faster links; see `scaling.py`.
"""

from benchmarks import comparison, scaling

MODEL = {"source_words": 40_000, "target_words": 4_000, "width": 64}
BATCH = 256
#: Mbit/s on 8 hosts, and half as many hosts twice as much.
RATE_OF_8 = 25
FEW = ("one process", "ours", "horovod", "naive ps")
SYSTEMS = (*FEW, "ours, servers", "optimised ps")
HOROVOD_TARGET, NAIVE_TARGET = 2.3, 1.7


def cases(quick):
    def case(hosts, systems=SYSTEMS):
        turns, steps = (3, 3) if quick else (5, 4)
        rate = None if hosts == 1 else RATE_OF_8 * 8 / hosts
        return comparison.Case(
            "translator", hosts, rate, systems, BATCH, MODEL, turns=turns, steps=steps
        )

    if quick:
        return [case(2, systems=FEW)]
    return [case(8), case(4, FEW), case(2, FEW), case(1, ("one process", "ours"))]


def check(results):
    scaling.add_speed_up(results.rows)
    for key in comparison.cases_of_rows(results.rows):
        if key[0] == 8:
            comparison.check_speedup(results, key, "horovod", HOROVOD_TARGET)
            comparison.check_speedup(results, key, "naive ps", NAIVE_TARGET)
    comparison.check_everywhere(results)


if __name__ == "__main__":
    comparison.main(__doc__, "translation", cases, check, scaling.plot)
