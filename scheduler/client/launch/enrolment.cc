#include "scheduler/client/launch/enrolment.h"

#include <fcntl.h>
#include <spdlog/fmt/fmt.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/error.h"
#include "base/system/descriptor.h"

namespace modelet::cli {

comm::KeyPair enrol(const std::filesystem::path& key_file, bool replace,
                    const std::filesystem::path& allow_list, const std::string& role,
                    const std::string& name) {
  const comm::KeyPair pair = comm::make_key_pair();
  const Descriptor list(::open(allow_list.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (list.get() < 0 || ::flock(list.get(), LOCK_EX) != 0) throw Error(errno_text(allow_list.string()));
  const off_t size = ::lseek(list.get(), 0, SEEK_END);
  char last = '\n';
  if (size > 0 && ::pread(list.get(), &last, 1, size - 1) != 1) throw Error(errno_text(allow_list.string()));
  const std::string line = fmt::format("{}{} {} {}\n", last == '\n' ? "" : "\n", role, pair.public_key, name);
  try {
    if (::write(list.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size()))
      throw Error(errno_text(allow_list.string()));
    comm::AllowList{allow_list};  // as the scheduler reads it
    comm::write_key_file(key_file, pair, replace);
  } catch (...) {
    if (::ftruncate(list.get(), size) != 0) throw Error(errno_text(allow_list.string()));
    throw;
  }
  return pair;
}

}  // namespace modelet::cli
