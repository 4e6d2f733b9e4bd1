// A question over HTTP/1.1, without encryption, to an address that is a number: for services of this machine.
#pragma once

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

// `address`: "http://HOST:PORT" or "http://HOST"; an IPv6 HOST in brackets. The whole exchange may take
// `timeout_seconds`, an answer has at most 64 KiB. Error with the address if that fails. UsageError if the
// address is none.
HttpAnswer ask_http(const std::string& address, const HttpQuestion& question, double timeout_seconds);

// UsageError if the address is none.
void check_http_address(const std::string& address);

}  // namespace modelet::agent
