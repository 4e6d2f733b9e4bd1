// What is chosen in each regime, at both sides of its limits; and the table of docs/studies/recipes.md, which must be
// that of regime.cc.
#include "node_agent/train/recipe/regime.h"

#include <gtest/gtest.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cctype>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

#include "base/system/file.h"
#include "node_agent/train/recipe/recipe.h"

namespace modelet::agent {
namespace {

struct Data {
  uint64_t rows, labels;
  double labels_per_row;
  const char* rest = "";  // "rare": most labels are rare, "only rare": none is frequent; "short", "dense"
  const char* given = "train.seed=1";

  DataFacts facts() const {
    const std::string_view words = rest;
    const auto word = [&](std::string_view w) { return words.find(w) != std::string_view::npos; };
    const bool dense = word("dense"), is_short = word("short");
    return {.rows = rows,
            .features = dense ? 64u : 32000u,
            .labels = labels,
            .features_per_row = is_short ? 4.9 : 40,
            .labels_per_row = labels_per_row,
            .most_labels = labels_per_row > 1 ? 50u : 1u,
            .rare_labels = word("rare") ? labels / 2 + 1 : labels / 2,
            .often_share = word("only") ? 0.1 : 0.11};
  }
};

// LOSS WIDTH x DROPOUT, EPOCHS / LEARNING RATE, DRAWS; CLASSIFIERS TRUST SHARE PRIOR
std::string settings_of(const Experiment& e) {
  return fmt::format("{} {} x {}, {} / {}, {}; {} {} {} {}", spelling(e.model.loss), e.model.hidden.front(),
                     e.train.hidden_dropout, e.train.epochs, e.train.learning_rate,
                     e.sampling.mode == SamplingMode::kFull ? 0 : e.sampling.uniform, e.model.classifiers,
                     e.model.rare_trust, e.model.centroid_share, e.sampling.prior);
}

TEST(Regimes, DecideTheSettings) {
  // clang-format off
  const std::pair<Data, const char*> kCases[] = {
      {{5000, 10, 1, "dense"}, "measurements: softmax 256 x 0.1, 19 / 0.00212, 0; 0 1 1 0"},
      {{46000, 37000, 6, "dense"}, "measurements: sigmoid 256 x 0.1, 10 / 0.003, 2048; 0 1 1 0"},
      {{46000, 15, 2}, "few labels: sigmoid 256 x 0.3, 10 / 0.005, 0; 0 1 1 0"},
      {{46000, 16, 3.9}, "several labels, few a sample: sigmoid 512 x 0.5, 7 / 0.01, 0; 4 1 0.8 0"},
      {{100000, 999, 3.9}, "several labels, few a sample: sigmoid 512 x 0.5, 7 / 0.01, 0; 4 1 0.8 0"},
      {{250000, 999, 3.9}, "several labels, few a sample: sigmoid 768 x 0.5, 6 / 0.01, 0; 4 1 0.8 0"},
      {{250001, 999, 3.9}, "several labels: sigmoid 1024 x 0.5, 6 / 0.01, 0; 4 1 0.8 0"},
      {{46000, 64, 4}, "several labels: sigmoid 512 x 0.5, 7 / 0.01, 0; 4 1 0.8 0"},
      {{46000, 999, 9}, "several labels: sigmoid 1024 x 0.5, 7 / 0.01, 0; 4 1 0.8 0"},
      {{46000, 999, 1}, "several labels: softmax 1024 x 0.5, 9 / 0.005, 0; 4 1 0.8 0"},
      {{2000, 58, 4}, "several labels: sigmoid 128 x 0.1, 23 / 0.01, 0; 4 1 0.8 0"},
      {{2000, 37000, 1}, "one of many labels: softmax 128 x 0.1, 23 / 0.0025, 2048; 2.5 1 0.8 0.75"},
      {{46000, 37000, 1}, "one of many labels: softmax 256 x 0.3, 7 / 0.005, 2048; 2.5 1 0.8 0.75"},
      {{46000, 37000, 1, "rare"}, "one of many labels: softmax 256 x 0.3, 7 / 0.005, 2048; 2.5 1 0.8 0.75"},
      {{200000, 37000, 1, "rare"}, "one of many labels: softmax 256 x 0.3, 7 / 0.005, 512; 2.5 1 0.8 0.75"},
      {{200001, 37000, 1}, "one of many frequent labels: softmax 1024 x 0.5, 9 / 0.005, 2048; 2.5 1 0.8 0.75"},
      {{2000, 37000, 3.9}, "frequent labels, few a sample: sigmoid 256 x 0.5, 13 / 0.01, 512; 4 1 0.8 0.75"},
      {{100000, 37000, 3.9}, "frequent labels, few a sample: sigmoid 512 x 0.5, 7 / 0.01, 512; 4 1 0.8 0.75"},
      {{100001, 37000, 3.9, "short"}, "frequent labels, few a sample: sigmoid 768 x 0.5, 7 / 0.01, 512; 2.5 1 0.8 0.75"},
      {{250001, 37000, 3.9}, "frequent labels: sigmoid 1024 x 0.5, 6 / 0.01, 512; 4 1 0.8 0.75"},
      {{46000, 1000, 6}, "frequent labels: sigmoid 1024 x 0.5, 7 / 0.01, 0; 4 1 0.8 0"},
      {{46000, 37000, 6}, "frequent labels: sigmoid 1024 x 0.5, 7 / 0.01, 512; 4 1 0.8 0.75"},
      {{46000, 37000, 6, "short"}, "frequent labels: sigmoid 1024 x 0.5, 7 / 0.01, 512; 2.5 1 0.8 0.75"},
      {{46000, 37000, 8.1}, "frequent labels: sigmoid 1024 x 0.5, 7 / 0.01, 512; 2.5 1 0.8 0.75"},
      {{8000, 37000, 6}, "frequent labels: sigmoid 256 x 0.5, 10 / 0.01, 512; 4 1 0.8 0.75"},
      {{8000, 37000, 6, "short"}, "frequent labels: sigmoid 256 x 0.3, 13 / 0.01, 512; 2.5 1 0.8 0.75"},
      {{46000, 37000, 6, "", "model.centroids=false"}, "frequent labels: sigmoid 1024 x 0.5, 10 / 0.005, 2048; 0 1 1 0"},
      {{2000, 37000, 6, "", "model.centroids=false"}, "frequent labels: sigmoid 128 x 0.1, 25 / 0.0025, 2048; 0 1 1 0"},
      {{46000, 37000, 6, "", "model.classifiers=0"}, "frequent labels: sigmoid 1024 x 0.5, 9 / 0.01, 2048; 0 1 0.8 0.75"},
      {{2000, 37000, 6, "rare"}, "rare beside frequent labels, few samples: sigmoid 256 x 0.5, 13 / 0.01, 512; 3 0.7 0.8 0.75"},
      {{8000, 37000, 6, "short rare"}, "rare beside frequent labels, few samples: sigmoid 256 x 0.3, 13 / 0.01, 512; 2.5 0.7 0.8 0.75"},
      {{8000, 37000, 8.1, "rare"}, "rare beside frequent labels, few samples: sigmoid 256 x 0.5, 10 / 0.01, 512; 2.5 0.7 0.8 0.75"},
      {{8001, 37000, 6, "rare"}, "rare beside frequent labels: sigmoid 512 x 0.5, 10 / 0.01, 512; 1.5 0.25 0.9 0.9"},
      {{100000, 37000, 6, "rare"}, "rare beside frequent labels: sigmoid 768 x 0.5, 7 / 0.01, 1024; 1.5 0.25 0.9 0.9"},
      {{100001, 37000, 6, "rare"}, "rare beside frequent labels: sigmoid 1024 x 0.5, 7 / 0.01, 512; 1.5 0.25 0.9 0.9"},
      {{100000, 670000, 9, "short rare"}, "rare beside frequent labels: sigmoid 768 x 0.5, 7 / 0.01, 4096; 1 0.5 0.9 0.9"},
      {{8000, 37000, 6, "only rare"}, "rare labels, few samples: sigmoid 256 x 0.5, 10 / 0.01, 512; 3 1 0.8 0.75"},
      {{8000, 37000, 6, "short, only rare"}, "rare labels, few samples: sigmoid 256 x 0.3, 13 / 0.01, 512; 2.5 1 0.8 0.75"},
      {{8001, 37000, 6, "only rare"}, "rare labels: sigmoid 512 x 0.5, 10 / 0.01, 512; 2.5 1 0.8 0.75"},
      {{100001, 37000, 6, "only rare"}, "rare labels: sigmoid 1024 x 0.5, 7 / 0.01, 512; 2.5 1 0.8 0.75"},
      {{200001, 37000, 1, "rare"}, "rare labels: softmax 1024 x 0.5, 7 / 0.005, 512; 2.5 1 0.8 0.75"},
  };
  // clang-format on
  for (const auto& [data, settings] : kCases) {
    const GivenKeys given =
        given_settings("given", {"data.train=train.txt", "data.test=test.txt", data.given});
    const DataFacts facts = data.facts();
    const Experiment chosen =
        training_recipe(given, facts, {.memory_bytes = uint64_t{64} << 30, .bf16_products = true}).experiment;
    const std::string place = fmt::format("{} samples, {} labels, {} a sample {} {}", data.rows, data.labels,
                                          data.labels_per_row, data.rest, data.given);
    const Regime& regime = regime_of(facts, chosen.model.loss);
    EXPECT_EQ(fmt::format("{}: {}", regime.name, settings_of(chosen)), settings) << place;
  }
}

std::string cell(const BySamples& value) {
  std::string text = fmt::format("{}", value.usual);
  if (value.short_samples != value.usual) text += fmt::format("; short {}", value.short_samples);
  if (value.many_labels != value.usual) text += fmt::format("; many labels {}", value.many_labels);
  return text;
}

std::string cell(const Widest& widest) {
  const auto limit = [](uint32_t width) { return width == UINT32_MAX ? "any" : std::to_string(width); };
  return widest.usual == widest.many_samples ? limit(widest.usual)
                                             : limit(widest.usual) + ", " + limit(widest.many_samples);
}

// The row of the document, which also says in its second column when the regime holds.
std::string row(const Regime& each, const std::string& when) {
  std::string anchor = each.study;
  std::erase(anchor, ',');
  std::ranges::replace(anchor, ' ', '-');
  std::ranges::transform(anchor, anchor.begin(), [](unsigned char c) { return std::tolower(c); });
  const std::string passes = each.loss == Loss::kSigmoid || each.softmax_epochs == 7 ? "7"
                             : each.loss ? std::to_string(each.softmax_epochs)
                                         : fmt::format("7; softmax {}", each.softmax_epochs);
  const std::string values =
      each.labels && *each.labels < Labels::kSeveral
          ? " | | | | | | | "
          : fmt::format(" | {} | {} | {} | {} | {} | {} | ", cell(each.classifiers), cell(each.rare_trust),
                        each.centroid_share, each.prior, cell(each.widest), passes);
  return fmt::format("| {} | {}{}[{}](#{}) |", each.name, when, values, each.study, anchor);
}

TEST(Regimes, AreThoseOfTheStudy) {
  const std::string text = read_text_file(MODELET_RECIPES_DOCUMENT);
  std::istringstream lines(text.substr(text.find("| regime |")));
  std::string line;
  for (int head = 0; head < 2; ++head) std::getline(lines, line);
  for (const Regime& each : regimes()) {
    std::getline(lines, line);
    const size_t begin = std::min(line.find(" | "), line.size() - 3) + 3;
    EXPECT_EQ(line, row(each, line.substr(begin, line.find(" | ", begin) - begin)));
    EXPECT_NE(text.find(fmt::format("\n## {}\n", each.study)), std::string::npos) << each.study;
  }
}

}  // namespace
}  // namespace modelet::agent
