#include "scheduler/access/permission.h"

#include <spdlog/fmt/fmt.h>

#include <tuple>

namespace modelet::scheduler {
namespace {

namespace msg = comm::control;

bool is_of_agents(const msg::ToSchedulerMessage& message) {
  return std::visit(
      []<class Message>(const Message&) {
        const auto is_one_of = []<class... Types>(std::tuple<Types...>*) {
          return (std::is_same_v<Message, Types> || ...);
        };
        using OfAgents = std::tuple<msg::RegisterT, msg::HeartbeatT, msg::PreparedT, msg::RunEventT,
                                    msg::RunDoneT, msg::LeaveT, msg::FetchManifestT, msg::FetchChunkT,
                                    msg::LeaveRequestT, msg::PeerMissedT, msg::SnapshotHeldT>;
        return is_one_of(static_cast<OfAgents*>(nullptr));
      },
      message);
}

}  // namespace

std::string unknown_text(const comm::Identity& sender) {
  return fmt::format(
      "the key {0} is not, or no longer, in the scheduler's allow-list: whoever runs the scheduler can add the line "
      "'user {0} NAME'",
      sender.key);
}

std::string why_not(const comm::Identity& sender, const msg::ToSchedulerMessage& message) {
  using comm::Role;
  if (sender.role == Role::kNobody)
    return std::holds_alternative<msg::RegisterT>(message) || std::holds_alternative<msg::EnrolT>(message)
               ? ""
               : unknown_text(sender);
  if (std::holds_alternative<msg::EnrolT>(message)) return "";  // a key that was let in may ask twice
  const bool of_agents = is_of_agents(message);
  if ((sender.role == Role::kUser || sender.role == Role::kAdmin) && of_agents)
    return fmt::format(
        "the key '{}' is a user's, which may not be an agent: list an agent's key as 'agent' in the "
        "scheduler's allow-list",
        sender.name);
  if (sender.role == Role::kAgent && !of_agents)
    return fmt::format(
        "the key '{}' is an agent's, which may not submit, list, watch or stop: list a user's key as "
        "'user' in the scheduler's allow-list",
        sender.name);
  return "";
}

bool may_lead(const comm::Identity& sender, const std::string& submitter) {
  using comm::Role;
  return sender.role == Role::kAnybody || sender.role == Role::kAdmin ||
         (sender.role == Role::kUser && sender.name == submitter);
}

}  // namespace modelet::scheduler
