// A number of bytes as text for people.
#pragma once

#include <cstdint>
#include <string>

namespace modelet::scheduler {

std::string bytes_text(uint64_t bytes);  // "1.5 GiB", "640 KiB"

}  // namespace modelet::scheduler
