// Turns: what waits for a thread that does one thing after the other. Keys take turns, so whoever asks for much
// waits for it longer than those who ask for little. What came with one key keeps its order. Plain values; one
// thread.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace modelet::scheduler {

template <class Item>
class Turns {
 public:
  void add(std::string key, Item item, size_t bytes = 0) {
    auto& of_key = waiting_[key];
    if (of_key.empty()) order_.push_back(std::move(key));
    of_key.emplace_back(std::move(item), bytes);
    bytes_ += bytes;
  }
  std::optional<Item> next() {
    if (order_.empty()) return std::nullopt;
    const auto of_key = waiting_.find(order_.front());
    order_.pop_front();
    auto [item, bytes] = std::move(of_key->second.front());
    of_key->second.pop_front();
    bytes_ -= bytes;
    if (of_key->second.empty())
      waiting_.erase(of_key);
    else
      order_.push_back(of_key->first);
    return std::move(item);
  }
  template <class Is>
  void erase_if(const Is& is) {
    for (auto of_key = waiting_.begin(); of_key != waiting_.end();) {
      std::erase_if(of_key->second, [&](const auto& each) {
        if (!is(each.first)) return false;
        bytes_ -= each.second;
        return true;
      });
      if (of_key->second.empty()) std::erase(order_, of_key->first);
      of_key = of_key->second.empty() ? waiting_.erase(of_key) : std::next(of_key);
    }
  }

  bool empty() const { return order_.empty(); }
  size_t bytes() const { return bytes_; }

 private:
  std::map<std::string, std::deque<std::pair<Item, size_t>>> waiting_;
  std::deque<std::string> order_;  // keys that have something waiting
  size_t bytes_ = 0;
};

}  // namespace modelet::scheduler
