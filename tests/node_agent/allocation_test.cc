// A training step allocates nothing once it has warmed up: not in the step, not in the batch that is gathered
// beside it. Counted where all of it ends: malloc and its relatives, which this program replaces, for every
// thread.
//
// Not counted: what a transport needs to hold messages (comm/group.h), the memory that oneTBB's own allocator
// takes from the system for its tasks, and a re-hash of the tables, which happens between the steps that are
// counted here.
#include <execinfo.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <barrier>

#include "shard/batch_feed.h"
#include "shard/data/synth.h"
#include "tests/node_agent/ranks.h"

namespace modelet::agent::testing {
namespace {

std::atomic<bool> counting{false};
std::atomic<size_t> allocations{0};
thread_local bool exempt = false;

// The first allocation's call stack, for whoever has to find it.
std::array<void*, 24> first_stack;
std::atomic<int> first_depth{0};

void note() {
  if (!counting || exempt) return;
  if (allocations++ > 0) return;
  exempt = true;
  first_depth = ::backtrace(first_stack.data(), static_cast<int>(first_stack.size()));
  exempt = false;
}

}  // namespace
}  // namespace modelet::agent::testing

extern "C" {
void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* memory, size_t size);
void* __libc_memalign(size_t alignment, size_t size);

void* malloc(size_t size) {
  modelet::agent::testing::note();
  return __libc_malloc(size);
}
void* calloc(size_t count, size_t size) {
  modelet::agent::testing::note();
  return __libc_calloc(count, size);
}
void* realloc(void* memory, size_t size) {
  modelet::agent::testing::note();
  return __libc_realloc(memory, size);
}
void* memalign(size_t alignment, size_t size) {
  modelet::agent::testing::note();
  return __libc_memalign(alignment, size);
}
void* aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }
int posix_memalign(void** memory, size_t alignment, size_t size) {
  *memory = memalign(alignment, size);
  return *memory == nullptr ? ENOMEM : 0;
}
}  // extern "C"

namespace modelet::agent::testing {
namespace {

// Does not count what the transport inside allocates.
class UncountedTransport final : public comm::Transport {
 public:
  explicit UncountedTransport(std::unique_ptr<comm::Transport> inner) : inner_(std::move(inner)) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  void send(int to, std::span<const std::byte> envelope, std::span<const std::byte> payload) override {
    exempt = true;
    inner_->send(to, envelope, payload);
    exempt = false;
  }
  bool receive(double timeout_seconds, comm::Frame& frame) override {
    exempt = true;
    const bool received = inner_->receive(timeout_seconds, frame);
    exempt = false;
    return received;
  }
  void interrupt(const std::string& reason) override { inner_->interrupt(reason); }

 private:
  std::unique_ptr<comm::Transport> inner_;
};

struct Case {
  const char* name;
  Loss loss = Loss::kSoftmax;
  SamplingMode mode = SamplingMode::kUniform;
  std::vector<uint32_t> hidden = {32};
  float clip = 0;
  int ranks = 1;
  unsigned threads = 1;
  std::string codec = "none";
  Precision precision = Precision::kFp32;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class AllocationTest : public ::testing::TestWithParam<Case> {};

TEST_P(AllocationTest, NoneAfterWarmUp) {
  const Case& c = GetParam();
  TemporaryFolder folder;
  shard::write_synth(
      {.rows_train = 600, .rows_test = 1, .features = 300, .labels = 2000, .features_per_row = 15},
      folder.path(), false);
  const shard::Dataset data = shard::Dataset::open(folder / "train.mlt");
  const DataShape shape{.features = data.features(), .labels = data.labels()};
  Experiment experiment;
  experiment.model = {.hidden = c.hidden, .loss = c.loss, .precision = c.precision};
  experiment.modelets = {.hidden_columns = 16, .output_modelets = 4};
  experiment.sampling.mode = c.mode;
  experiment.sampling.uniform = 200;
  experiment.sampling.bits = 6;
  experiment.sampling.rehash_every = 100;
  experiment.optimizer.clip = c.clip;
  experiment.train.batch = 32;  // the last batch of an epoch is shorter
  experiment.exchange.codec = c.codec;

  // Buffers at least double when they grow, so a few epochs find their largest size. A re-hash is among them.
  constexpr uint64_t kWarmUp = 105, kSteps = 160;
  auto ranks = make_ranks(experiment, shape, round_robin(experiment, shape, c.ranks), c.ranks, c.threads);
  std::vector<std::unique_ptr<comm::Group>> groups;
  for (auto& transport : comm::make_inproc_transports(c.ranks))
    groups.push_back(std::make_unique<comm::Group>(std::make_unique<UncountedTransport>(std::move(transport)),
                                                   comm::GroupOptions{.run = 1}));
  first_depth = ::backtrace(first_stack.data(), 1);  // its first call allocates
  first_depth = 0;
  allocations = 0;
  std::barrier together(c.ranks);
  comm::testing::run_ranks(groups, [&](comm::Group& group) {
    Rank& rank = *ranks[static_cast<size_t>(group.rank())];
    TrainingStep step(rank.network, rank.sharding, group);
    shard::BatchFeed feed(data, shard::all_rows(data.rows()), experiment.train, rank.pool);
    for (uint64_t s = 0; s < kSteps; ++s) {
      if (s == kWarmUp) {
        rank.network.output().wait_for_rehash();
        together.arrive_and_wait();
        counting = true;
      }
      step.run(feed.at(s, kSteps), s, 0.01f, false);
    }
    together.arrive_and_wait();
    counting = false;
  });
  EXPECT_EQ(allocations, 0u);
  if (allocations > 0) ::backtrace_symbols_fd(first_stack.data(), first_depth, STDERR_FILENO);
}

// The counter counts: a step that has not warmed up allocates.
TEST(AllocationCounter, SeesNewAndMalloc) {
  allocations = 0;
  counting = true;
  std::vector<int> values(10);
  AlignedVector<float> aligned(10);
  values.push_back(static_cast<int>(aligned.size()));
  counting = false;
  EXPECT_EQ(allocations, 3u);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, AllocationTest,
    ::testing::Values(Case{.name = "softmax"}, Case{.name = "sigmoid", .loss = Loss::kSigmoid},
                      Case{.name = "full", .mode = SamplingMode::kFull},
                      Case{.name = "lsh", .mode = SamplingMode::kLsh},
                      Case{.name = "lsh_per_sample", .mode = SamplingMode::kLshPerSample},
                      Case{.name = "deep_clipped", .hidden = {32, 48}, .clip = 0.1f},
                      Case{.name = "two_threads", .threads = 2},
                      Case{.name = "two_threads_lsh", .mode = SamplingMode::kLsh, .threads = 2},
                      Case{.name = "two_threads_bf16", .threads = 2, .precision = Precision::kBf16},
                      Case{.name = "two_ranks", .hidden = {32, 48}, .clip = 0.1f, .ranks = 2},
                      Case{.name = "two_ranks_int8", .loss = Loss::kSigmoid, .ranks = 2, .codec = "int8"}),
    [](const auto& instance) { return std::string(instance.param.name); });

}  // namespace
}  // namespace modelet::agent::testing
