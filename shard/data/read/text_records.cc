#include "shard/data/read/text_records.h"

#include "shard/data/read/word_scan.h"

namespace modelet::shard {

bool TextRecords::next(TextRecord& record) {
  std::string_view line;
  if (!lines_.next(line)) return false;
  record.labels.clear();
  record.words.clear();
  for_each_word(line, is_space, [&](std::string_view word) {
    // Most words differ in the first byte and need no call to compare them.
    if (word.front() != prefix_.front() || !word.starts_with(prefix_)) {
      record.words.push_back(word);
    } else if (word.size() == prefix_.size()) {
      lines_.fail("a label without a name: '" + prefix_ + "' must be followed by one");
    } else {
      record.labels.push_back(word.substr(prefix_.size()));
    }
  });
  return true;
}

bool has_label(std::string_view line, std::string_view prefix) {
  bool found = false;
  for_each_word(line, is_space, [&](std::string_view word) {
    found |= word.size() > prefix.size() && word.starts_with(prefix);
  });
  return found;
}

}  // namespace modelet::shard
