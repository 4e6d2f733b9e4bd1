// Labels that come, go, get other names or are corrected, of a model that is not trained again. Each change is a new checkpoint
// of the run, one step after its newest one: a server that serves the run loads it, and the checkpoint before stays.
//
// A new label gets a neuron of its own. It is known at once by its mean sample: by the direct path, if the model has one, and by
// the mean of the neurons of those labels that the model takes its samples for. Then its neuron and its linear classifier are
// fitted, with samples of the training data as negatives. Nothing else of the model changes, so other labels keep their scores.
// The numbers of labels stay, too: new ones get the next numbers, and removed ones keep theirs.
//
// Functions without state; each holds the lock of the run's folder while it works, and needs memory for the model twice, with a
// softmax three times.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace modelet::agent {

struct ChangeOptions {
  unsigned threads = 1;
  // Called from time to time with what is being done, and its share in [0, 1]. It may throw, which ends the work; the run is
  // then as before.
  std::function<void(std::string_view what, double share)> progress = {};
};

struct AddOptions : ChangeOptions {
  std::filesystem::path names;       // of new labels, one a line, of a model of XMC text whose labels have names
  std::filesystem::path background;  // samples as in training, for negatives; empty: the training data, if it is there
  bool fit = true;                   // false: new labels are known by their mean sample only
};

struct ChangedLabels {
  std::filesystem::path checkpoint;  // the new one
  uint64_t labels = 0;               // that the model has now, removed ones included
  uint64_t changed = 0;              // labels that are new, removed or renamed
  uint64_t samples = 0, background = 0;  // of new labels; for negatives
};

// The event "labels" (docs/events.md); `what` was done.
nlohmann::json to_json(const ChangedLabels& changed, std::string_view what);

// Adds the labels of `samples` that the model in `run` does not have. The text is as that of the training data; its other labels
// are ignored. UsageError if it has no new label, or if the model is one of towers, of running text or of 0/1 columns;
// FormatError and Error as load_dataset().
ChangedLabels add_labels(const std::filesystem::path& run, const std::filesystem::path& samples, const AddOptions& options);

// Corrects the model with samples of labels that it has: the neurons and classifiers of these labels alone are fitted again, with
// the samples, each as often as eight others, and as in AddOptions with some of the training data, so that what they have
// learned before is not forgotten. Other labels keep their scores. UsageError if the samples have no label that the model has,
// or one that was removed, or if there are no samples of the training.
ChangedLabels learn(const std::filesystem::path& run, const std::filesystem::path& samples, const AddOptions& options);

// A removed label is never again an answer. `labels`: names or, if labels have none, numbers. UsageError if one is unknown, or
// was removed before, or if none would be left.
ChangedLabels remove_labels(const std::filesystem::path& run, std::span<const std::string> labels, const ChangeOptions& options);

// UsageError if labels have no names, if `from` is unknown, or if another label has the name `to`.
ChangedLabels rename_label(const std::filesystem::path& run, const std::string& from, const std::string& to,
                           const ChangeOptions& options);

}  // namespace modelet::agent
