#include "scheduler/access/invitations.h"

#include <spdlog/fmt/fmt.h>

#include <chrono>
#include <optional>

#include "base/error.h"
#include "base/system/clock.h"
#include "base/system/file.h"
#include "base/text/toml.h"
#include "comm/security/invitation.h"

namespace modelet::scheduler {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostBytesOfInvitation = 1024;  // of a file, which has about a hundred
constexpr int64_t kToldFor = 7 * 86400;          // seconds for which an expired invitation is told from a forged one

struct Terms {
  int64_t expires = 0;  // seconds since 1970
  int64_t uses = 0;     // that are left
};

int64_t seconds_now() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string time_of(int64_t seconds) {
  return utc_text(std::chrono::system_clock::time_point(std::chrono::seconds(seconds)));
}

Terms read_terms(const fs::path& file) {
  try {
    const toml::table table = parse_toml(read_text_file(file, kMostBytesOfInvitation));
    const auto expires = table["expires"].value<int64_t>(), uses = table["uses"].value<int64_t>();
    if (expires && uses) return {*expires, *uses};
  } catch (const toml::parse_error&) {
  }
  throw Error(file.string() + ": is no invitation of 'modelet-scheduler invite': remove it");
}

void write_terms(const fs::path& file, const Terms& terms) {
  AtomicFile written(file);
  written.write(fmt::format("# An invitation of this pool, until {}. Without this file it is void.\nexpires = {}\nuses = {}\n",
                            time_of(terms.expires), terms.expires, terms.uses));
  written.commit();
}

}  // namespace

Invitations::Invitations(fs::path folder, Now now) : folder_(std::move(folder)), now_(now ? std::move(now) : seconds_now) {}

fs::path Invitations::file_of(const std::string& secret) const { return folder_ / comm::hash_of_secret(secret); }

std::string Invitations::make(double hours, uint32_t uses) {
  std::error_code failure;
  fs::create_directories(folder_, failure);
  if (failure) throw Error(folder_.string() + ": " + failure.message() + " (making the folder of invitations)");
  remove_old();
  if (const auto count = static_cast<size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
      count >= kMost)
    throw Error(fmt::format("{}: has {} invitations, as many as may be: remove some of its files", folder_.string(), count));
  const std::string secret = comm::make_secret();
  write_terms(file_of(secret), {now_() + static_cast<int64_t>(hours * 3600), uses});
  return secret;
}

std::string Invitations::take(const std::string& secret) {
  const fs::path file = file_of(secret);
  if (!fs::exists(file))
    return "this scheduler knows no such invitation, or it was withdrawn: ask for a new one (modelet-scheduler invite)";
  Terms terms = read_terms(file);
  if (now_() >= terms.expires)
    return fmt::format("this invitation has expired at {}: ask for a new one (modelet-scheduler invite --hours ...)",
                       time_of(terms.expires));
  if (terms.uses <= 0)
    return "this invitation was used as often as it may be: ask for a new one (modelet-scheduler invite --uses ...)";
  --terms.uses;
  write_terms(file, terms);
  return "";
}

void Invitations::remove_old() const {
  for (const auto& entry : fs::directory_iterator(folder_)) try {
      if (now_() < read_terms(entry.path()).expires + kToldFor) continue;
      fs::remove(entry.path());
    } catch (const Error&) {  // take() says what is wrong with it
    }
}

}  // namespace modelet::scheduler
