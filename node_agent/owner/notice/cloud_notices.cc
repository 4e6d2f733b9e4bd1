#include "node_agent/owner/notice/cloud_notices.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/text/printable.h"
#include "base/text/strict_json.h"
#include "comm/http/client.h"

namespace modelet::agent {
namespace {

using comm::http::ClientResponse;
using nlohmann::json;

constexpr auto kMetadataAddress = "http://169.254.169.254";
constexpr unsigned kOk = 200, kUnauthorized = 401, kNotFound = 404;
constexpr double kMostSeconds = 3600;  // a notice for a later time will be read again

Error unexpected(const std::string& path, const ClientResponse& response) {
  return Error(
      fmt::format("{}: responded with {} '{}'", path, response.status, printable(response.body, 100)));
}

// Seconds from now until a time in UTC; 0 if it has passed.
double seconds_until(const std::string& time, const char* format, const NoticeOptions& options) {
  std::tm calendar{};
  const char* const end = ::strptime(time.c_str(), format, &calendar);
  if (end == nullptr || *end != '\0') throw Error("the notice has no time: '" + printable(time, 100) + "'");
  return std::clamp(static_cast<double>(::timegm(&calendar)) - options.utc(), 0.0, kMostSeconds);
}

json parse(const ClientResponse& response, const std::string& path) {
  std::optional<json> parsed = parse_json_object(response.body);
  if (response.status != kOk || !parsed) throw unexpected(path, response);
  return *std::move(parsed);
}

std::string text_of(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

class CloudNotices : public NoticeSource {
 protected:
  explicit CloudNotices(NoticeOptions options) : options_(std::move(options)) {
    if (options_.address.empty()) options_.address = kMetadataAddress;
    comm::http::check_address(options_.address);
  }
  ClientResponse request(const std::string& path, std::vector<std::pair<std::string, std::string>> headers,
                         const char* method = "GET") const {
    return comm::http::send_request(options_.address, {method, path, std::move(headers)},
                                    options_.timeout_seconds, options_.check);
  }

  NoticeOptions options_;
};

class AwsNotices final : public CloudNotices {
 public:
  explicit AwsNotices(const NoticeOptions& options) : CloudNotices(options) {}

  std::optional<Notice> ask() override {
    const std::string path = "/latest/meta-data/spot/instance-action";
    if (token_.empty()) renew_token();
    const ClientResponse response = request(path, {{"X-aws-ec2-metadata-token", token_}});
    if (response.status == kNotFound) return std::nullopt;
    if (response.status == kUnauthorized) token_.clear();  // the next request gets a new one
    const json notice = parse(response, path);
    return Notice{seconds_until(text_of(notice, "time"), "%Y-%m-%dT%H:%M:%SZ", options_),
                  "AWS takes this spot machine: " + printable(text_of(notice, "action"), 32)};
  }

 private:
  void renew_token() {
    const std::string path = "/latest/api/token";
    const ClientResponse response = request(path, {{"X-aws-ec2-metadata-token-ttl-seconds", "21600"}}, "PUT");
    const bool is_plain =
        std::all_of(response.body.begin(), response.body.end(), [](char c) { return c > ' ' && c < 127; });
    if (response.status != kOk || response.body.empty() || !is_plain) throw unexpected(path, response);
    token_ = response.body;
  }

  std::string token_;
};

class GcpNotices final : public CloudNotices {
 public:
  explicit GcpNotices(const NoticeOptions& options) : CloudNotices(options) {}

  std::optional<Notice> ask() override {
    constexpr double kNoticeSeconds = 25;  // what is left of 30 when the notice is seen
    const std::string path = "/computeMetadata/v1/instance/preempted";
    const ClientResponse response = request(path, {{"Metadata-Flavor", "Google"}});
    if (response.status == kOk && response.body.starts_with("FALSE")) return std::nullopt;
    if (response.status != kOk || !response.body.starts_with("TRUE")) throw unexpected(path, response);
    return Notice{kNoticeSeconds, "Google Cloud takes this spot machine"};
  }
};

class AzureNotices final : public CloudNotices {
 public:
  explicit AzureNotices(const NoticeOptions& options) : CloudNotices(options) {}

  // The response has the events of all machines of a group. Only those that name this machine count.
  std::optional<Notice> ask() override {
    const std::string path = "/metadata/scheduledevents?api-version=2020-07-01";
    if (machine_.empty()) learn_name();
    const json response = parse(request(path, headers_), path);
    const auto events = response.find("Events");
    if (events == response.end() || !events->is_array()) throw Error(path + ": the response has no Events");
    for (const json& event : *events) {
      const std::string type = text_of(event, "EventType");
      const bool ends_it = std::find(kEnds.begin(), kEnds.end(), type) != kEnds.end();
      if (!ends_it || !concerns_this(event)) continue;
      const std::string time = text_of(event, "NotBefore");  // empty: it has begun
      return Notice{time.empty() ? 0 : seconds_until(time, "%a, %d %b %Y %H:%M:%S GMT", options_),
                    "Azure takes this machine: " + type};
    }
    return std::nullopt;
  }

 private:
  void learn_name() {
    const std::string path = "/metadata/instance/compute/name?api-version=2021-02-01&format=text";
    const ClientResponse response = request(path, headers_);
    if (response.status != kOk || response.body.empty()) throw unexpected(path, response);
    machine_ = response.body;
  }
  bool concerns_this(const json& event) const {
    const auto machines = event.find("Resources");
    return machines != event.end() && machines->is_array() &&
           std::find(machines->begin(), machines->end(), json(machine_)) != machines->end();
  }

  static constexpr std::array<std::string_view, 4> kEnds = {"Preempt", "Terminate", "Reboot", "Redeploy"};
  const std::vector<std::pair<std::string, std::string>> headers_ = {{"Metadata", "true"}};
  std::string machine_;
};

}  // namespace

std::unique_ptr<NoticeSource> make_aws_notices(const NoticeOptions& options) {
  return std::make_unique<AwsNotices>(options);
}
std::unique_ptr<NoticeSource> make_gcp_notices(const NoticeOptions& options) {
  return std::make_unique<GcpNotices>(options);
}
std::unique_ptr<NoticeSource> make_azure_notices(const NoticeOptions& options) {
  return std::make_unique<AzureNotices>(options);
}

}  // namespace modelet::agent
