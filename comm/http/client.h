// HTTP/1.1 requests without encryption to a numeric address, for services of this machine.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace modelet::comm::http {

struct ClientRequest {
  std::string method = "GET", path;
  std::vector<std::pair<std::string, std::string>> headers;
};

struct ClientResponse {
  unsigned status = 0;
  std::string body;
};

// `address`: "http://HOST:PORT" or "http://HOST", with an IPv6 HOST in brackets. The whole exchange may take
// `timeout_seconds`, and a response has at most 64 KiB. `check` is called several times a second while the
// response is awaited; it may throw, which ends the request. Throws Error, which names the address, if the
// request fails, and UsageError if this is no address.
ClientResponse send_request(const std::string& address, const ClientRequest& request, double timeout_seconds,
                            const std::function<void()>& check = {});

// Throws UsageError if this is no address.
void check_address(const std::string& address);

}  // namespace modelet::comm::http
