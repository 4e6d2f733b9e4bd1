// Notices of clouds. A cloud gives them to a machine over HTTP at a link-local address.
#pragma once

#include <memory>

#include "node_agent/owner/notice/notice.h"

namespace modelet::agent {

// EC2, instance metadata version 2: spot/instance-action. Comes two minutes before the machine goes.
std::unique_ptr<NoticeSource> make_aws_notices(const NoticeOptions& options);
// Compute Engine: instance/preempted. Comes half a minute before the machine goes.
std::unique_ptr<NoticeSource> make_gcp_notices(const NoticeOptions& options);
// Azure: scheduled events that end or restart this machine.
std::unique_ptr<NoticeSource> make_azure_notices(const NoticeOptions& options);

}  // namespace modelet::agent
