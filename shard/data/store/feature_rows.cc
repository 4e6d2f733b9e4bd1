#include "shard/data/store/feature_rows.h"

#include <algorithm>

#include "base/error.h"

namespace modelet::shard {

FeatureRows::FeatureRows(uint64_t features, std::span<const uint32_t> ids) : features_(features) {
  MODELET_CHECK(!ids.empty() && ids.size() <= features);
  if (ids.size() == features) return;
  ids_.assign(ids.begin(), ids.end());
  directory_.resize((features + kPage - 1) / kPage);
  pages_.assign(kPage, kNone);
  for (size_t row = 0; row < ids_.size(); ++row) {
    uint32_t& page = directory_[ids_[row] / kPage];
    if (page == 0) {
      page = static_cast<uint32_t>(pages_.size());
      pages_.resize(pages_.size() + kPage, kNone);
    }
    pages_[page + ids_[row] % kPage] = static_cast<uint32_t>(row);
  }
}

FeatureRows FeatureRows::of(const Dataset& data, const FeatureRows* earlier) {
  if (earlier != nullptr && earlier->all()) return FeatureRows(data.features());
  constexpr size_t kBits = 64;
  struct Page {
    uint64_t words[kPage / kBits] = {};
  };
  std::vector<uint32_t> directory((data.features() + kPage - 1) /
                                  kPage);  // 0: no page, else its number from 1
  std::vector<Page> pages;
  const auto add = [&](uint32_t feature) {
    uint32_t& page = directory[feature / kPage];
    if (page == 0) {
      pages.emplace_back();
      page = static_cast<uint32_t>(pages.size());
    }
    pages[page - 1].words[feature % kPage / kBits] |= uint64_t{1} << (feature % kBits);
  };
  for (size_t row = 0; row < data.rows(); ++row)
    for (const uint32_t feature : data.sample(row).features) add(feature);
  if (earlier != nullptr)
    for (const uint32_t feature : earlier->ids()) add(feature);
  if (pages.empty()) add(0);
  std::vector<uint32_t> ids;
  for (size_t i = 0; i < directory.size(); ++i)
    for (size_t bit = 0; directory[i] != 0 && bit < kPage; ++bit)
      if ((pages[directory[i] - 1].words[bit / kBits] >> (bit % kBits) & 1) != 0)
        ids.push_back(static_cast<uint32_t>(i * kPage + bit));
  return {data.features(), ids};
}

}  // namespace modelet::shard
