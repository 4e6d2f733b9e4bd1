// Network: the machines, and what the wires between them do to messages. Machine 0 is the scheduler's.
//
// Control connections behave as ZeroMQ over TCP does. Messages arrive complete and in order as long as the
// connection lives. When it ends, all messages under way are lost, and each side learns of the end at its own
// time. A blocked direction holds messages back. A client that connects again is a new peer to the scheduler.
//
// Messages of ranks and of holders are carried one by one over the same wires (carry, call).
//
// Every message has a number. An Intervention does something to one message; the enumerations (simulate.cc)
// try it on each in turn.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "comm/control/control.h"
#include "tests/simulation/world.h"

namespace modelet::simulation {

namespace msg = comm::control;

enum class Deed : uint8_t { kNone, kDrop, kDouble, kDelay, kKillSender, kKillReceiver };
struct Intervention {
  uint64_t message = 0;  // its number, from 1; 0: no message
  Deed deed = Deed::kNone;
};

class Network;

// A process that the network can reach.
class Host : public Process {
 public:
  Host(World& world, int machine) : Process(world), machine_(machine) {}
  int machine() const { return machine_; }
  virtual void kill() = 0;  // its supervisor starts it again later

 private:
  int machine_;
};

// The client's end of a control connection. It connects again by itself.
class ControlEnd : public Host {
 public:
  using Host::Host;
  virtual void received(const msg::FromSchedulerMessage& message) = 0;
  virtual void connected() = 0;  // messages sent before may be lost
};
// The scheduler's end of the control connections.
class ControlServer : public Host {
 public:
  using Host::Host;
  virtual void received(const std::string& peer, const msg::ToSchedulerMessage& message) = 0;
};

class Network {
 public:
  explicit Network(World& world) : world_(world) {}

  // ---- control connections
  void serve(ControlServer& server) { server_ = &server; }
  void connect(ControlEnd& client);  // and connects again whenever the connection is lost
  bool send(ControlEnd& client, msg::ToSchedulerMessage message);  // false: there is no connection now
  bool send(const std::string& peer, msg::FromSchedulerMessage message);  // false: the peer is gone
  void reset(ControlEnd& client);
  void half_open(ControlEnd& client, double client_notices, double server_notices);
  void client_died(ControlEnd& client, bool silently);
  void server_died();

  // Tries again until `arrive` returns true, or until `wanted` (asked at the sender) returns false. `broken`:
  // told, at the sender, that the message was lost with its connection; then it is not tried again. Without
  // it, nothing gets lost.
  void carry(Host& from, Host& to, std::function<bool()> wanted, std::function<bool()> arrive,
             std::function<void()> broken = {});
  // Asks a question and gets its answer. `done(false)` if the question or its answer is lost, or if `answer`
  // returns false.
  void call(Host& from, Host& to, std::function<bool()> answer, std::function<void(bool)> done);

  // ---- faults
  void block(int from, int to, double seconds);
  // Without it, each message takes 0.5 to 10 ms.
  void set_round_trip(double seconds) { one_way_ = {seconds / 2, seconds / 2}; }
  void slow(int machine, double delay, double seconds) { slow_[machine] = {world_.now() + seconds, delay}; }
  void double_messages(double share, double seconds) { doubling_ = {world_.now() + seconds, share}; }
  void heal();

  void intervene(const Intervention& what) { intervention_ = what; }
  uint64_t messages() const { return messages_; }

 private:
  struct Connection {
    std::string peer;
    ControlEnd* client = nullptr;
    bool client_open = true, server_open = true, dead = false;
    template <class Message>
    struct Queue {
      std::deque<std::pair<double, std::shared_ptr<const Message>>> items;
      double last = 0;
      bool pumping = false;
    };
    Queue<msg::ToSchedulerMessage> up;
    Queue<msg::FromSchedulerMessage> down;
  };
  using Link = std::shared_ptr<Connection>;

  template <class Message>
  void queue(const Link& link, Connection::Queue<Message>& queue, Message message);
  template <class Message>
  void pump(const Link& link, Connection::Queue<Message>& queue);
  void deliver(const Link& link, const std::shared_ptr<const msg::ToSchedulerMessage>& message, Deed deed);
  void deliver(const Link& link, const std::shared_ptr<const msg::FromSchedulerMessage>& message, Deed deed);
  void try_to_connect(ControlEnd& client);
  void client_notices(const Link& link);
  double delay(int from, int to);
  double blocked_until(int from, int to) const;
  void give_back(Host& from, Host& to, bool good, const std::function<void(double, bool)>& finish);
  Deed next_deed(bool counts);
  bool is_doubled();

  World& world_;
  ControlServer* server_ = nullptr;
  uint64_t connections_ = 0, messages_ = 0;
  Intervention intervention_;
  std::map<int, Link> links_;  // by the client's machine
  std::map<std::string, Link> peers_;
  std::map<std::pair<int, int>, double> blocked_;
  std::pair<double, double> one_way_{0.0005, 0.01};  // seconds, from and to
  std::map<int, std::pair<double, double>> slow_;  // until, delay
  std::pair<double, double> doubling_{0, 0};       // until, share
};

std::string describe(const msg::ToSchedulerMessage& message);
std::string describe(const msg::FromSchedulerMessage& message);

}  // namespace modelet::simulation
