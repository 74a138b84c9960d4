"""What is changed in Horovod's source, and in the Gloo that it carries, to build it.

Horovod's last release, 0.28.1, names a source file in its CMake list that
includes TensorFlow headers which have since moved. Nothing here needs that
file (it serves XLA on MPI), so its line is dropped.

Rows and gradients are made to travel in the time and with the bytes that the network
needs: see `receive_before_sending` and `send_small_messages_at_once`, of Gloo, and
`take_expected_splits`, of Horovod.
"""

import pathlib
import re

HOROVOD_VERSION = "0.28.1"
# Counts what is changed here: wheels that were built before are not used.
EDITION = 6

CMAKE_LIST = "horovod/tensorflow/CMakeLists.txt"
UNBUILDABLE_SOURCE = "xla_mpi_ops.cc"

ALL_TO_ALL = "third_party/gloo/gloo/alltoallv.cc"
_RECEIVE = re.compile(r" *out->recv\([^;]*\);\n")
_FIRST_LOOP = re.compile(r"( *for \([^{]*\{\n)(?=[^}]*in->send\()")

GATHER = "third_party/gloo/gloo/allgatherv.cc"
_SEND_THEN_RECEIVE = re.compile(r"( *out->send\([^;]*\);\n)( *out->recv\([^;]*\);\n)")

INIT = "horovod/__init__.py"
ENQUEUE = "horovod/common/operations.cc"
OPERATIONS = (
    "horovod/common/ops/collective_operations.h",
    "horovod/common/ops/nccl_operations.h",
)

PAIR = "third_party/gloo/gloo/transport/tcp/pair.cc"
PAIR_HEADER = "third_party/gloo/gloo/transport/tcp/pair.h"

# Of the functions below, all from the marked line to their end is replaced.
_TO_THE_END = r"(?s:.*?)(?=\n\}\n)"

_HEADER_CHANGES = (
    (
        r"  WeakNonOwningPtr<UnboundBuffer> ubuf;\n",
        """\
  WeakNonOwningPtr<UnboundBuffer> ubuf;
  // Holds what comes before there is a buffer for it.
  std::shared_ptr<std::vector<char>> early;
""",
    ),
    (
        r"(?<=localPendingRecv_;\n)",
        """\
  std::unordered_map<uint64_t, std::deque<std::shared_ptr<std::vector<char>>>>
      early_;
""",
    ),
)

