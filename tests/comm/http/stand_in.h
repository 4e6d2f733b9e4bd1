// Stands in for an HTTP server: sends what a test says, by the first line of the request, and keeps the requests.
#pragma once

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <thread>

namespace modelet::test {

class StandIn {
 public:
  StandIn() {
    listener_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (::bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 || ::listen(listener_, 8) != 0 ||
        ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0)
      std::abort();
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  ~StandIn() {
    ends_ = true;
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    ::close(listener_);
  }

  std::string address() const { return "http://127.0.0.1:" + std::to_string(port_); }
  // Sets the response to requests that begin with `line`. The text is sent as it is.
  void respond(const std::string& line, const std::string& text) {
    const std::lock_guard lock(mutex_);
    responses_[line] = text;
  }
  void reply(const std::string& line, const std::string& body, const std::string& status = "200 OK") {
    respond(line,
            "HTTP/1.1 " + status + "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  }
  std::string received() {
    const std::lock_guard lock(mutex_);
    return received_;
  }

 private:
  void serve() {
    while (!ends_) {
      const int peer = ::accept(listener_, nullptr, nullptr);
      if (peer < 0) continue;
      std::string request;
      for (char c = 0; !request.ends_with("\r\n\r\n") && ::recv(peer, &c, 1, 0) == 1;) request += c;
      std::string text;
      {
        const std::lock_guard lock(mutex_);
        received_ += request;
        for (const auto& [line, response] : responses_)
          if (request.starts_with(line)) text = response;
      }
      // If a text ends in "...", the server sends no end.
      const bool hangs = text.ends_with("...");
      ::send(peer, text.data(), text.size(), MSG_NOSIGNAL);
      char c = 0;
      if (hangs)
        while (::recv(peer, &c, 1, 0) > 0) continue;
      ::close(peer);
    }
  }

  int listener_ = -1;
  uint16_t port_ = 0;
  std::atomic<bool> ends_{false};
  std::mutex mutex_;
  std::map<std::string, std::string> responses_;
  std::string received_;
  std::thread thread_;
};

}  // namespace modelet::test
