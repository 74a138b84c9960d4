import pytest

from keras_parallax.cli import horovod_source


def write(source, texts):
    """Writes files, by their names in the source; returns its folder."""
    for name, text in texts.items():
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return source


def test_only_the_unbuildable_source_is_dropped(tmp_path):
    text = "list(a\n  mpi_ops.cc\n  xla_mpi_ops.cc\n  gpu.cc\n)\n"
    write(tmp_path, {horovod_source.CMAKE_LIST: text})
    horovod_source.drop_unbuildable_source(tmp_path)
    changed = (tmp_path / horovod_source.CMAKE_LIST).read_text()
    assert changed == "list(a\n  mpi_ops.cc\n  gpu.cc\n)\n"


EXCHANGE = """\
  for (int i = 1; i < worldSize; i++) {
    int sendRank = (myRank + i) % worldSize;
    int recvRank = (myRank + worldSize - i) % worldSize;
    in->send(sendRank, a, b);
    out->recv(
        recvRank, c, d);
  }

  for (int i = 1; i < worldSize; i++) {
    in->waitSend(opts.timeout);
    out->waitRecv(opts.timeout);
  }
"""


GATHERING = """\
      out->send(sendRank, a);
      out->recv(recvRank, b);
      continue;
    out->waitSend(opts.timeout);
"""


@pytest.fixture
def exchanges(tmp_path):
    """Where all-to-all and all-gather are written down, of Gloo."""
    return write(
        tmp_path,
        {horovod_source.ALL_TO_ALL: EXCHANGE, horovod_source.GATHER: GATHERING},
    )


def test_an_exchange_receives_before_it_sends(exchanges):
    horovod_source.receive_before_sending(exchanges)
    changed = (exchanges / horovod_source.ALL_TO_ALL).read_text()
    assert changed.count("out->recv(") == 1
    assert changed.index("out->recv(") < changed.index("in->send(")
    assert changed.count("for (") == 3
    assert changed.count("{") == changed.count("}")
    assert changed.endswith(EXCHANGE[EXCHANGE.index("\n\n") :])
    send, receive, *rest = GATHERING.splitlines(keepends=True)
    changed = (exchanges / horovod_source.GATHER).read_text()
    assert changed == "".join([receive, send, *rest])


@pytest.mark.parametrize("text", [None, "", EXCHANGE + EXCHANGE])
@pytest.mark.parametrize("name", [horovod_source.ALL_TO_ALL, horovod_source.GATHER])
def test_another_exchange_is_refused(exchanges, text, name):
    (exchanges / name).unlink() if text is None else (exchanges / name).write_text(text)
    with pytest.raises(horovod_source.UnknownSource, match=name):
        horovod_source.receive_before_sending(exchanges)


def test_another_source_release_is_refused(tmp_path):
    write(tmp_path, {horovod_source.CMAKE_LIST: "list(a mpi_ops.cc)\n"})
    with pytest.raises(horovod_source.UnknownSource, match="xla_mpi_ops.cc"):
        horovod_source.drop_unbuildable_source(tmp_path)


HEADER = """\
  Buffer* buf = nullptr;
  WeakNonOwningPtr<UnboundBuffer> ubuf;
  std::unordered_map<uint64_t, std::deque<UnboundBufferOp>> localPendingRecv_;
"""

PAIR = """\
constexpr size_t kMaxRecvBufferSize = 32 * 1024 * 1024;

ssize_t Pair::prepareRead() {
  if (opcode == Op::SEND_UNBOUND_BUFFER) {
    if (!op.ubuf) {
      auto it = localPendingRecv_.find(op.preamble.slot);
    }
  }
}

void Pair::readComplete() {
    case Op::SEND_UNBOUND_BUFFER:
      // Remote side is sending data to unbound buffer; trigger completion
      buf->handleRecvCompletion(this->rank_);
}

void Pair::handleRemotePendingRecv(const Op& op) {
    GLOO_ENFORCE(!queue.empty());
    WeakNonOwningPtr<UnboundBuffer> buf;
    std::tie(buf) = queue.front();
    queue.pop_front();
    if (queue.empty()) {
      localPendingSend_.erase(it);
    }
    sendUnboundBuffer(std::move(buf), slot, offset, nbytes);
}

void Pair::send() {
  throwIfException();
  // Execute this send if there is a remote pending receive.
  sendNotifySendReady(slot, nbytes);
}

void Pair::recv() {
  throwIfException();

  // If this recv happens before the send notification,
  mutator.pushExpectedSendNotification();
}
"""


@pytest.fixture
def pair(tmp_path):
    """Where one end of a connection is written down, with what is changed in it."""
    return write(
        tmp_path, {horovod_source.PAIR: PAIR, horovod_source.PAIR_HEADER: HEADER}
    )


def test_small_messages_ask_for_nothing(pair):
    horovod_source.send_small_messages_at_once(pair)
    changed = (pair / horovod_source.PAIR).read_text()
    assert "sendNotifySendReady" not in changed
    assert "pushExpectedSendNotification" not in changed
    assert changed.count("throwIfException();\n") == 2
    assert changed.count("nbytes <= kSmallMessage") == 1
    assert changed.count("nbytes > kSmallMessage") == 1
    # What has come is received, whether or not its sender is still there.
    receiving = changed[changed.index("Pair::recv()") :]
    assert receiving.index("early_.find") < receiving.index("throwIfException")
    for bracket, other in ("{}", "()"):
        assert changed.count(bracket) == changed.count(other)


@pytest.mark.parametrize("name", [horovod_source.PAIR, horovod_source.PAIR_HEADER])
def test_another_transport_is_refused(pair, name):
    (pair / name).write_text("")
    with pytest.raises(horovod_source.UnknownSource, match=name):
        horovod_source.send_small_messages_at_once(pair)


ENQUEUE = """\
  } else if (splits_first_dim == world_size) {
    auto sum = std::accumulate(splits_data, splits_data + splits_first_dim, 0);
"""
OPERATION = """\
    process_set.controller->AlltoallGetRecvSplits(splits, recvsplits);
"""


@pytest.fixture
def horovod(tmp_path):
    """What of Horovod is about splits."""
    texts = {
        horovod_source.ENQUEUE: ENQUEUE,
        horovod_source.INIT: "__version__ = '0.28.1'\n",
    }
    for name in horovod_source.OPERATIONS:
        texts[name] = OPERATION
    return write(tmp_path, texts)


def test_splits_that_are_expected_are_taken(horovod):
    horovod_source.take_expected_splits(horovod)
    assert (
        "|| splits_first_dim == 2 * world_size)"
        in (horovod / horovod_source.ENQUEUE).read_text()
    )
    for name in horovod_source.OPERATIONS:
        changed = (horovod / name).read_text()
        assert "recvsplits.assign(splits.begin() + world_size" in changed
        assert OPERATION.strip() in changed
    edition = f"keras_parallax_edition = {horovod_source.EDITION}\n"
    assert (horovod / horovod_source.INIT).read_text().endswith(edition)


@pytest.mark.parametrize(
    "name",
    [horovod_source.ENQUEUE, *horovod_source.OPERATIONS, horovod_source.INIT],
)
def test_another_horovod_is_refused(horovod, name):
    (horovod / name).write_text("")
    with pytest.raises(horovod_source.UnknownSource, match=name):
        horovod_source.take_expected_splits(horovod)
