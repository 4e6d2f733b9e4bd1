#include "scheduler/cli/serve/served_model.h"

#include <cmath>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/system/log.h"

namespace modelet::cli {
namespace {

// Prepares sparse scoring. It is a function because it must run between the initialisation of two members.
bool make_sparse(LoadedModel& model, const ServedModelOptions& options) {
  if (!options.sparse) return false;
  model.make_sparse(
      options.queries.empty()
          ? model.test_data("--sparse is tuned on samples: give --queries FILE with samples like "
                            "those to come (labels are not needed)")
          : model.load_data(options.queries));
  return true;
}

}  // namespace

ServedModel::ServedModel(const ServedModelOptions& options)
    : model_(options.run, options.threads),
      encoder_(model_.query_encoder()),
      sparse_(make_sparse(model_, options)),
      interpreter_(make_interpreter(model_, options)),
      sessions_(model_.predictor()) {
  answer({.queries = {{.text = "\n", .ids = true, .where = "the first question"}}});
}

Interpreter ServedModel::make_interpreter(LoadedModel& model, const ServedModelOptions& options) {
  std::vector<std::string> names =
      model.label_names(options.labels, [](const std::string& text) { log_warning("{}", text); });
  std::optional<shard::Calibration> calibration;
  if (options.proba) {
    try {
      calibration = model.calibrate(options.calibrate, [](const std::string& text) { log_info("{}", text); });
    } catch (const Error& error) {
      if (!options.calibrate.empty()) throw;
      log_warning("answers have no probabilities: {}", error.what());
    }
  }
  return {model.shape().labels, model.experiment().model.loss, std::move(names), calibration};
}

std::vector<ServedModel::Answer> ServedModel::answer(const PredictRequest& request) const {
  const bool sparse = request.sparse.value_or(sparse_);
  if (sparse && !sparse_)
    throw FormatError(
        "sparse: this server scores all labels; leave 'sparse' out, or have it started with --sparse");
  auto session = sessions_.borrow();
  std::vector<Answer> answers;
  for (const Query& query : request.queries) answers.push_back(answer(query, request.k, sparse, *session));
  sessions_.give_back(std::move(session));
  return answers;
}

std::unique_ptr<shard::SampleReader> ServedModel::open(const Query& query) const {
  if (!query.row.empty()) return encoder_.open_rows({query.row}, query.where);
  if (!query.ids) return encoder_.open_texts({query.text}, query.where);
  return encoder_.open_ids(shard::LineReader::of_texts(query.text, query.where));
}

ServedModel::Answer ServedModel::answer(const Query& query, size_t k, bool sparse,
                                        shard::Predictor::Session& session) const {
  const auto reader = open(query);
  shard::Sample sample;
  if (!reader->next(sample)) throw FormatError(query.where + ": there is no sample in it");
  const size_t depth = interpreter_.depth(k);
  const shard::TopK& best = sparse ? session.sparse(sample, depth) : session.dense(sample, depth);
  // NaN is never among the best. An index may find nothing, which is no error of the question.
  const bool found = best.labels(0).front() != shard::TopK::kNoLabel;
  if (found ? !std::isfinite(best.scores(0).front()) : !sparse)
    throw FormatError(query.where + ": its values are so large that scores are no numbers");
  Answer answer;
  interpreter_.interpret(best, 0, k, answer);
  return answer;
}

std::unique_ptr<shard::Predictor::Session> ServedModel::Sessions::borrow() {
  const std::lock_guard lock(mutex_);
  if (idle_.empty()) return std::make_unique<shard::Predictor::Session>(predictor_.session());
  auto session = std::move(idle_.back());
  idle_.pop_back();
  return session;
}

// A session that an exception destroyed is not given back; borrow() makes a new one.
void ServedModel::Sessions::give_back(std::unique_ptr<shard::Predictor::Session> session) {
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(session));
}

}  // namespace modelet::cli
