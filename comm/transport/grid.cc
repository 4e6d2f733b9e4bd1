#include "comm/transport/grid.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "base/error.h"

namespace modelet::comm {
namespace {

// One row or column. Frames that the other line received for it wait here.
struct Line {
  std::vector<int> ranks;  // their ranks in the whole, by rank in the line
  std::deque<Frame> waiting;
  size_t waiting_bytes = 0;
  Transport::ConnectionHandler handler;

  int rank_of(int rank_of_whole) const {
    return static_cast<int>(std::ranges::find(ranks, rank_of_whole) - ranks.begin());
  }
};

struct Crossing {
  Crossing(Transport& transport, int rows, const GridOptions& how) : whole(transport), options(how) {
    MODELET_CHECK(rows > 0 && whole.size() % rows == 0, "the ranks make no such grid");
    columns = whole.size() / rows;
    for (int i = 0; i < columns; ++i) row.ranks.push_back(own_row() * columns + i);
    for (int i = 0; i < rows; ++i) column.ranks.push_back(i * columns + own_column());
    former_handler = whole.when_connections_change([this](int rank, Transport::Connection what) {
      const Line* const line = line_of(rank);
      if (line != nullptr && line->handler) line->handler(line->rank_of(rank), what);
    });
  }
  Crossing(const Crossing&) = delete;
  Crossing& operator=(const Crossing&) = delete;
  ~Crossing() { whole.when_connections_change(std::move(former_handler)); }

  int own_row() const { return whole.rank() / columns; }
  int own_column() const { return whole.rank() % columns; }

  // The line that a rank belongs to; null for a rank in neither, whose messages are a stranger's.
  Line* line_of(int rank) {
    if (rank / columns == own_row()) return &row;
    if (rank % columns == own_column()) return &column;
    return nullptr;
  }

  Transport& whole;
  const GridOptions options;
  int columns = 1;
  Line row, column;
  Transport::ConnectionHandler former_handler;
  uint64_t strangers = 0;
};

class LineTransport final : public Transport {
 public:
  LineTransport(std::shared_ptr<Crossing> crossing, Line& line, int rank)
      : crossing_(std::move(crossing)), line_(line), rank_(rank) {}
  LineTransport(const LineTransport&) = delete;
  LineTransport& operator=(const LineTransport&) = delete;
  ~LineTransport() override { line_.handler = {}; }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(line_.ranks.size()); }

  void send(std::span<const int> to, const RecycledPtr<Message>& message) override {
    for (const int rank : to) {
      try {
        crossing_->whole.send(std::span(&line_.ranks[static_cast<size_t>(rank)], 1), message);
      } catch (const PeerError& error) {
        throw PeerError(rank, error.what());
      }
    }
  }

  bool receive(double timeout_seconds, Frame& frame) override {
    if (!line_.waiting.empty()) {
      frame = std::move(line_.waiting.front());
      line_.waiting.pop_front();
      line_.waiting_bytes -= frame.bytes();
      return true;
    }
    const Clock& clock = *crossing_->options.clock;
    const double deadline = clock.now() + timeout_seconds;
    while (crossing_->whole.receive(deadline - clock.now(), frame)) {
      Line* const line = crossing_->line_of(frame.from);
      if (line == nullptr) {
        ++crossing_->strangers;
        continue;
      }
      frame.from = line->rank_of(frame.from);
      if (line == &line_) return true;
      line->waiting_bytes += frame.bytes();
      if (line->waiting.size() >= crossing_->options.waiting_messages ||
          line->waiting_bytes > crossing_->options.waiting_bytes)
        throw PeerError(frame.from,
                        fmt::format("a peer is too far ahead: {} messages of {} bytes wait unread",
                                    line->waiting.size() + 1, line->waiting_bytes));
      line->waiting.push_back(std::move(frame));
    }
    return false;
  }

  void interrupt(const std::string& reason) override { crossing_->whole.interrupt(reason); }
  ConnectionHandler when_connections_change(ConnectionHandler handler) override {
    return std::exchange(line_.handler, std::move(handler));
  }
  uint64_t dropped_messages() const override {
    return crossing_->whole.dropped_messages() + crossing_->strangers;
  }

 private:
  const std::shared_ptr<Crossing> crossing_;
  Line& line_;
  const int rank_;
};

}  // namespace

GridTransports make_grid_transports(Transport& whole, int rows, const GridOptions& options) {
  const auto crossing = std::make_shared<Crossing>(whole, rows, options);
  return {std::make_unique<LineTransport>(crossing, crossing->row, crossing->own_column()),
          std::make_unique<LineTransport>(crossing, crossing->column, crossing->own_row())};
}

}  // namespace modelet::comm
