// simulate_training: histories of small runs of the real trainer, whose ranks are threads of one process.
// Ranks are killed anywhere between two messages, with or without their disks; connections break; groups are
// stopped. Each time the run continues from the newest snapshot that all ranks have written. In the end it
// must have learned what an undisturbed run learns, bit by bit. See docs/reliability.md.
//
// A seed determines what happens. How far the other ranks are when one dies depends on the threads, so the
// same seed may reach the same result in different ways.
#include <spdlog/fmt/fmt.h>
#include <stdlib.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <tuple>

#include "base/error.h"
#include "base/rng.h"
#include "base/system/file.h"
#include "base/system/log.h"
#include "node_agent/train/trainer.h"
#include "shard/data/store/dataset.h"
#include "shard/modelet/checkpoint.h"
#include "shard/synth/synth.h"
#include "tests/comm/collectives/breaking_transport.h"
#include "tests/comm/groups.h"

namespace modelet::simulation {
namespace {

namespace fs = std::filesystem;
using agent::Trainer;
using agent::TrainJob;
using agent::WrittenSnapshot;

constexpr uint32_t kRows = 150, kBatch = 16, kSteps = (kRows + kBatch - 1) / kBatch;  // of most variants
constexpr int kMostRanks = 4, kMostFaults = 3;
constexpr uint32_t kRarely = 1000;  // steps between snapshots: none before the end

using Files = std::map<std::string, std::string>;  // content by name
using Disk = std::map<uint64_t, Files>;            // by step

// No Error: the code under test must not take it for the failure of a peer.
struct Killed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The transport of a rank that dies before it sends a certain message: nothing that the rank does afterwards
// has an effect.
class MortalTransport final : public comm::Transport {
 public:
  MortalTransport(std::unique_ptr<comm::Transport> inner, uint64_t dies_at)
      : inner_(std::move(inner)), dies_at_(dies_at) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  uint64_t dropped_messages() const override { return inner_->dropped_messages(); }
  void interrupt(const std::string& reason) override { inner_->interrupt(reason); }
  Heard when_connections_change(Heard heard) override {
    return inner_->when_connections_change(std::move(heard));
  }
  void send(std::span<const int> to, const comm::RecycledPtr<comm::Message>& message) override {
    for (const int& rank : to) {
      if (sent_++ >= dies_at_) throw Killed("killed");
      inner_->send(std::span(&rank, 1), message);
    }
  }
  bool receive(double timeout_seconds, comm::Frame& frame) override {
    if (is_dead()) throw Killed("killed");
    return inner_->receive(timeout_seconds, frame);
  }
  bool is_dead() const { return sent_ > dies_at_; }
  uint64_t sent() const { return sent_; }

 private:
  std::unique_ptr<comm::Transport> inner_;
  const uint64_t dies_at_;
  std::atomic<uint64_t> sent_{0};
};

// The part of an experiment that varies. Data and seed vary as well.
Experiment variant(uint32_t number) {
  Experiment experiment;
  experiment.model.hidden = {32};
  experiment.modelets = {.hidden_columns = 16, .output_modelets = 4};
  experiment.sampling.uniform = 20;
  experiment.sampling.tables = 8;
  experiment.sampling.bits = 4;
  experiment.sampling.rehash_every = 3;
  experiment.train.epochs = 1;
  experiment.train.batch = kBatch;
  experiment.train.learning_rate = 0.02f;
  experiment.train.log_every = 1000;
  experiment.train.checkpoint_every = 1000;
  experiment.exchange.codec = CodecKind::kNone;
  switch (number) {
    case 1:
      experiment.sampling.mode = SamplingMode::kLsh;
      break;
    case 2:
      experiment.exchange.codec = CodecKind::kInt8;
      experiment.exchange.gradient_codec = CodecKind::kInt4;
      break;
    case 3:
      experiment.model.hidden = {32, 16};
      experiment.optimizer.clip = 0.1f;
      experiment.exchange.micro_batches = 3;
      break;
    case 4:
      experiment.model.precision = Precision::kBf16;
      experiment.model.loss = Loss::kSigmoid;
      experiment.train.hidden_dropout = 0.2f;
      break;
    case 5:  // evaluations between steps, after which the best weights are kept
      experiment.data.validation = 0.3f;
      experiment.train.epochs = 2;
      break;
    case 6:
      experiment.cluster.replicas = 2;
      experiment.exchange.local_steps = 2;
      experiment.exchange.codec = CodecKind::kInt8;
      experiment.train.epochs = 2;
      break;
    default:
      break;
  }
  return experiment;
}
constexpr uint32_t kVariants = 7;

// What happens to a group of ranks before it has trained to the end.
struct Fault {
  enum class Kind : uint8_t {
    kNone,
    kKill,
    kLose,
    kStop
  } kind = Kind::kNone;  // kLose: its disk is lost, too
  int rank = 0;
  uint64_t message = 0, step = 0;  // it is killed before the message, or stopped after the step
  float breaks = 0;                // probability that a connection breaks before a message
  uint64_t seed = 0;
  uint64_t break_at = UINT64_MAX;  // the connection of `rank` breaks before this message

