// Notices of clouds, which tell them to a machine over HTTP at a link-local address.
#pragma once

#include <memory>

#include "node_agent/owner/notice/notice.h"

namespace modelet::agent {

// EC2, instance metadata version 2: spot/instance-action, two minutes before.
std::unique_ptr<NoticeSource> make_aws_notices(const NoticeOptions& options);
// Compute Engine: instance/preempted, half a minute before.
std::unique_ptr<NoticeSource> make_gcp_notices(const NoticeOptions& options);
// Scheduled events of this machine that end or restart it.
std::unique_ptr<NoticeSource> make_azure_notices(const NoticeOptions& options);

}  // namespace modelet::agent
