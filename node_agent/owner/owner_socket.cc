#include "node_agent/owner/owner_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/system/clock.h"
#include "base/system/descriptor.h"
#include "base/system/log.h"
#include "base/text/printable.h"
#include "base/text/strict_json.h"

namespace modelet::agent {
namespace {

namespace fs = std::filesystem;

constexpr double kRequestSeconds = 2;    // time for a peer's request, and for reading the answer
constexpr double kResponseSeconds = 30;  // an agent on a busy machine may be slow
constexpr size_t kMostRequest = 256;     // bytes
constexpr size_t kMostResponse = 1 << 16;

// The address of a socket in a folder that is open as `folder`. The path of a socket must be short; through
// the descriptor the folder's path may be long.
sockaddr_un address_in(int folder, const fs::path& name) {
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  const std::string path = "/proc/self/fd/" + std::to_string(folder) + "/" + name.string();
  if (path.size() >= sizeof address.sun_path)
    throw UsageError(name.string() + ": too long for the name of a socket");
  std::copy(path.begin(), path.end(), address.sun_path);
  return address;
}

int unix_socket() {
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) throw Error(errno_text("a socket for the owner"));
  return fd;
}

int open_folder(const fs::path& path) {
  const int fd = ::open(path.parent_path().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) throw UsageError(errno_text(path.parent_path().string()) + " (the folder of --work-dir)");
  return fd;
}

// Connects to the agent that listens there; -1 if there is none. Throws if there may be one.
int try_connect(const fs::path& path) {
  const Descriptor folder(open_folder(path));
  const sockaddr_un address = address_in(folder.get(), path.filename());
  Descriptor fd(unix_socket());
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0)
    return fd.release();
  switch (errno) {
    case ENOENT:
    case ECONNREFUSED:  // a file that nobody listens at
      return -1;
    case EACCES:
      throw Error(
          errno_text(path.string()) +
          ": an agent of another user has made it; only that user and root may ask it (sudo -u USER)");
    case EAGAIN:
      throw Error(path.string() + ": the agent is stopped, or busy with other requests: try again");
    default:
      throw Error(errno_text(path.string()));
  }
}

bool is_ready(int fd, short what, double seconds) {
  pollfd one{fd, what, 0};
  return ::poll(&one, 1, static_cast<int>(std::max(0.0, seconds) * 1000)) > 0;
}

// Reads up to the end of the line. Returns nothing if the line does not come in time or is too long.
std::optional<std::string> read_line(int fd, size_t most, double seconds) {
  std::string text;
  for (const Stopwatch watch; is_ready(fd, POLLIN, seconds - watch.seconds());) {
    std::array<char, 4096> piece{};
    const ssize_t count = ::recv(fd, piece.data(), piece.size(), 0);
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count <= 0) return std::nullopt;
    text.append(piece.data(), static_cast<size_t>(count));
    if (const size_t end = text.find('\n'); end != std::string::npos && end <= most)
      return text.substr(0, end);
    if (text.size() > most) return std::nullopt;
  }
  return std::nullopt;
}

bool write_line(int fd, const std::string& text, double seconds) {
  const std::string line = text + '\n';
  size_t sent = 0;
  for (const Stopwatch watch; sent < line.size() && is_ready(fd, POLLOUT, seconds - watch.seconds());) {
    const ssize_t count = ::send(fd, line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
    if (count > 0) sent += static_cast<size_t>(count);
    if (count < 0 && errno != EINTR && errno != EAGAIN) return false;
  }
  return sent == line.size();
}

bool comes_from_owner(int fd) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && is_owner(peer.uid, ::geteuid());
}

nlohmann::json failure(const std::string& why) { return {{"error", why}}; }

}  // namespace

fs::path owner_socket_path(const fs::path& work_dir, const std::string& name) {
  constexpr size_t kMostName = 48;  // bytes; the rest of a socket's address is for its folder
  std::string safe;
  for (const char c : name) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-';
    safe += plain ? c : '_';
  }
  return work_dir / ("agent-" + safe.substr(0, kMostName) + ".sock");
}

bool is_owner(unsigned peer, unsigned self) { return peer == self || peer == 0; }

OwnerSocket::OwnerSocket(fs::path path, Handler handler)
    : path_(std::move(path)), handler_(std::move(handler)) {
  const Descriptor folder(open_folder(path_));
  if (const Descriptor other(try_connect(path_)); other.get() >= 0)
    throw UsageError(path_.string() +
                     ": another agent of this name works in this work-dir; give one of them another --name");
  std::error_code ignored;
  if (fs::is_socket(fs::symlink_status(path_, ignored))) fs::remove(path_, ignored);
  const sockaddr_un address = address_in(folder.get(), path_.filename());
  Descriptor fd(unix_socket());
  // Nobody can connect before listen(), and by then the socket is closed to other users.
  constexpr int kWaiting = 8;
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::chmod(address.sun_path, 0600) != 0 || ::listen(fd.get(), kWaiting) != 0)
    throw Error(errno_text(path_.string()));
  listener_ = fd.release();
  thread_ = std::thread([this] { serve(); });
}

OwnerSocket::~OwnerSocket() {
  stop_.set();
  thread_.join();
  ::close(listener_);
  std::error_code ignored;
  fs::remove(path_, ignored);
}

void OwnerSocket::serve() {
  while (!stop_.is_set()) {
    std::array<pollfd, 2> both{pollfd{listener_, POLLIN, 0}, pollfd{stop_.fd(), POLLIN, 0}};
    ::poll(both.data(), both.size(), -1);
    if (both[0].revents == 0) continue;
    const Descriptor peer(::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (peer.get() >= 0) {
      serve_one(peer.get());
    } else if (errno == EMFILE || errno == ENFILE) {
      ::poll(&both[1], 1, 1000);  // no descriptor is free; try again later
    }
  }
}

void OwnerSocket::serve_one(int peer) const {
  nlohmann::json response;
  if (!comes_from_owner(peer)) {
    response = failure("only the user that this agent runs as may ask it");
  } else if (const auto request = read_line(peer, kMostRequest, kRequestSeconds); !request) {
    response = failure("this is no request: one line of at most 256 bytes");
  } else {
    try {
      response = handler_(*request);
    } catch (const std::exception& error) {
      response = failure(error.what());
    }
  }
  // Error messages may quote the request, which need not be UTF-8.
  write_line(peer, response.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace), kRequestSeconds);
}

nlohmann::json ask_agent(const fs::path& path, const std::string& request) {
  const Descriptor fd(try_connect(path));
  if (fd.get() < 0)
    throw Error(
        path.string() +
        ": no agent listens here; --work-dir and --name, or --config, must be those of the agent (that of a systemd "
        "unit with a StateDirectory has its folder there), and it must not be --dedicated");
  std::optional<std::string> line;
  if (write_line(fd.get(), request, kResponseSeconds))
    line = read_line(fd.get(), kMostResponse, kResponseSeconds);
  if (!line) throw Error(path.string() + ": the agent does not answer");
  std::optional<nlohmann::json> response = parse_json_object(*line);
  if (!response) throw Error(path.string() + ": what answers here is no agent");
  if (response->contains("error"))
    throw Error("the agent says: " + printable((*response)["error"].dump(), kMostRequest));
  return *std::move(response);
}

}  // namespace modelet::agent