  std::string text() const {
    constexpr const char* kNames[] = {"nothing", "killed", "killed and its disk lost", "stopped"};
    return fmt::format(
        "rank {} {} (message {}, step {}), connections break at message {} or with probability {}", rank,
        kNames[static_cast<size_t>(kind)], message, step,
        break_at == UINT64_MAX ? "-" : std::to_string(break_at), breaks);
  }
};

// A run on nodes. Each node has the files that it has written, and those of the node before it. If a run has
// only one node, a second disk stands for the store.
class Run {
 public:
  Run(const fs::path& folder, const Experiment& experiment, int size, uint32_t every)
      : folder_(folder),
        experiment_(experiment),
        every_(every),
        size_(size),
        disks_(static_cast<size_t>(std::max(2, size))) {
    shape_ = shard::describe_shape(shard::Dataset::open(experiment.data.train),
                                   shard::Dataset::open(experiment.data.test));
  }

  // Forms a group from the newest stable snapshot, and trains until the end or until the fault. Returns
  // whether the run is done.
  bool train(const Fault& fault) {
    const auto [step, needed] = stable();
    ++epoch_;
    std::vector<std::unique_ptr<Trainer>> trainers;
    for (int rank = 0; rank < size(); ++rank) {
      trainers.push_back(std::make_unique<Trainer>(job_of(rank, step, needed)));
      trainers.back()->prepare();
    }
    written_.clear();
    std::vector<MortalTransport*> transports;
    std::vector<std::unique_ptr<comm::Group>> groups;
    for (auto& inner : comm::make_inproc_transports(size())) {
      const int rank = inner->rank();
      const bool dies =
          rank == fault.rank && (fault.kind == Fault::Kind::kKill || fault.kind == Fault::Kind::kLose);
      const auto breaks = [&fault, rank](uint64_t number, int to) {
        if (rank == fault.rank && number == fault.break_at) return true;
        return Rng(fault.seed, {number, static_cast<uint64_t>(rank), static_cast<uint64_t>(to)}).uniform() <
               fault.breaks;
      };
      auto transport = std::make_unique<MortalTransport>(
          std::make_unique<comm::testing::BreakingTransport>(std::move(inner), breaks),
          dies ? fault.message : UINT64_MAX);
      transports.push_back(transport.get());
      groups.push_back(std::make_unique<comm::Group>(
          std::move(transport), comm::GroupOptions{.run = 1, .epoch = epoch_, .timeout_seconds = 120}));
    }
    std::atomic<int> finished{0};
    comm::testing::run_ranks(groups, [&](comm::Group& group) {
      const int rank = group.rank();
      Trainer& trainer = *trainers[static_cast<size_t>(rank)];
      try {
        trainer.run(
            group, [](const auto&) {},
            [&](const WrittenSnapshot& snapshot) {
              if (transports[static_cast<size_t>(rank)]->is_dead()) return;
              hold(rank, snapshot);
              if (fault.kind == Fault::Kind::kStop && rank == fault.rank && snapshot.step >= fault.step)
                trainer.request_stop();
            });
        ++finished;
      } catch (const Killed&) {
        for (const auto& each : groups) each->interrupt("the scheduler has decided");
      } catch (const Interrupted&) {
      }
    });
    sent_.clear();
    for (const MortalTransport* transport : transports) sent_.push_back(transport->sent());
    const bool done = finished == size();
    if (fault.kind == Fault::Kind::kLose && !done) disks_[static_cast<size_t>(fault.rank)].clear();
    return done;
  }

  // What the run has learned.
  struct Result {
    uint64_t step = 0;
    Files files;
  };
  Result result() {
    auto [step, files] = stable();
    std::erase_if(files, [](const auto& file) { return !file.first.ends_with(".safetensors"); });
    return {step, std::move(files)};
  }
  // Messages of each rank in the last call of train().
  const std::vector<uint64_t>& sent() const { return sent_; }

 private:
  int size() const { return size_; }

