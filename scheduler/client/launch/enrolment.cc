#include "scheduler/client/launch/enrolment.h"

namespace modelet::cli {

comm::KeyPair enrol(const std::filesystem::path& key_file, bool replace,
                    const std::filesystem::path& allow_list, const std::string& role,
                    const std::string& name) {
  const comm::KeyPair pair = comm::make_key_pair();
  comm::add_to_allow_list(allow_list, role, pair.public_key, name,
                          [&] { comm::write_key_file(key_file, pair, replace); });
  return pair;
}

}  // namespace modelet::cli
