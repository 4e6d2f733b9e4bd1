// Synthetic click logs in the layout of the public Criteo logs (tab-separated: label, 13 integers, 26
// hexadecimal categories; empty: missing) whose true click probabilities are known, and so the best AUC and
// log-loss that any model can reach.
//
// Categories follow Zipf's law, integers are rounded log-normal counts. The log-odds of a click are a sum of
//   - an effect of every category value and a curve over every integer (what an additive model can learn),
//   - interactions: inner products of hidden factors of pairs of category values, and slopes over an integer
//     that depend on a category value. Given either one alone their mean is zero, so an additive model sees
//     nothing of them.
// A row is a function of (seed, split, row) alone.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/rng.h"
#include "shard/synth/synth.h"

namespace modelet::shard {

struct ClickOptions {
  uint64_t rows_train = 1'000'000, rows_test = 200'000;
  uint64_t seed = 1;
};

// Throws UsageError that names the option.
void validate(const ClickOptions& options);

struct Click {
  std::string_view line;  // with its line end; valid until the next one is made
  bool clicked = false;
  double log_odds = 0;           // true ones
  double additive_log_odds = 0;  // without the interactions
};

// Not thread-safe (scratch); any number of generators give the same rows.
class ClickGenerator {
 public:
  static constexpr size_t kIntegers = 13, kCategories = 26;

  explicit ClickGenerator(uint64_t seed);
  Click click(Split split, uint64_t row);

 private:
  struct Category {
    ZipfTable law;
    std::vector<float> effects;  // [values]
    uint32_t salt;
  };
  // A pair of categories, or a category (first) and an integer (second).
  struct Interaction {
    bool with_integer;
    size_t first, second;
    std::vector<float> first_factors, second_factors;  // [values, kFactors]; second: empty for an integer
  };

  void draw_integers(Rng& rng);
  void draw_categories(Rng& rng);
  double additive_effects() const;
  double interactions() const;
  std::vector<float> centred_factors(const Category& category, size_t width, uint64_t which) const;
  void write_line(bool clicked);

  uint64_t seed_;
  std::vector<Category> categories_;
  std::vector<Interaction> interactions_;
  // Of the row that is being made.
  std::vector<int64_t> integers_;  // kMissing: none
  std::vector<double> positions_;  // of the integers on their standardised logarithmic scale; 0 if missing
  std::vector<uint32_t> values_;   // ranks in the categories; kNoValue: missing
  std::string line_;
};

// The true figures of the test part.
struct ClickTruth {
  double click_rate = 0;
  double auc = 0, log_loss = 0;                    // of the true probabilities: the ceiling, the floor
  double additive_auc = 0, additive_log_loss = 0;  // of the log-odds without the interactions
};

// Writes train.tsv, test.tsv and truth.json (the returned figures) to `folder`, which is created if needed.
ClickTruth write_clicks(const ClickOptions& options, const std::filesystem::path& folder,
                        const SynthProgress& progress = {}, Existing existing = Existing::kReplace);

}  // namespace modelet::shard
