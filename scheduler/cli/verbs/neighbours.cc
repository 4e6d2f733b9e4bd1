#include "scheduler/cli/verbs/neighbours.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "node_agent/machine/capacity.h"
#include "scheduler/cli/options/output.h"
#include "shard/inference/embeddings.h"
#include "shard/inference/model.h"

namespace modelet::cli {
namespace {

using nlohmann::json;

struct NeighboursOptions {
  std::string checkpoint, word;
  size_t k = 10;
  bool json = false;
};

uint32_t find_word(const shard::Embeddings& embeddings, const std::string& word) {
  const uint32_t id = embeddings.words().find(word);
  if (id != shard::StringTable::kNone) return id;
  constexpr size_t kShown = 5;
  const auto alike = embeddings.alike(word, kShown);
  throw UsageError(
      fmt::format("'{}' is not among the {} words of the model{}", word, embeddings.words().size(),
                  alike.empty() ? "; words are taken as they stood in the text, lower case or not"
                                : fmt::format("; did you mean {}?", fmt::join(alike, ", "))));
}

void neighbours(const NeighboursOptions& options) {
  const shard::Embeddings embeddings(agent::load_model(options.checkpoint, 0));
  const auto found = embeddings.nearest(find_word(embeddings, options.word), options.k);
  json list = json::array();
  for (const auto& neighbour : found) {
    const std::string_view word = embeddings.words().at(neighbour.word);
    if (options.json)
      list.push_back({{"word", word}, {"cosine", neighbour.cosine}});
    else
      std::cout << fmt::format("{:.4f}  {}\n", neighbour.cosine, word);
  }
  if (options.json) print_line(json{{"word", options.word}, {"neighbours", std::move(list)}});
}

}  // namespace

void add_neighbours_verb(CLI::App& app) {
  const auto options = std::make_shared<NeighboursOptions>();
  CLI::App& verb =
      *app.add_subcommand("neighbours", "Print the words nearest to a word, of a model of running text");
  verb.add_option("checkpoint", options->checkpoint, "run folder or checkpoint")
      ->required()
      ->check(CLI::ExistingDirectory);
  verb.add_option("word", options->word, "as it stands in the text")->required();
  verb.add_option("--k", options->k, "words")->check(CLI::Range(1, 1000))->capture_default_str();
  verb.add_flag("--json", options->json, "one JSON object instead of text");
  verb.footer(
      "Nearness is the cosine between the words' rows of the input layer; the run must have data.format = "
      "\"words\".\n"
      "Example:\n  modelet neighbours runs/words-20260101-120000 python --k 5");
  verb.callback([options] { neighbours(*options); });
}

}  // namespace modelet::cli
