// A training step allocates nothing once it has warmed up: not in the step, not in its messages, not in the
// batch that is gathered meanwhile. The test counts where all allocations end: it replaces malloc and its
// relatives, and mmap, for every thread.
//
// One kind of allocation is counted apart. How many messages are under way at once depends on the threads of
// the ranks and of ZeroMQ. So the memory for messages (comm/transport/recycler.h,
// comm/messaging/early_messages.h) may need to grow at any time. Allocations inside of comm::Messenger may
// therefore be more than zero. But that memory is kept and used again, so there are far fewer than one for
// each step. All other allocations must be zero in every step.
//
// Three things are not counted: what libzmq allocates for itself (see comm/transport/zmq.h; recorded as a
// property of the test), the memory that the allocator of oneTBB takes from the system for its tasks, and a
// re-hash of the tables, which happens before the counted steps.
#include <dlfcn.h>
#include <execinfo.h>
#include <gtest/gtest.h>
#include <spdlog/fmt/fmt.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <initializer_list>
#include <optional>
#include <string_view>

#include "shard/data/batch/batch_feed.h"
#include "shard/synth/synth.h"
#include "tests/node_agent/ranks.h"
#include "tests/shard/kernels/forced_instruction_set.h"

namespace modelet::agent::testing {
namespace {

using Stack = std::array<void*, 24>;
constexpr int kOwnFrames =
    2;  // at the inner end of a stack: note() and the function that replaces malloc or a relative

std::atomic<bool> counting{false};
std::atomic<size_t> allocations{0};          // by this project, except those of the next line
std::atomic<size_t> message_allocations{0};  // of comm::Messenger
std::atomic<size_t> zmq_allocations{0};      // by libzmq, in its own threads and in ours
thread_local bool looking = false;

// The call stack of the first allocation, to help find its cause.
Stack first_stack;
std::atomic<int> first_depth{0};

// The file that contains the code at an address.
std::string_view file_of(void* address) {
  Dl_info info;
  return ::dladdr(address, &info) != 0 ? info.dli_fname : "";
}

bool in_any(std::string_view file, std::initializer_list<const char*> names) {
  return std::any_of(names.begin(), names.end(),
                     [&](const char* name) { return file.find(name) != std::string_view::npos; });
}

// Whether libzmq asks for the memory: it is the innermost code outside of this counter and of the C and C++
// libraries.
bool asked_by_zmq(const Stack& stack, int depth) {
  for (int i = kOwnFrames; i < depth; ++i) {
    const std::string_view file = file_of(stack[static_cast<size_t>(i)]);
    if (!in_any(file, {"libstdc++", "libc.so", "libc-"})) return in_any(file, {"libzmq", "libsodium"});
  }
  return false;
}

// Whether the memory is for sending or receiving a message. (This program exports the names of its
// functions.)
bool asked_by_messenger(const Stack& stack, int depth) {
  return std::any_of(stack.begin(), stack.begin() + depth, [](void* address) {
    Dl_info info;
    return ::dladdr(address, &info) != 0 && info.dli_sname != nullptr &&
           std::string_view(info.dli_sname).find("modelet4comm9Messenger") != std::string_view::npos;
  });
}

[[gnu::noinline]] void note() {
  if (!counting || looking) return;
  looking = true;
  Stack stack;
  const int depth = ::backtrace(stack.data(), static_cast<int>(stack.size()));
  if (asked_by_zmq(stack, depth)) {
    ++zmq_allocations;
  } else if (asked_by_messenger(stack, depth)) {
    ++message_allocations;
  } else if (allocations++ == 0) {
    first_stack = stack;
    first_depth = depth;
  }
  looking = false;
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
void* aligned_alloc(size_t alignment, size_t size) {
  modelet::agent::testing::note();
  return __libc_memalign(alignment, size);
}
int posix_memalign(void** memory, size_t alignment, size_t size) {
  modelet::agent::testing::note();
  *memory = __libc_memalign(alignment, size);
  return *memory == nullptr ? ENOMEM : 0;
}
void* mmap(void* address, size_t bytes, int protection, int flags, int file, off_t offset) {
  using namespace modelet::agent::testing;
  if (!in_any(file_of(__builtin_return_address(0)), {"libtbb"})) note();
  return reinterpret_cast<void*>(::syscall(SYS_mmap, address, bytes, protection, flags, file, offset));
}
}  // extern "C"

namespace modelet::agent::testing {
namespace {

struct Case {
  const char* name;
  Loss loss = Loss::kSoftmax;
  SamplingMode mode = SamplingMode::kUniform;
  std::vector<uint32_t> hidden = {32};
  float clip = 0;
  int ranks = 1;
  unsigned threads = 1;
  CodecKind codec = CodecKind::kNone;
  Precision precision = Precision::kFp32;
  comm::testing::TransportKind transport = comm::testing::TransportKind::kInproc;
  bool lz4 = false;
  std::optional<comm::Algorithm> algorithm = {};  // of clipping
  const char* instruction_set = nullptr;          // null: the best one
  bool direct = false;                            // centroids and pairs
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class AllocationTest : public ::testing::TestWithParam<Case> {};

TEST_P(AllocationTest, NoneAfterWarmUp) {
  const Case& c = GetParam();
  const std::vector<std::string> sets = shard::kernels::available_instruction_sets();
  const std::string set = c.instruction_set == nullptr ? sets.front() : c.instruction_set;
  if (std::find(sets.begin(), sets.end(), set) == sets.end()) GTEST_SKIP() << "this machine has no " << set;
  const shard::kernels::ForcedInstructionSet forced(set);
  TemporaryFolder folder;
  shard::write_synth(
      {.rows_train = 600, .rows_test = 1, .features = 300, .labels = 2000, .features_per_row = 15},
      folder.path(), false);
  const shard::Dataset data = shard::Dataset::open(folder / "train.mlt");
  const DataShape shape{.features = data.features(), .labels = data.labels()};
  Experiment experiment;
  experiment.model = {.hidden = c.hidden, .loss = c.loss, .precision = c.precision};
  experiment.model.centroids = c.direct;
  experiment.modelets = {.hidden_columns = 16, .output_modelets = 4};
  experiment.sampling.mode = c.mode;
  experiment.sampling.uniform = 200;
  experiment.sampling.bits = 6;
  experiment.sampling.rehash_every = 100;
  experiment.optimizer.clip = c.clip;
  experiment.train.batch = 32;  // the last batch of an epoch is shorter
  experiment.exchange.codec = c.codec;
  experiment.exchange.micro_batches = 3;

  // Buffers at least double when they grow, so they reach their largest size within a few epochs. A re-hash
  // is among the warm-up steps.
  constexpr uint64_t kWarmUp = 105, kSteps = 90, kEnd = kWarmUp + kSteps;
  auto ranks = make_ranks(experiment, shape, round_robin(experiment, shape, c.ranks), c.ranks, c.threads);
  build_pairs(ranks, data);
  auto groups =
      comm::testing::make_groups(c.transport, c.ranks, {.run = 1, .lz4 = c.lz4, .algorithm = c.algorithm});
  first_depth = ::backtrace(first_stack.data(), 1);  // called once before, because the first call allocates
  first_depth = 0;
  allocations = message_allocations = zmq_allocations = 0;
  std::barrier begin(c.ranks, [&]() noexcept { counting = true; });
  std::barrier end(c.ranks, [&]() noexcept { counting = false; });
  comm::testing::run_ranks(groups, [&](comm::Group& group) {
    Rank& rank = *ranks[static_cast<size_t>(group.rank())];
    TrainingStep step(rank.network, rank.sharding, group);
    shard::BatchFeed feed(data, shard::all_rows(data.rows()), experiment.train, rank.pool);
    step.while_waiting([&feed] { feed.finish_next(); });
    for (uint64_t s = 0; s < kEnd; ++s) {
      if (s == kWarmUp) {
        rank.network.output().wait_for_rehash();
        begin.arrive_and_wait();
      }
      const shard::Batch& batch = feed.at(s, kEnd);
      step.run(batch, s, 0.01f, false, s + 1 < kEnd && s + 1 != kWarmUp ? &feed.next() : nullptr);
    }
    end.arrive_and_wait();
  });
  EXPECT_EQ(allocations, 0u) << "in " << kSteps << " steps; the first:";
  if (allocations > 0) ::backtrace_symbols_fd(first_stack.data(), first_depth, STDERR_FILENO);
  const uint64_t steps_of_all = c.ranks == 1 ? 0 : static_cast<uint64_t>(c.ranks) * kSteps;
  EXPECT_LE(message_allocations, steps_of_all / 4) << "in " << steps_of_all << " steps of all ranks";
  uint64_t messages = 0;
  for (const auto& group : groups)
    for (const comm::PeerMeter& peer : group->meters().peers) messages += peer.messages_sent;
  if (c.transport != comm::testing::TransportKind::kInproc)
    RecordProperty("libzmq_allocations_per_message",
                   fmt::format("{:.2f}", static_cast<double>(zmq_allocations * kEnd) /
                                             static_cast<double>(messages * kSteps)));
  RecordProperty("message_allocations", fmt::format("{}", message_allocations.load()));
}

// The counter works: a step that has not warmed up allocates.
TEST(AllocationCounter, SeesNewMallocAndPages) {
  allocations = 0;
  counting = true;
  std::vector<int> values(10);
  AlignedVector<float> aligned(10), large(kLargeArray);
  values.push_back(static_cast<int>(aligned.size() + large.size()));
  counting = false;
  EXPECT_EQ(allocations, 4u);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, AllocationTest,
    ::testing::Values(
        Case{.name = "softmax"}, Case{.name = "sigmoid", .loss = Loss::kSigmoid},
        Case{.name = "full", .mode = SamplingMode::kFull}, Case{.name = "lsh", .mode = SamplingMode::kLsh},
        Case{.name = "lsh_per_sample", .mode = SamplingMode::kLshPerSample},
        Case{.name = "deep_clipped", .hidden = {32, 48}, .clip = 0.1f},
        Case{.name = "two_threads", .threads = 2},
        Case{.name = "direct_clipped", .loss = Loss::kSigmoid, .clip = 0.1f, .threads = 2, .direct = true},
        Case{.name = "two_threads_lsh", .mode = SamplingMode::kLsh, .threads = 2},
        Case{.name = "two_threads_bf16", .threads = 2, .precision = Precision::kBf16},
        Case{.name = "bf16_in_pairs", .precision = Precision::kBf16, .instruction_set = "AVX3_BF16"},
        Case{.name = "two_ranks", .hidden = {32, 48}, .clip = 0.1f, .ranks = 2},
        Case{.name = "two_ranks_int8", .loss = Loss::kSigmoid, .ranks = 2, .codec = CodecKind::kInt8},
        Case{.name = "three_ranks", .hidden = {48, 48}, .clip = 0.1f, .ranks = 3},
        Case{.name = "three_ranks_lz4", .hidden = {48}, .ranks = 3, .lz4 = true},
        Case{.name = "three_ranks_dissemination",
             .clip = 0.1f,
             .ranks = 3,
             .algorithm = comm::Algorithm::kDissemination},
        Case{.name = "three_ranks_reduce_scatter",
             .clip = 0.1f,
             .ranks = 3,
             .algorithm = comm::Algorithm::kReduceScatter},
        Case{.name = "three_ranks_zmq",
             .hidden = {48},
             .ranks = 3,
             .codec = CodecKind::kInt8,
             .transport = comm::testing::TransportKind::kZmq},
        Case{.name = "many_modelets_zmq",
             .hidden = {2048},
             .ranks = 2,
             .transport = comm::testing::TransportKind::kZmq},
        Case{.name = "three_ranks_curve",
             .hidden = {48},
             .clip = 0.1f,
             .ranks = 3,
             .transport = comm::testing::TransportKind::kCurve}),
    [](const auto& instance) { return std::string(instance.param.name); });

}  // namespace
}  // namespace modelet::agent::testing
