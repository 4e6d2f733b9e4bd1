// The cache of prepared text (shard/data/store/dataset.h): its folder, and how large it may grow.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace modelet::shard {

// $MODELET_CACHE, else $XDG_CACHE_HOME/modelet, else ~/.cache/modelet. Creates the folder if it is missing.
// Nothing if that fails, or if no variable names one; warn_no_cache() then says so. UsageError if
// MODELET_CACHE_MIB is no size.
std::optional<std::filesystem::path> text_cache_folder();

// Says, once in a process, that prepared text is not kept, and why.
void warn_no_cache(const std::string& why);

// Call this when an entry "NAME.<16 hexadecimal digits>.mlt" of the cache was opened: it is now the last to
// be removed. While all entries together have more than $MODELET_CACHE_MIB (default: 64 GiB), the least
// recently used ones of its folder are removed, but never this one, and none that was used in the last
// minute. A process can go on reading what it has mapped.
void note_use_of_cached(const std::filesystem::path& entry);

}  // namespace modelet::shard
