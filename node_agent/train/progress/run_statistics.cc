#include "node_agent/train/progress/run_statistics.h"

#include <utility>

#include "node_agent/step/exchange/rounds.h"

namespace modelet::agent {

void RunStatistics::begin_step(const RankGrid::Totals& totals) {
  began_ = clock_.now();
  bytes_before_ = totals.bytes_sent;
  times_.begin(totals);
}

void RunStatistics::end_step(std::optional<double> loss, size_t samples, const RankGrid::Totals& totals) {
  const double seconds = clock_.now() - began_;
  times_.end(seconds, totals);
  steps_.seconds += seconds;
  ++steps_.count;
  train_seconds_ += seconds;
  samples_ += samples;
  bytes_sent_ += totals.bytes_sent - bytes_before_;
  since_gathered_.add(loss);
  since_epoch_.add(loss);
}

RunStatistics::Common RunStatistics::gather(RankGrid& grid, uint64_t step, bool with_loss) {
  const double began = clock_.now();
  const auto loss = with_loss ? std::optional(since_gathered_.over_replicas(grid, step)) : std::nullopt;
  nlohmann::json nodes = times_.report(grid, {step - 1, kTimesRound});
  since_gathered_.reset();
  const double seconds = clock_.now() - began;
  steps_.seconds += seconds;
  train_seconds_ += seconds;
  return {loss, std::move(nodes)};
}

void RunStatistics::add_evaluation(size_t samples, double seconds) {
  evaluated_.seconds += seconds;
  evaluated_.count += samples;
}

void RunStatistics::add_checkpoint(double seconds) {
  checkpoints_.seconds += seconds;
  ++checkpoints_.count;
}

void RunStatistics::add_classifiers(double seconds) {
  train_seconds_ += seconds;
  classifiers_.seconds += seconds;
  ++classifiers_.count;
}

double RunStatistics::samples_per_second() const {
  return steps_.seconds > 0 ? static_cast<double>(samples_) / steps_.seconds : 0;
}

double RunStatistics::bytes_per_step() const {
  return steps_.count == 0 ? 0 : static_cast<double>(bytes_sent_) / static_cast<double>(steps_.count);
}

double RunStatistics::wait_fraction() const {
  return steps_.seconds > 0 ? times_.total_wait_seconds() / steps_.seconds : 0;
}

double RunStatistics::seconds_left(const Left& left) const {
  return steps_.of(left.steps) + evaluated_.of(left.evaluated_samples) + checkpoints_.of(left.checkpoints) +
         classifiers_.of(left.fitted_classifiers);
}

}  // namespace modelet::agent
