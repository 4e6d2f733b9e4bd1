#include "base/error.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <system_error>

namespace modelet {

std::string errno_text(const std::string& path) {
  const char* cure = "";
  if (errno == ENOSPC)
    cure = ": remove files from that disk, or choose a folder on another one";
  else if (errno == EDQUOT)
    cure = ": remove files of this user, or choose a folder on another disk";
  else if (errno == EFBIG)
    cure = ": raise the limit of the size of files (ulimit -f)";
  else if (errno == EROFS)
    cure = ": choose a folder on another one";
  else if (errno == EMFILE)
    cure = ": raise the limit of this process (ulimit -n, LimitNOFILE of a systemd unit)";
  return path + ": " + std::generic_category().message(errno) + cure;
}

void check_failed(const char* condition, const char* file, int line, const std::string& detail) {
  std::fprintf(stderr, "modelet: bug: %s:%d: invariant broken: %s%s%s\n", file, line, condition,
               detail.empty() ? "" : ": ", detail.c_str());
  std::abort();
}

}  // namespace modelet
