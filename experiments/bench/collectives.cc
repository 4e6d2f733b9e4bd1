// What barrier and all-reduce cost with each algorithm, over ranks on threads of this process.
//
//   ninja -C build/release collectives
//   build/release/experiments/bench/collectives [inproc|zmq|curve] [RANKS...]
//
// All ranks share this machine's cores, so a message costs CPU time but hardly any latency. Compared with
// separate machines, many messages cost more here, and many hops less. comm/messaging/algorithm.h has the
// model for separate machines; a star marks the algorithm that it would choose.
//
// "ms a call" is the least of several trials. "CPU ms" is the CPU time of one rank with its share of ZeroMQ's
// threads, which other work on the machine disturbs least.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <limits>
#include <string>
#include <vector>

#include "base/system/clock.h"
#include "comm/codec/codec.h"
#include "tests/comm/groups.h"

namespace {

using modelet::CodecKind;
using modelet::Matrix;
using modelet::Stopwatch;
using namespace modelet::comm;
using testing::TransportKind;
using Groups = std::vector<std::unique_ptr<Group>>;

constexpr int kTrials = 5;
constexpr const char* kNames[] = {"direct", "dissemination", "reduce-scatter"};
constexpr size_t kSizes[] = {0, 1, 1 << 10, 16 << 10, 256 << 10, 4 << 20};  // fp32 numbers; 0: a barrier

struct Cost {
  double seconds = std::numeric_limits<double>::infinity();      // of a call
  double cpu_seconds = std::numeric_limits<double>::infinity();  // of a rank in a call
};

// Makes `calls` calls on all ranks.
Cost run(Groups& groups, size_t values, uint64_t first_step, size_t calls) {
  Cost cost;
  const std::clock_t before = std::clock();
  testing::run_ranks(groups, [&](Group& group) {
    std::vector<float> matrix(values, 1.0f);
    const Stopwatch watch;
    for (uint64_t step = first_step; step < first_step + calls; ++step) {
      if (values == 0)
        group.barrier({step});
      else
        group.all_reduce_sum({step}, Matrix{matrix.data(), 1, values, values}, codec_of(CodecKind::kNone));
    }
    if (group.rank() == 0) cost.seconds = watch.seconds() / static_cast<double>(calls);
  });
  cost.cpu_seconds = static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC /
                     static_cast<double>(calls * groups.size());
  return cost;
}

void print_row(TransportKind transport, int ranks, size_t values, Algorithm algorithm) {
  auto groups = testing::make_groups(transport, ranks, {.run = 1, .algorithm = algorithm});
  run(groups, values, 1, 1);
  uint64_t messages = 0;
  for (const PeerMeter& peer : groups[0]->meters().peers) messages += peer.messages_sent;
  const uint64_t bytes = groups[0]->meters().bytes_sent();
  const size_t calls = std::clamp<size_t>((size_t{1} << 20) / (values + 1), 2, 50);
  Cost best;
  for (uint64_t trial = 0; trial < kTrials; ++trial) {
    const Cost cost = run(groups, values, 2 + trial * calls, calls);
    best = {std::min(best.seconds, cost.seconds), std::min(best.cpu_seconds, cost.cpu_seconds)};
  }
  const Operation operation = values == 0 ? Operation::kBarrier : Operation::kAllReduce;
  const bool chosen = choose(operation, values * sizeof(float), ranks) == algorithm;
  std::printf("%5d %12zu  %-14s%c %9llu %12llu %12.3f %12.3f\n", ranks, values * sizeof(float),
              kNames[static_cast<size_t>(algorithm)], chosen ? '*' : ' ',
              static_cast<unsigned long long>(messages), static_cast<unsigned long long>(bytes),
              1e3 * best.seconds, 1e3 * best.cpu_seconds);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "zmq";
  const TransportKind transport = name == "inproc"  ? TransportKind::kInproc
                                  : name == "curve" ? TransportKind::kCurve
                                                    : TransportKind::kZmq;
  std::vector<int> sizes;
  for (int i = 2; i < argc; ++i) sizes.push_back(std::atoi(argv[i]));
  if (sizes.empty()) sizes = {2, 4, 8, 16};
  try {
    std::printf("%5s %12s  %-15s %9s %12s %12s %12s\n", "ranks", "matrix bytes", "algorithm", "messages",
                "bytes", "ms a call", "CPU ms");
    for (const int ranks : sizes)
      for (const size_t values : kSizes)
        for (const Algorithm algorithm :
             {Algorithm::kDirect, Algorithm::kDissemination, Algorithm::kReduceScatter})
          if (values > 0 || algorithm != Algorithm::kReduceScatter)
            print_row(transport, ranks, values, algorithm);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "collectives: %s\n", error.what());
    return 1;
  }
}