_PAIR_CHANGES = (
    # The size up to which a message needs no permission.
    (
        r"(?<=constexpr size_t kMaxRecvBufferSize = 32 \* 1024 \* 1024;\n)",
        "constexpr size_t kSmallMessage = 64 * 1024;\n",
    ),
    # Sending: at once, but never ahead of what waits for permission.
    (
        r"  // Execute this send if there is a remote pending receive\.\n"
        + _TO_THE_END,
        """\
  if (localPendingSend_.count(slot) == 0 &&
      (nbytes <= kSmallMessage ||
       Context::Mutator(*context_, slot, rank_).shiftRemotePendingRecv())) {
    sendUnboundBuffer(std::move(buf), slot, offset, nbytes);
    return;
  }
  localPendingSend_[slot].push_back(std::make_tuple(buf, offset, nbytes));""",
    ),
    # A permission: what it is for goes, and the small messages that queue behind it.
    (
        r"(?<=    GLOO_ENFORCE\(!queue\.empty\(\)\);\n)"
        r"    WeakNonOwningPtr<UnboundBuffer> buf;\n"
        r"(?s:[^}]*?queue\.pop_front\(\);[^}]*?\}\s*)sendUnboundBuffer\([^;]*\);\n",
        """\
    std::vector<UnboundBufferOp> ready;
    do {
      ready.push_back(queue.front());
      queue.pop_front();
    } while (!queue.empty() && std::get<2>(queue.front()) <= kSmallMessage);
    if (queue.empty()) {
      localPendingSend_.erase(it);
    }
    for (auto& op : ready) {
      sendUnboundBuffer(std::get<0>(op), slot, std::get<1>(op), std::get<2>(op));
    }
""",
    ),
    # Receiving: what came early is taken, also when the connection has ended since;
    # permission is given to large messages only.
    (
        r"  throwIfException\(\);\n\n"
        r"  // If this recv happens before the send notification,\n" + _TO_THE_END,
        """\
  auto held = early_.find(slot);
  if (held != early_.end()) {
    auto data = std::move(held->second.front());
    held->second.pop_front();
    if (held->second.empty()) {
      early_.erase(held);
    }
    GLOO_ENFORCE_LE(data->size(), nbytes);
    std::copy(data->begin(), data->end(), (char*)tbuf->ptr + offset);
    static_cast<tcp::UnboundBuffer*>(tbuf)->handleRecvCompletion(rank_);
    return;
  }
  throwIfException();
  localPendingRecv_[slot].push_back(std::make_tuple(buf, offset, nbytes));
  if (nbytes > kSmallMessage) {
    sendNotifyRecvReady(slot, nbytes);
  }""",
    ),
    # Reading: into memory of its own where no buffer has been named yet.
    (
        r"    if \(!op\.ubuf\) \{\n"
        r"(?= *auto it = localPendingRecv_\.find\(op\.preamble\.slot\);\n)",
        """\
    if (!op.early && !op.ubuf &&
        localPendingRecv_.count(op.preamble.slot) == 0) {
      op.early = std::make_shared<std::vector<char>>(op.preamble.length);
    }
    if (op.early) {
      iov.iov_base = op.early->data() + offset;
      iov.iov_len = op.preamble.length - offset;
      return iov.iov_len;
    }
    if (!op.ubuf) {
""",
    ),
    # All read: a buffer may have been named since.
    (
        r"      // Remote side is sending data to unbound buffer; trigger completion\n",
        """\
      if (this->rx_.early) {
        const auto& data = this->rx_.early;
        const auto slot = this->rx_.preamble.slot;
        auto it = localPendingRecv_.find(slot);
        if (it == localPendingRecv_.end()) {
          early_[slot].push_back(data);
          break;
        }
        const auto op = it->second.front();
        it->second.pop_front();
        if (it->second.empty()) {
          localPendingRecv_.erase(it);
        }
        GLOO_ENFORCE_LE(data->size(), std::get<2>(op));
        buf = NonOwningPtr<UnboundBuffer>(std::get<0>(op));
        if (!buf) {
          break;
        }
        std::copy(
            data->begin(), data->end(), (char*)buf->ptr + std::get<1>(op));
      }
""",
    ),
)


class UnknownSource(RuntimeError):
    """The source is not the release that is changed here."""

    def __init__(self, expected: str, path: str):
        super().__init__(
            f"Expected {expected} in {path} of Horovod {HOROVOD_VERSION}, found none: "
            "this is not the source release that keras-parallax knows how to build."
        )


def change(source: pathlib.Path) -> None:
    """Makes all changes in the unpacked release at `source`.

    Raises:
        UnknownSource: What is to be changed is not there.
    """
    drop_unbuildable_source(source)
    receive_before_sending(source)
    send_small_messages_at_once(source)
    take_expected_splits(source)


def drop_unbuildable_source(source: pathlib.Path) -> None:
    """Removes the line of the CMake list that names the source we cannot build."""
    path = source / CMAKE_LIST
    lines = path.read_text().splitlines(keepends=True)
    kept = [line for line in lines if UNBUILDABLE_SOURCE not in line]
    if len(kept) == len(lines):
        raise UnknownSource(f"a line naming {UNBUILDABLE_SOURCE}", CMAKE_LIST)
    path.write_text("".join(kept))


