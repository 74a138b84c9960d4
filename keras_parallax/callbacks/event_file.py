"""Writes TensorBoard's event files.

Written with TensorBoard's own writer, not with TensorFlow's operations: a hundred
numbers then cost one event and a thread's attention, and no operation of a session
that may be connected to servers.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Mapping, Sequence

import numpy as np
from PIL import Image
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.custom_scalar import metadata as layout_metadata
from tensorboard.plugins.hparams import summary_v2 as hparams_summary
from tensorboard.plugins.image import metadata as image_metadata
from tensorboard.plugins.scalar import metadata as scalar_metadata
from tensorboard.plugins.text import metadata as text_metadata
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.util.tensor_util import make_tensor_proto


class EventFile:
    """One run's event file, in a folder of its own.

    Args:
        folder: Where to write; made if it is not there.
        flush_seconds: How old what is written may be before it is on the disk.
    """

    def __init__(self, folder: str | os.PathLike, flush_seconds: int = 10):
        self._writer = EventFileWriter(os.fspath(folder), flush_secs=flush_seconds)
        self._described: set[str] = set()

    def scalars(
        self,
        step: int,
        values: Mapping[str, float],
        descriptions: Mapping[str, str],
    ) -> None:
        """Writes numbers.

        Args:
            step: Training step that they belong to.
            values: Numbers by tag.
            descriptions: Markdown that TensorBoard shows with a tag.
        """
        self._add(
            step,
            [
                Summary.Value(
                    tag=tag,
                    tensor=make_tensor_proto(np.float32(value)),
                    metadata=self._once(
                        tag,
                        scalar_metadata.create_summary_metadata(
                            None, descriptions.get(tag, "")
                        ),
                    ),
                )
                for tag, value in values.items()
            ],
        )

    def text(self, step: int, tag: str, markdown: str) -> None:
        """Writes a text in Markdown."""
        metadata = text_metadata.create_summary_metadata(None, "")
        tensor = make_tensor_proto(np.array([markdown.encode()], dtype=object))
        self._add(step, [Summary.Value(tag=tag, tensor=tensor, metadata=metadata)])

    def picture(self, step: int, tag: str, picture: Image.Image, about: str) -> None:
        """Writes a picture, with a description in Markdown."""
        data = io.BytesIO()
        picture.save(data, "PNG")
        size = (str(picture.width).encode(), str(picture.height).encode())
        tensor = make_tensor_proto(np.array([*size, data.getvalue()], dtype=object))
        metadata = image_metadata.create_summary_metadata(None, about)
        self._add(step, [Summary.Value(tag=tag, tensor=tensor, metadata=metadata)])

    def layout(self, groups: Mapping[str, Mapping[str, Sequence[str]]]) -> None:
        """Writes what the custom scalars page shows.

        Args:
            groups: For each group's title, its charts: for each chart's title, the
                patterns of the tags in it.
        """
        layout = layout_pb2.Layout(
            category=[
                layout_pb2.Category(
                    title=title,
                    chart=[
                        layout_pb2.Chart(
                            title=name,
                            multiline=layout_pb2.MultilineChartContent(tag=tags),
                        )
                        for name, tags in charts.items()
                    ],
                )
                for title, charts in groups.items()
            ]
        )
        tensor = make_tensor_proto(np.array(layout.SerializeToString(), dtype=object))
        value = Summary.Value(
            tag=layout_metadata.CONFIG_SUMMARY_TAG,
            tensor=tensor,
            metadata=SummaryMetadata.FromString(
                layout_metadata.create_summary_metadata().SerializeToString()
            ),
        )
        self._add(0, [value])

    def hparams(
        self, values: Mapping[str, str | float], metrics: Mapping[str, str]
    ) -> None:
        """Writes the run's settings.

        Args:
            values: Settings by name.
            metrics: Titles of the tags that are compared by them.
        """
        config = hparams_summary.hparams_config_pb(
            [hparams_summary.HParam(name) for name in values],
            [
                hparams_summary.Metric(tag, display_name=title)
                for tag, title in metrics.items()
            ],
        )
        start = hparams_summary.hparams_pb(dict(values))
        for summary in (config, start):
            found = Summary.FromString(summary.SerializeToString())
            self._add(0, list(found.value))

    def flush(self) -> None:
        """Puts what was written on the disk."""
        self._writer.flush()

    def close(self) -> None:
        """Puts what was written on the disk and ends the writer."""
        self._writer.close()

    def _once(self, tag: str, metadata: SummaryMetadata) -> SummaryMetadata | None:
        # TensorBoard keeps the first that it sees of a tag.
        if tag in self._described:
            return None
        self._described.add(tag)
        return metadata

    def _add(self, step: int, values: Sequence[Summary.Value]) -> None:
        event = Event(wall_time=time.time(), step=step, summary=Summary(value=values))
        self._writer.add_event(event)