  TrainJob job_of(int rank, uint64_t step, const Files& files) const {
    TrainJob job{.run = "run",
                 .experiment = experiment_,
                 .shape = shape_,
                 .owner = std::vector<uint32_t>(partition_model(experiment_, shape_).size()),
                 .rank = rank,
                 .size = size(),
                 .threads = 1,
                 .out = folder_ / fmt::format("{}-{}", epoch_, rank),
                 .private_folder = true};
    const uint32_t ranks = static_cast<uint32_t>(size()) / experiment_.cluster.replicas;
    for (size_t i = 0; i < job.owner.size(); ++i) job.owner[i] = static_cast<uint32_t>(i) % ranks;
    job.snapshots = {.enabled = true, .every_steps = every_};
    if (files.empty()) return job;
    job.resume = shard::checkpoint_of_step(job.out / "checkpoints", step);
    fs::create_directories(job.resume);
    const auto index = shard::parse_checkpoint_index(files.at(shard::kIndexName), job.resume);
    for (const std::string& name : agent::files_needed(job, index))
      std::ofstream(job.resume / name) << files.at(name);
    return job;
  }

  // Stores the files on two disks.
  void hold(int rank, const WrittenSnapshot& snapshot) {
    Files files;
    for (const std::string& name : snapshot.files) files[name] = read_text_file(snapshot.folder / name);
    const std::lock_guard lock(mutex_);
    const auto self = static_cast<size_t>(rank);
    for (const size_t disk : {self, (self + 1) % disks_.size()})
      for (const auto& [name, content] : files) disks_[disk][snapshot.step][name] = content;
    written_[snapshot.step].insert(rank);
    if (static_cast<int>(written_[snapshot.step].size()) == size())
      stable_step_ = std::max(stable_step_, snapshot.step);
  }

  // The newest snapshot of which all ranks have written their parts, from the disks that have it. Copies it
  // back to all disks.
  std::pair<uint64_t, Files> stable() {
    if (stable_step_ == 0) return {};
    Files all;
    for (const Disk& disk : disks_)
      if (const auto found = disk.find(stable_step_); found != disk.end())
        all.insert(found->second.begin(), found->second.end());
    for (Disk& disk : disks_) {
      disk.clear();
      disk[stable_step_] = all;
    }
    return {stable_step_, all};
  }

