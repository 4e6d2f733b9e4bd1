// docs/experiment.md must say the same as the parser's table of keys.
#include <gtest/gtest.h>

#include <sstream>

#include "base/experiment/experiment.h"
#include "base/system/file.h"

namespace modelet {
namespace {

std::string row(const ExperimentField& f) {
  return "| `" + f.key + "` | " + f.type + " | `" + f.default_value + "` | " + f.range + " | " + f.unit +
         " | " + f.meaning + " |";
}

TEST(ExperimentDocument, ListsExactlyTheKeysOfTheParser) {
  const std::string text = read_text_file(MODELET_EXPERIMENT_DOCUMENT);
  std::string documented, known;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("| `")) documented += line + "\n";
  for (const ExperimentField& field : experiment_fields()) known += row(field) + "\n";
  EXPECT_EQ(documented, known) << "The table that docs/experiment.md should have:\n" << known;
}

TEST(ExperimentDocument, ExampleIsAValidExperiment) {
  const std::string text = read_text_file(MODELET_EXPERIMENT_DOCUMENT);
  const std::string open = "```toml\n";
  const size_t begin = text.find(open);
  ASSERT_NE(begin, std::string::npos);
  const size_t end = text.find("```", begin + open.size());
  EXPECT_NO_THROW(
      parse_experiment(text.substr(begin + open.size(), end - begin - open.size()), "docs/experiment.md"));
}

}  // namespace
}  // namespace modelet
