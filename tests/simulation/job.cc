#include "tests/simulation/job.h"

#include <nlohmann/json.hpp>

#include "node_agent/agent/core/event_message.h"

namespace modelet::simulation {

std::vector<RankHost*> Job::find_ranks(const msg::StartT& start) const {
  std::vector<RankHost*> ranks;
  for (const std::string& endpoint : start.endpoints) ranks.push_back(around_.find(endpoint));
  return ranks;
}

void Job::report_prepared() {
  msg::PreparedT prepared;
  prepared.run = prepare_.run;
  prepared.epoch = prepare_.epoch;
  prepared.endpoint = around_.endpoint;
  around_.report(std::move(prepared));
}

void Job::report_missed(uint32_t rank, bool over, const std::string& why) {
  msg::PeerMissedT missed;
  missed.run = prepare_.run;
  missed.epoch = prepare_.epoch;
  missed.rank = rank;
  missed.why = why;
  missed.over = over;
  missed.step = step();
  around_.report(std::move(missed));
}

void Job::report_event(const nlohmann::json& event) {
  msg::RunEventT message = agent::event_message(event);
  message.run = prepare_.run;
  around_.report(std::move(message));
}

}  // namespace modelet::simulation