  const fs::path folder_;
  const Experiment experiment_;
  const uint32_t every_;
  const int size_;
  DataShape shape_;
  uint32_t epoch_ = 0;
  std::vector<uint64_t> sent_;
  std::mutex mutex_;
  // Guarded by mutex_ while a group trains.
  std::vector<Disk> disks_;
  std::map<uint64_t, std::set<int>> written_;  // step -> ranks of this epoch
  uint64_t stable_step_ = 0;
};

class Histories {
 public:
  Histories() {
    std::string name = (fs::temp_directory_path() / "simulate_training-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw Error("no temporary folder");
    folder_ = name;
    shard::write_synth({.rows_train = kRows,
                        .rows_test = 10,
                        .features = 100,
                        .labels = 60,
                        .features_per_row = 8,
                        .labels_per_row = 1.5,
                        .noise = 0.1},
                       folder_, false);
  }
  Histories(const Histories&) = delete;
  Histories& operator=(const Histories&) = delete;
  ~Histories() {
    std::error_code none;
    fs::remove_all(folder_, none);
  }

  // Plays a history. Returns what differs from the undisturbed run; "" if nothing does.
  std::string play(uint64_t seed) {
    Rng rng(seed);
    const uint32_t number = rng.below(kVariants);
    const Experiment of = experiment(number);
    const int replicas = static_cast<int>(of.cluster.replicas);
    const int size =
        replicas * (1 + static_cast<int>(rng.below(static_cast<uint32_t>(kMostRanks / replicas))));
    const uint32_t every = 1 + rng.below(4);
    std::vector<Fault> faults;
    for (uint32_t i = 0, count = rng.below(kMostFaults + 1); i < count; ++i)
      faults.push_back(
          {.kind = static_cast<Fault::Kind>(rng.below(replicas > 1 ? 3 : 4)),  // see undisturbed()
           .rank = static_cast<int>(rng.below(static_cast<uint32_t>(size))),
           .message = rng.below(8U << rng.below(8)),  // in the first steps as often as in the last
           .step = rng.below(kSteps),
           .breaks = rng.below(2) == 0 ? 0.1f : 0.0f,
           .seed = rng.next()});
    faults.push_back({.breaks = rng.below(2) == 0 ? 0.05f : 0.0f, .seed = rng.next()});
    return play(number, size, every, faults);
  }

  // Each `stride`-th message of each rank: the rank is killed before it, or the connection breaks.
  std::string play_each_message(uint32_t number, int size, uint64_t stride) {
    constexpr uint32_t kEvery = 3;
    const std::vector<uint64_t> messages = messages_of(number, size, kEvery);
    for (int rank = 0; rank < size; ++rank)
      for (uint64_t message = 0; message < messages[static_cast<size_t>(rank)]; message += stride)
        for (const Fault& fault : {Fault{.kind = Fault::Kind::kKill, .rank = rank, .message = message},
                                   Fault{.rank = rank, .break_at = message}}) {
          const Fault faults[] = {fault, {}};
          if (std::string wrong = play(number, size, kEvery, faults); !wrong.empty()) return wrong;
          ++histories_;
        }
    return "";
  }
  uint64_t histories() const { return histories_; }  // of play_each_message()
  uint64_t groups() const { return groups_; }

 private:
  Experiment experiment(uint32_t number) const {
    Experiment experiment = variant(number);
    experiment.data.train = folder_ / "train.mlt";
    experiment.data.test = folder_ / "test.mlt";
    return experiment;
  }

  // The last of the faults is one with which the run ends.
  std::string play(uint32_t number, int size, uint32_t every, std::span<const Fault> faults) {
    Run run(folder_ / "run", experiment(number), size, every);
    std::string played;
    const auto wrong = [&](const std::string& what) {
      return fmt::format("variant {}, {} ranks, a snapshot every {} steps:{}\n{}", number, size, every,
                         played, what);
    };
    bool done = false;
    for (size_t i = 0; i < faults.size() && !done; ++i) {
      played += "\n  " + faults[i].text();
      try {
        done = run.train(faults[i]);
      } catch (const std::exception& error) {
        return wrong(error.what());
      }
      ++groups_;
    }
    if (!done) return wrong("it does not end");
    fs::remove_all(folder_ / "run");
    const Run::Result &truth = undisturbed(number, size, every), result = run.result();
    if (result.step != truth.step)
      return wrong(
          fmt::format("the files of step {} are not there, but those of {}", truth.step, result.step));
    for (const auto& [name, content] : truth.files) {
      const auto found = result.files.find(name);
      if (found == result.files.end()) return wrong(name + " is missing");
      if (found->second != content) return wrong(name + " is not the undisturbed run's");
    }
    if (result.files.size() != truth.files.size()) return wrong("it has more files than the undisturbed run");
    return "";
  }

  // How many messages each rank sends, undisturbed.
  std::vector<uint64_t> messages_of(uint32_t number, int size, uint32_t every) {
    Run run(folder_ / "counted", experiment(number), size, every);
    run.train({});
    fs::remove_all(folder_ / "counted");
    return run.sent();
  }

  // Snapshots and stops change what is learned only by replicas, which settle for them.
  const Run::Result& undisturbed(uint32_t number, int size, uint32_t every) {
    const Experiment of = experiment(number);
    if (of.cluster.replicas == 1) every = kRarely;
    Run::Result& result = truths_[{number, size, every}];
    if (!result.files.empty()) return result;
    Run run(folder_ / "truth", of, size, every);
    run.train({});
    result = run.result();
    fs::remove_all(folder_ / "truth");
    return result;
  }

  fs::path folder_;
  std::map<std::tuple<uint32_t, int, uint32_t>, Run::Result> truths_;  // by variant, ranks, steps
  uint64_t groups_ = 0, histories_ = 0;
};

int run(uint64_t from, uint64_t seeds) {
  Histories histories;
  for (uint64_t seed = from; seed < from + seeds; ++seed)
    if (const std::string wrong = histories.play(seed); !wrong.empty()) {
      std::cout << "seed " << seed << ": " << wrong << "\n";
      return 1;
    }
  std::cout << seeds << " histories of " << histories.groups()
            << " groups: each learned what the undisturbed run does\n";
  return 0;
}

int run_each_message(uint64_t stride) {
  Histories histories;
  for (uint32_t number = 0; number < kVariants; ++number)
    if (const std::string wrong = histories.play_each_message(number, 2, stride); !wrong.empty()) {
      std::cout << wrong << "\n";
      return 1;
    }
  std::cout << histories.histories() << " histories, in each of which a rank is killed before a message or a "
            << "connection breaks there: each learned what the undisturbed run does\n";
  return 0;
}

}  // namespace
}  // namespace modelet::simulation

int main(int argc, char** argv) {
  uint64_t from = 1, seeds = 100;
  CLI::App app(
      "Plays histories of small runs of the real trainer, and compares what they learn with undisturbed ones.");
  app.add_option("--seeds", seeds, "number of histories");
  app.add_option("--from", from, "the first seed");
  uint64_t stride = 1;
  app.add_option("--stride", stride, "with --each-message: only each so many-th message")
      ->check(CLI::PositiveNumber);
  bool each_message = false;
  app.add_flag(
      "--each-message", each_message,
      "instead: two ranks of each variant; one is killed before each message in turn, or its connection breaks");
  CLI11_PARSE(app, argc, argv);
  try {
    ::setenv("MODELET_LOG", "error", 0);  // otherwise ranks would log a complaint in every history
    modelet::start_logging("simulate_training");
    return each_message ? modelet::simulation::run_each_message(stride)
                        : modelet::simulation::run(from, seeds);
  } catch (const std::exception& error) {
    std::cerr << "simulate_training: " << error.what() << "\n";
    return 1;
  }
}
