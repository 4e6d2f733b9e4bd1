// hello TRAIN TEST FOLDER TEXT: trains a model on a file, and predicts the labels of a text.
//
// A line of TRAIN and TEST is a sample: its labels, each written as __label__NAME, and its words.
#include <cstdio>
#include <string>

#include "base/error.h"
#include "base/experiment/experiment.h"
#include "node_agent/train/train.h"
#include "shard/inference/model.h"

namespace {

void hello(const char* train, const char* test, const char* folder, const char* text) {
  modelet::Experiment experiment;  // every key of an experiment file is a member
  experiment.data.train = train;
  experiment.data.test = test;
  experiment.model.hidden = {64};
  experiment.train.epochs = 20;
  modelet::agent::train(experiment, folder);

  const modelet::shard::Model model(folder);
  for (const modelet::shard::ScoredLabel& found : model.predict(text, 3))
    std::printf("%8.3f  %s\n", double{found.score}, std::string(found.name).c_str());
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 5) throw modelet::UsageError("usage: hello TRAIN TEST FOLDER TEXT");
    hello(argv[1], argv[2], argv[3], argv[4]);
  } catch (const modelet::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.exit_code());
  }
  return 0;
}
