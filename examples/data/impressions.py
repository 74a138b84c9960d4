"""60,000 impressions of fashion ads and the 287 clicks on them, from obp's wheel.

It is the sample of the Open Bandit Dataset: Yuta Saito, Shunsuke Aihara, Megumi
Matsutani and Yusuke Narita, "Open Bandit Dataset and Pipeline", NeurIPS Datasets
and Benchmarks 2021. CC BY 4.0.
"""

import csv
import typing

import numpy as np

from data.packages import file_of

POLICIES = ("random", "bts")
CAMPAIGNS = ("all", "men", "women")
FIELDS = ("position", *(f"user_feature_{number}" for number in range(4)))
ITEM_FIELDS = tuple(f"item_feature_{number}" for number in range(1, 4))
AFFINITY = "user-item_affinity_"
# Column of the item in `Impressions.fields`.
ITEM = 1
# No user of the sample has clicked on more items before.
HISTORY = 4


class Impressions(typing.NamedTuple):
    """Impressions; the columns of `fields` are numbered one after the other.

    Attributes:
        fields: int32 array of shape `(n, fields)`: campaign, item, position, four of
            the user, three of the item. A value is one row of one common table.
        history: int32 array of shape `(n, HISTORY)`: the items that the user clicked
            on before, filled up with the row 0, which stands for nothing.
        clicks: float32 array of shape `(n,)`, 0 or 1.
    """

    fields: np.ndarray
    history: np.ndarray
    clicks: np.ndarray

    def where(self, chosen):
        """The impressions at an index or a mask."""
        return Impressions(*(column[chosen] for column in self))


def load_impressions():
    """Reads the impressions, in the order of time.

    Returns:
        `(impressions, rows)`: `Impressions`, and the number of rows of a table with
        one for every value of every field.
    """
    numbers = {}
    rows = sorted(read_rows(), key=lambda row: row["timestamp"])
    fields = [[number(numbers, pair) for pair in pairs(row)] for row in rows]
    history = [
        [number(numbers, pair) for pair in clicked_before(row)][:HISTORY]
        for row in rows
    ]
    history = [ids + [0] * (HISTORY - len(ids)) for ids in history]
    clicks = [float(row["click"]) for row in rows]
    impressions = Impressions(
        np.array(fields, "int32"), np.array(history, "int32"), np.float32(clicks)
    )
    return impressions, len(numbers) + 1


def click_rates(train, test):
    """How often each test impression's item was clicked on in training.

    Rates are drawn towards that of all items, as if each had 200 more impressions.
    """
    shown = np.bincount(train.fields[:, ITEM], minlength=test.fields.max() + 1)
    clicked = np.bincount(train.fields[:, ITEM], train.clicks, len(shown))
    rates = (clicked + 200 * train.clicks.mean()) / (shown + 200)
    return rates[test.fields[:, ITEM]]


def number(numbers, pair):
    """Row of a (field, value), from 1; a new pair gets the next."""
    return numbers.setdefault(pair, len(numbers) + 1)


def read_rows():
    """Yields a dict of strings for each impression, its item's features included."""
    for campaign in CAMPAIGNS:
        for policy in POLICIES:
            folder = ("dataset", "obd", policy, campaign)
            items = {row["item_id"]: row for row in read(*folder, "item_context.csv")}
            for row in read(*folder, f"{campaign}.csv"):
                yield {**items[row["item_id"]], **row, "campaign": campaign}


def read(*parts):
    """Rows of a file of the package."""
    with file_of("obp", *parts).open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def pairs(row):
    """The fields of an impression, as (field, value)."""
    yield "campaign", row["campaign"]
    yield "item", (row["campaign"], row["item_id"])
    for field in FIELDS + ITEM_FIELDS:
        yield field, row[field]


def clicked_before(row):
    """Items that the user clicked on before, as (field, value), most clicked first."""
    affinity = {
        key.removeprefix(AFFINITY): float(value)
        for key, value in row.items()
        if key.startswith(AFFINITY) and value not in ("", "0.0")
    }
    for item in sorted(affinity, key=affinity.get, reverse=True):
        yield "item", (row["campaign"], item)


def area_under_curve(scores, clicks):
    """Chance that a clicked impression scores above another; ties count half."""
    order = np.argsort(scores, kind="stable")
    _, first, counts = np.unique(scores[order], return_index=True, return_counts=True)
    ranks = np.repeat(first + (counts + 1) / 2, counts)
    clicked = clicks[order] > 0
    positives, negatives = clicked.sum(), (~clicked).sum()
    above = ranks[clicked].sum() - positives * (positives + 1) / 2
    return float(above / (positives * negatives))
