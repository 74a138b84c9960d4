// Collective operations of random kinds and sizes, among workers that are threads.
//
//     transport WORKERS ROUNDS SEED
//
// What each worker receives is compared with what it must be. Each has a context,
// connections and a network thread of its own, as it would have in a process; so a
// sanitizer sees all of them at once. Sizes lie on both sides of the limit up to which
// the changed transport sends without asking, and now and then a worker is late.

#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <iostream>
#include <iterator>
#include <random>
#include <thread>
#include <vector>

#include "gloo/allgatherv.h"
#include "gloo/allreduce.h"
#include "gloo/alltoallv.h"
#include "gloo/barrier.h"
#include "gloo/broadcast.h"
#include "gloo/math.h"
#include "gloo/rendezvous/context.h"
#include "gloo/rendezvous/hash_store.h"
#include "gloo/transport/tcp/device.h"

namespace {

using Context = std::shared_ptr<gloo::rendezvous::Context>;
using Random = std::mt19937;

constexpr int kMostMicrosecondsLate = 3000;
constexpr int kOneInSoManyIsLate = 50;

// Elements, of four bytes: far below 64 KiB, about that, and far above.
constexpr int kSizes[] = {40, 40, 40, 17000, 17000, 200000};

void expect(bool holds, const char* what) {
  if (!holds) {
    std::cerr << "wrong result: " << what << std::endl;
    std::abort();
  }
}

// What worker `rank` contributes to round `round`.
float value(int rank, int round) {
  return rank + round;
}

// `got` holds, one after the other, so many elements of each worker.
template <typename Count>
void expect_parts(
    const std::vector<float>& got,
    const std::vector<Count>& counts,
    int round,
    const char* what) {
  size_t place = 0;
  for (size_t other = 0; other < counts.size(); other++) {
    for (Count i = 0; i < counts[other]; i++) {
      expect(got[place++] == value(other, round), what);
    }
  }
}

void exchange(const Context& context, int round, int most, Random& same) {
  const int size = context->size, rank = context->rank;
  std::vector<std::vector<int64_t>> counts(size, std::vector<int64_t>(size));
  for (auto& row : counts) {
    for (auto& count : row) {
      count = same() % most;
    }
  }
  std::vector<int64_t> received(size);
  int64_t sent = 0, total = 0;
  for (int other = 0; other < size; other++) {
    received[other] = counts[other][rank];
    sent += counts[rank][other];
    total += received[other];
  }
  std::vector<float> in(sent + 1, value(rank, round)), out(total + 1);
  gloo::AlltoallvOptions options(context);
  options.setInput(in.data(), counts[rank]);
  options.setOutput(out.data(), received);
  gloo::alltoallv(options);
  expect_parts(out, received, round, "all-to-all");
}

void gather(const Context& context, int round, int most, Random& same) {
  const int size = context->size, rank = context->rank;
  std::vector<size_t> counts(size);
  size_t total = 0;
  for (auto& count : counts) {
    count = same() % most;
    total += count;
  }
  std::vector<float> in(counts[rank] + 1, value(rank, round)), out(total + 1);
  gloo::AllgathervOptions options(context);
  options.setInput(in.data(), counts[rank]);
  options.setOutput(out.data(), counts);
  gloo::allgatherv(options);
  expect_parts(out, counts, round, "all-gather");
}

void reduce(const Context& context, int round, int most, Random& same) {
  const int size = context->size;
  std::vector<float> values(1 + same() % most, value(context->rank, round));
  gloo::AllreduceOptions options(context);
  options.setOutput(values.data(), values.size());
  options.setReduceFunction([](void* sum, const void* a, const void* b, size_t n) {
    gloo::sum<float>(sum, a, b, n);
  });
  gloo::allreduce(options);
  for (float sum : values) {
    expect(sum == size * round + size * (size - 1) / 2, "all-reduce");
  }
}

void broadcast(const Context& context, int round, int most, Random& same) {
  std::vector<float> values(1 + same() % most, value(context->rank, round));
  const int root = same() % context->size;
  gloo::BroadcastOptions options(context);
  options.setOutput(values.data(), values.size());
  options.setRoot(root);
  gloo::broadcast(options);
  for (float got : values) {
    expect(got == value(root, round), "broadcast");
  }
}

void barrier(const Context& context) {
  gloo::BarrierOptions options(context);
  gloo::barrier(options);
}

// Rank 0 sends and goes; the others look for it when it is long gone.
void say_farewell(const Context& context, int round) {
  std::vector<float> values(1, value(context->rank, round));
  gloo::BroadcastOptions options(context);
  options.setOutput(values.data(), values.size());
  options.setRoot(0);
  if (context->rank != 0) {
    usleep(300 * 1000);
  }
  gloo::broadcast(options);
  expect(values[0] == value(0, round), "farewell");
}

void work(
    int rank, int size, int rounds, int seed, gloo::rendezvous::HashStore& store) {
  gloo::transport::tcp::attr local;
  local.hostname = "127.0.0.1";
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
  auto device = gloo::transport::tcp::CreateDevice(local);
  context->connectFullMesh(store, device);
  Random common(seed), own(seed * 1000 + rank);
  for (int round = 0; round < rounds; round++) {
    if (own() % kOneInSoManyIsLate == 0) {
      usleep(own() % kMostMicrosecondsLate);
    }
    const int kind = common() % 5;
    const int most = kSizes[common() % std::size(kSizes)];
    Random same(common());
    switch (kind) {
      case 0:
        exchange(context, round, most, same);
        break;
      case 1:
        gather(context, round, most, same);
        break;
      case 2:
        reduce(context, round, most, same);
        break;
      case 3:
        broadcast(context, round, most, same);
        break;
      default:
        barrier(context);
    }
  }
  // Two workers, so that nobody has to hand the farewell on.
  if (size == 2) {
    barrier(context);
    say_farewell(context, rounds);
  }
}

} // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: transport WORKERS ROUNDS SEED" << std::endl;
    return 2;
  }
  const int size = std::atoi(argv[1]);
  const int rounds = std::atoi(argv[2]);
  const int seed = std::atoi(argv[3]);
  gloo::rendezvous::HashStore store;
  std::vector<std::thread> workers;
  for (int rank = 0; rank < size; rank++) {
    workers.emplace_back(work, rank, size, rounds, seed, std::ref(store));
  }
  for (auto& worker : workers) {
    worker.join();
  }
  return 0;
}
