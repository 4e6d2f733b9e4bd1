// The files of the folder page/, which CMake embeds into the library. They live as long as the process.
#pragma once

#include <span>
#include <string_view>

namespace modelet::scheduler {

struct Asset {
  std::string_view name;  // "index.html"
  std::string_view text;
  std::string_view type;  // for browsers
  std::string_view tag;   // another one for another text
};

std::span<const Asset> assets();
// nullptr: there is no such file.
const Asset* asset_named(std::string_view name);

}  // namespace modelet::scheduler
