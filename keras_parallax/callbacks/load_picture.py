"""A picture of how the rows that are pushed fall on a table's partitions."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from keras_parallax.collectives.load import TableLoad, imbalance

# TensorBoard makes every picture so wide, without smoothing: letters of any other
# size would lose strokes.
_WIDTH, _LEFT, _RIGHT = 350, 52, 10
_BARS_TOP, _BARS_HEIGHT = 110, 110
_MAP_TOP, _MAP_HEIGHT = 276, 150
_HEIGHT = 466
_INK, _FAINT, _BAR, _LINE = "#222222", "#888888", "#3f6fb5", "#d1603d"
_COLD, _HOT = np.array([247, 250, 253]), np.array([8, 48, 107])


def draw(load: TableLoad) -> Image.Image:
    """Two charts over the partitions: each one's share of the pushes, and from
    which part of the table they come."""
    image = Image.new("RGB", (_WIDTH, _HEIGHT), "white")
    pen = ImageDraw.Draw(image)
    total = max(1, int(load.counts.sum()))
    shares = load.by_partition / total
    _text(pen, (6, 8), _fitting(load.variable, 15), size=15)
    _text(pen, (6, 30), f"{total:,} rows pushed by this worker", fill=_FAINT)
    told = f"fullest partition: {imbalance(shares):.2f} times the mean"
    _text(pen, (6, 48), told, fill=_FAINT)
    _bars(pen, shares)
    _map(image, load.counts / total)
    _axis(pen, len(shares))
    return image


def _bars(pen: ImageDraw.ImageDraw, shares: np.ndarray) -> None:
    bottom = _BARS_TOP + _BARS_HEIGHT
    top_share = float(shares.max()) * 1.15 or 1.0
    left, width = _LEFT, (_WIDTH - _LEFT - _RIGHT) / len(shares)
    for index, share in enumerate(shares):
        height = share / top_share * _BARS_HEIGHT
        gap = min(3.0, width / 6)
        x = left + index * width
        pen.rectangle((x + gap, bottom - height, x + width - gap, bottom), fill=_BAR)
    even = bottom - _BARS_HEIGHT / len(shares) / top_share
    for x in range(_LEFT, _WIDTH - _RIGHT, 10):
        pen.line((x, even, x + 5, even), fill=_LINE, width=2)
    label = f"line: even share, {1 / len(shares):.1%}"
    _text(pen, (_WIDTH - _RIGHT, _BARS_TOP - 10), label, fill=_LINE, anchor="rs")
    pen.line((_LEFT, bottom, _WIDTH - _RIGHT, bottom), fill=_INK)
    for share in (0.0, float(shares.max())):
        y = bottom - share / top_share * _BARS_HEIGHT
        _text(pen, (_LEFT - 6, y), f"{share:.1%}", anchor="rm")
    _text(pen, (6, _BARS_TOP - 10), "share of pushes", fill=_FAINT, anchor="ls")


def _map(image: Image.Image, shares: np.ndarray) -> None:
    pen = ImageDraw.Draw(image)
    # The head of a vocabulary is so much hotter than its tail that only the square
    # root shows both.
    warmth = np.sqrt(shares / max(shares.max(), 1e-12))[..., None]
    pixels = (_COLD + warmth * (_HOT - _COLD)).astype(np.uint8)
    size = (_WIDTH - _LEFT - _RIGHT, _MAP_HEIGHT)
    cells = Image.fromarray(pixels).resize(size, Image.Resampling.NEAREST)
    image.paste(cells, (_LEFT, _MAP_TOP))
    pen.rectangle(
        (_LEFT, _MAP_TOP, _WIDTH - _RIGHT, _MAP_TOP + _MAP_HEIGHT), outline=_INK
    )
    _text(
        pen,
        (6, _MAP_TOP - 10),
        "row of the table; darker: pushed more often",
        fill=_FAINT,
        anchor="ls",
    )
    _text(pen, (_LEFT - 6, _MAP_TOP), "first", anchor="rt")
    _text(pen, (_LEFT - 6, _MAP_TOP + _MAP_HEIGHT), "last", anchor="rb")


def _axis(pen: ImageDraw.ImageDraw, partitions: int) -> None:
    width = (_WIDTH - _LEFT - _RIGHT) / partitions
    step = max(1, -(-partitions // 12))
    for top in (_BARS_TOP + _BARS_HEIGHT, _MAP_TOP + _MAP_HEIGHT):
        for index in range(0, partitions, step):
            _text(
                pen, (_LEFT + (index + 0.5) * width, top + 4), str(index), anchor="mt"
            )
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    _text(pen, (middle, _HEIGHT - 20), "partition", fill=_FAINT, anchor="mm")


def _fitting(text: str, size: int) -> str:
    """`text`, or its end, where that is all that there is room for."""
    font = ImageFont.load_default(size)
    if font.getlength(text) <= _WIDTH - 12:
        return text
    while text and font.getlength(f"…{text}") > _WIDTH - 12:
        text = text[1:]
    return f"…{text}"


def _text(
    pen: ImageDraw.ImageDraw,
    at: tuple[float, float],
    text: str,
    size: int = 13,
    fill: str = _INK,
    anchor: str = "lt",
) -> None:
    pen.text(at, text, fill=fill, font=ImageFont.load_default(size), anchor=anchor)