def receive_before_sending(source: pathlib.Path) -> None:
    """Makes Gloo say what it can receive before it sends: all-to-all and all-gather.

    A worker sends to another once that has said that it can receive, and does so over
    the connection that it sends its own data by. Where it speaks after it has begun to
    send, it is heard when all of that has arrived: each pair of workers uses one
    direction after the other, and an exchange takes 1.6 times as long as it has to. In
    an all-gather, which goes around a ring, that is so between two workers.
    """
    text = _read(source, ALL_TO_ALL)
    receive = _RECEIVE.findall(text)
    loop = _FIRST_LOOP.findall(text)
    if len(receive) != 1 or len(loop) != 1:
        raise UnknownSource("one loop that sends and receives", ALL_TO_ALL)
    peer = "    int recvRank = (myRank + worldSize - i) % worldSize;\n"
    first = f"{loop[0]}{peer}{receive[0]}  }}\n"
    text = _RECEIVE.sub("", text)
    text = _FIRST_LOOP.sub(lambda found: first + found[1], text)
    (source / ALL_TO_ALL).write_text(text)
    text, count = _SEND_THEN_RECEIVE.subn(r"\2\1", _read(source, GATHER))
    if not count:
        raise UnknownSource("what sends and then receives", GATHER)
    (source / GATHER).write_text(text)


def send_small_messages_at_once(source: pathlib.Path) -> None:
    """Makes Gloo send what has at most 64 KiB without asking whether it is awaited.

    Gloo precedes each message by two of 48 bytes: the sender's, that it has something,
    and the receiver's, that it may come. Of the small messages by which workers agree
    on what to do next, and of a step with few rows, these are most of the bytes and
    half of the waiting. A small message goes at once here, and is held by the receiver
    until its buffer is named, as the eager protocol of MPI implementations does it.
    Large ones wait for permission as before, so that nobody holds much: a worker
    gets ahead of another by a few collective operations at most.

    Both ends know a message's size, as in all of Gloo's collectives. Of a pair of
    workers and a slot, messages keep their order: a small one never goes ahead of a
    large one that waits. The sender's notice is dropped for large messages, too: it
    serves receiving from whoever sends first, which no collective does.
    """
    _replace(source, PAIR_HEADER, _HEADER_CHANGES)
    _replace(source, PAIR, _PAIR_CHANGES)


def take_expected_splits(source: pathlib.Path) -> None:
    """Lets a worker say how many rows of an all-to-all it expects of each other.

    Horovod precedes each all-to-all by another, by which workers tell each other how
    many rows they send. Of an answer both ends know it: as many rows come back as ids
    were sent. So `splits` may have twice as many entries as there are workers, the
    second half being what is received, and then nothing precedes. All workers must
    call it alike. `horovod.keras_parallax_edition` says that it may be done.
    """
    enough = r"(?<=else if \()splits_first_dim == world_size(?=\) \{\n)"
    either = "splits_first_dim == world_size || splits_first_dim == 2 * world_size"
    total = r"(?<=std::accumulate\(splits_data, splits_data \+ )splits_first_dim(?=, 0)"
    _replace(source, ENQUEUE, ((enough, either), (total, "world_size")))
    ask = r"    process_set\.controller->AlltoallGetRecvSplits\(splits, recvsplits\);\n"
    unless_known = """\
    if (splits.size() == 2 * (size_t)world_size) {
      recvsplits.assign(splits.begin() + world_size, splits.end());
    } else {
      process_set.controller->AlltoallGetRecvSplits(splits, recvsplits);
    }
"""
    for name in OPERATIONS:
        _replace(source, name, ((ask, unless_known),))
    version = rf"__version__ = '{re.escape(HOROVOD_VERSION)}'\n"
    marked = f"__version__ = '{HOROVOD_VERSION}'\nkeras_parallax_edition = {EDITION}\n"
    _replace(source, INIT, ((version, marked),))


def _replace(
    source: pathlib.Path, name: str, changes: tuple[tuple[str, str], ...]
) -> None:
    """Replaces, in a file, what is found exactly once of each pattern."""
    text = _read(source, name)
    for pattern, by in changes:
        if len(re.findall(pattern, text)) != 1:
            raise UnknownSource(f"one place like {pattern!r}", name)
        text = re.sub(pattern, by, text)
    (source / name).write_text(text)


def _read(source: pathlib.Path, name: str) -> str:
    """A file's text; none of what is looked for is in one that is not there."""
    path = source / name
    return path.read_text() if path.exists() else ""
