#include "tests/simulation/command_line.h"

#include <CLI/CLI.hpp>
#include <chrono>
#include <iostream>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/simulation/history.h"

namespace modelet::simulation {
namespace {

struct Arguments {
  Simulation simulation;
  uint64_t seeds = 0, from = 1, stride = 1;
  std::vector<std::string> without;
  std::string mutant;
  bool tells = false, twice = false, goes_on = false, messages = false, points = false, moments = false;
};

void print_failure(const HistoryOptions& options, const History& history) {
  HistoryOptions told = options;
  told.tells = true;
  std::cout << play(told).story << "seed " << options.seed << ": " << history.violation << "\n";
}

struct Sums {
  uint64_t histories = 0, finished = 0, stopped = 0, failed = 0, recoveries = 0;
  double seconds = 0;
  void add(const History& history) {
    ++histories;
    finished += history.finished;
    stopped += history.stopped;
    failed += history.failed;
    recoveries += history.recoveries;
    seconds += history.seconds;
  }
  void print() const {
    std::cout << histories << " histories, " << static_cast<uint64_t>(seconds)
              << " simulated seconds: " << finished << " runs finished, " << stopped << " stopped, " << failed
              << " lost with their disks, " << recoveries << " recoveries\n";
  }
};

// Whether the violation is due to the mutant: without it the same history must keep all promises.
bool is_of_mutant(HistoryOptions options) {
  if (options.mutant == Mutant::kNone) return true;
  options.mutant = Mutant::kNone;
  return play(options).violation.empty();
}

// Returns the first seed that breaks a promise; 0: none does.
uint64_t play_seeds(const Arguments& arguments, HistoryOptions options, Sums& sums) {
  for (uint64_t seed = arguments.from; seed < arguments.from + arguments.seeds; ++seed) {
    options.seed = seed;
    const History history = play(options);
    sums.add(history);
    if (!history.violation.empty() && is_of_mutant(options)) {
      if (!arguments.goes_on) return seed;
      std::cout << "seed " << seed << ": " << history.violation << "\n";
    }
    if (!arguments.twice) continue;
    HistoryOptions told = options;
    told.tells = true;
    if (const History again = play(told); again.digest != history.digest || again.story != play(told).story)
      throw std::runtime_error("seed " + std::to_string(seed) + " gives two histories");
  }
  return 0;
}

int run_seeds(const Arguments& arguments, const HistoryOptions& options) {
  Sums sums;
  const uint64_t broken = play_seeds(arguments, options, sums);
  sums.print();
  const bool is_mutant = options.mutant != Mutant::kNone;
  if (broken == 0) {
    if (is_mutant) std::cout << arguments.mutant << " was not found\n";
    return is_mutant ? 1 : 0;
  }
  HistoryOptions found = options;
  found.seed = broken;
  const History history = play(found);
  if (is_mutant && !arguments.tells) {
    std::cout << arguments.mutant << " is found by seed " << broken << ": " << history.violation << "\n";
    return 0;
  }
  print_failure(found, history);
  return 1;
}

// Plays one history for each of `count` variants of a small pool.
template <class Vary>
int enumerate(const Arguments& arguments, uint64_t count, const Vary& vary) {
  Sums sums;
  for (uint64_t i = 1; i <= count; i += arguments.stride) {
    HistoryOptions options{.workload = arguments.simulation.workload, .seed = i, .is_small = true};
    vary(options, i);
    const History history = play(options);
    sums.add(history);
    if (history.violation.empty()) continue;
    print_failure(options, history);
    std::cout << "variant " << i << " of " << count << "\n";
    return 1;
  }
  sums.print();
  return 0;
}

HistoryOptions small(const Arguments& arguments, uint64_t kind) {
  return {.workload = arguments.simulation.workload, .seed = kind, .is_small = true};
}

// Plays a small run with each message lost, doubled, delayed, and with the death of its sender or of its
// receiver.
int enumerate_messages(const Arguments& arguments) {
  constexpr uint64_t kDeeds = 5;
  const uint64_t kinds = arguments.simulation.kinds;
  uint64_t messages = 0;
  for (uint64_t kind = 0; kind < kinds; ++kind)
    messages = std::max(messages, play(small(arguments, kind)).messages);
  return enumerate(arguments, messages * kDeeds * kinds, [&](HistoryOptions& options, uint64_t i) {
    --i;
    options.seed = i % kinds;
    options.intervention = {1 + i / kinds / kDeeds, static_cast<Deed>(1 + i / kinds % kDeeds)};
  });
}

// Kills the scheduler before and after each thing that it writes or sends, while something else happens.
int enumerate_points(const Arguments& arguments) {
  constexpr uint64_t kBeside = 4;
  const uint64_t kinds = arguments.simulation.kinds;
  uint64_t points = 0;
  for (uint64_t kind = 0; kind < kinds; ++kind)
    points = std::max(points, play(small(arguments, kind)).points);
  return enumerate(arguments, points * kBeside * kinds, [&](HistoryOptions& options, uint64_t i) {
    --i;
    options.seed = i % kinds;
    options.scheduler_point = 1 + i / kinds / kBeside;
    options.beside = static_cast<HistoryOptions::Beside>(i / kinds % kBeside);
  });
}

// Each two of four nodes fail at each moment of a run, with or without their disks, while the disk of the third
// is full, and each file of the fourth, or none, is damaged.
int enumerate_moments(const Arguments& arguments) {
  constexpr uint64_t kNodes = 4, kSeeds = 2, kMoments = 30, kFiles = 4;
  constexpr double kFirst = 0.6, kApart = 0.2;  // seconds; the run takes five, undisturbed
  std::vector<std::pair<size_t, size_t>> pairs;
  for (size_t second = 1; second < kNodes; ++second)
    for (size_t first = 0; first < second; ++first) pairs.emplace_back(first, second);
  const auto count = kMoments * pairs.size() * 2 * (kFiles + 1) * kSeeds;
  return enumerate(arguments, count, [&](HistoryOptions& options, uint64_t i) {
    options.seed = i - 1;
    auto digit = [rest = (i - 1) / kSeeds](uint64_t choices) mutable {
      return std::exchange(rest, rest / choices) % choices;
    };
    HistoryOptions::Disaster disaster;
    disaster.disks_are_lost = digit(2) == 1;
    if (const uint64_t file = digit(kFiles + 1); file < kFiles) disaster.file = static_cast<uint32_t>(file);
    std::tie(disaster.first, disaster.second) = pairs[digit(pairs.size())];
    disaster.time = kFirst + kApart * static_cast<double>(digit(kMoments));
    options.disaster = disaster;
  });
}

template <class Names>
auto value_named(const Names& names, const std::string& name) {
  for (const auto& each : names)
    if (each.name == name) return each;
  throw CLI::ValidationError("no such name: " + name);
}

int run(const Arguments& arguments) {
  HistoryOptions options{.workload = arguments.simulation.workload};
  for (const std::string& name : arguments.without) options.without.insert(value_named(kFaults, name).fault);
  if (!arguments.mutant.empty()) options.mutant = value_named(kMutants, arguments.mutant).mutant;
  if (arguments.messages) return enumerate_messages(arguments);
  if (arguments.points) return enumerate_points(arguments);
  if (arguments.moments) return enumerate_moments(arguments);
  if (!arguments.tells) return run_seeds(arguments, options);
  options.seed = arguments.from;
  options.tells = true;
  const History history = play(options);
  std::cout << history.story << history.violation << "\n";
  return history.violation.empty() ? 0 : 1;
}

}  // namespace

int play_as_asked(int argc, char** argv, const Simulation& simulation) {
  Arguments arguments{.simulation = simulation, .seeds = simulation.seeds};
  CLI::App app(simulation.description);
  std::string faults, mutants;
  for (const auto& each : kFaults) faults += " " + std::string(each.name);
  for (const auto& each : kMutants) mutants += " " + std::string(each.name);
  app.add_option("--seeds", arguments.seeds, "number of histories");
  app.add_option("--from", arguments.from, "the first seed");
  app.add_option("--without", arguments.without, "leave out faults of these kinds:" + faults)->delimiter(',');
  app.add_option("--mutant", arguments.mutant, "make a mistake, which has to be found:" + mutants);
  app.add_flag("--story", arguments.tells, "print the history of the seed --from");
  app.add_flag("--twice", arguments.twice, "check that each seed gives the same history again");
  app.add_flag("--all", arguments.goes_on, "go on after a history that breaks a promise");
  app.add_flag("--each-message", arguments.messages, "a small run: each message lost, doubled, late, ...");
  app.add_flag("--each-point", arguments.points, "a small run: the scheduler killed at each point");
  app.add_flag(
      "--each-moment", arguments.moments,
      "a small run: each two of four nodes fail at each moment, the disk of the third is full; a file of the fourth is damaged, or the disks of the two are lost");
  app.add_option("--stride", arguments.stride, "with --each-...: only each so many-th history")
      ->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  try {
    return run(arguments);
  } catch (const std::exception& error) {
    std::cerr << argv[0] << ": " << error.what() << "\n";
    return 1;
  }
}

}  // namespace modelet::simulation
