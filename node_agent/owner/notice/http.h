// HTTP/1.1 requests without encryption to a numeric address, for services of this machine.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace modelet::agent {

struct HttpQuestion {
  std::string method = "GET", path;
  std::vector<std::pair<std::string, std::string>> headers;
};

struct HttpAnswer {
  unsigned status = 0;
  std::string body;
};

// `address`: "http://HOST:PORT" or "http://HOST", with an IPv6 HOST in brackets. The whole exchange may
// take `timeout_seconds`, and an answer has at most 64 KiB. Throws Error, which names the address, if it
// fails. Throws UsageError if this is no address.
// `check` is as in NoticeOptions.
HttpAnswer ask_http(const std::string& address, const HttpQuestion& question, double timeout_seconds,
                    const std::function<void()>& check = {});

// Throws UsageError if this is no address.
void check_http_address(const std::string& address);

}  // namespace modelet::agent
