#include "comm/collectives/group.h"

#include <utility>

#include "base/error.h"
#include "base/system/log.h"
#include "comm/collectives/dissemination.h"
#include "comm/collectives/reductions.h"
#include "comm/messaging/messenger.h"
#include "comm/transport/grid.h"
#include "comm/transport/inproc.h"

namespace modelet::comm {

namespace {

// For what a rank does only for its peers.
template <class Work>
void if_possible(const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    log_info("does not wait until all peers have ended: {}", error.what());
  }
}

}  // namespace

struct Group::Impl {
  Impl(std::unique_ptr<Transport> transport, GroupOptions options, std::shared_ptr<Interruption> interruption)
      : messenger(std::move(transport), std::move(options), std::move(interruption)),
        nothing(messenger.count()) {}

  Messenger messenger;
  Dissemination dissemination{messenger};
  Reductions reductions{messenger, dissemination};
  const std::vector<std::vector<InBlock>> nothing;  // where a barrier's messages go: they have no blocks

  void send_all(Tag tag, std::span<const OutBlock> mine) {
    messenger.begin_send(tag, "all-gather");
    messenger.send_to_all(mine);
  }
  void send_each(Tag tag, std::span<const std::vector<OutBlock>> to) {
    MODELET_CHECK(to.size() == messenger.count());
    messenger.begin_send(tag, "all-to-all");
    for (const int& rank : messenger.others()) {
      messenger.pack(to[static_cast<size_t>(rank)]);
      messenger.post(std::span(&rank, 1));
    }
  }
  void collect(Tag tag, const char* operation, std::span<const std::vector<InBlock>> from,
               double patience = 1) {
    MODELET_CHECK(from.size() == messenger.count());
    messenger.begin_collect(tag, operation);
    messenger.collect(from, patience);
  }
};

Group::Group(std::unique_ptr<Transport> transport, GroupOptions options)
    : Group(std::make_unique<Impl>(std::move(transport), std::move(options),
                                   std::make_shared<Interruption>())) {}
Group::Group(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Group::~Group() = default;

int Group::rank() const { return impl_->messenger.rank(); }
int Group::size() const { return impl_->messenger.size(); }
std::string Group::node_name(int rank) const { return impl_->messenger.node_name(rank); }

void Group::send_all(Tag tag, std::span<const OutBlock> mine, std::span<const InBlock> as_received) {
  impl_->send_all(tag, mine);
  const Outgoing& sent = impl_->messenger.packed();
  if (!as_received.empty()) impl_->messenger.decode(rank(), sent.blocks(), sent.raw(), as_received);
}
void Group::send_each(Tag tag, std::span<const std::vector<OutBlock>> to) { impl_->send_each(tag, to); }
void Group::collect(Tag tag, std::span<const std::vector<InBlock>> from) {
  impl_->collect(tag, "exchange", from);
}

void Group::all_gather(Tag tag, std::span<const OutBlock> mine, std::span<const std::vector<InBlock>> theirs,
                       double patience) {
  impl_->send_all(tag, mine);
  impl_->collect(tag, "all-gather", theirs, patience);
}

void Group::all_to_all(Tag tag, std::span<const std::vector<OutBlock>> to,
                       std::span<const std::vector<InBlock>> from) {
  impl_->send_each(tag, to);
  impl_->collect(tag, "all-to-all", from);
}

void Group::all_reduce_sum(Tag tag, Matrix values, const Codec& codec, Rounding rounding) {
  impl_->messenger.begin_send(tag, "all-reduce");
  if (size() > 1) impl_->reductions.all_reduce_sum(values, codec, rounding);
}

void Group::reduce_scatter_sum(Tag tag, std::span<const OutBlock> shares, Matrix mine) {
  MODELET_CHECK(shares.size() == impl_->messenger.count());
  const ConstMatrix own = shares[impl_->messenger.own()].values;
  MODELET_CHECK(own.rows == mine.rows && own.cols == mine.cols);
  impl_->messenger.begin_send(tag, "reduce-scatter");
  impl_->reductions.reduce_scatter_sum(shares, mine);
}

void Group::barrier(Tag tag) {
  Messenger& messenger = impl_->messenger;
  messenger.begin_send(tag, "barrier");
  if (messenger.algorithm(Operation::kBarrier, 0) == Algorithm::kDissemination) {
    impl_->dissemination.run({});
    return;
  }
  messenger.send_to_all({});
  messenger.begin_collect();
  messenger.collect(impl_->nothing);
}

void Group::say_farewell(Tag tag) {
  if_possible([&] { impl_->messenger.say_farewell(tag); });
}
void Group::await_farewells(double patience) {
  if_possible([&] { impl_->messenger.await_farewells(patience); });
}

void Group::interrupt(const std::string& reason) { impl_->messenger.interrupt(reason); }
void Group::throw_if_interrupted() const { impl_->messenger.interruption()->throw_if_set(); }
const Meters& Group::meters() const { return impl_->messenger.meters(); }
const Clock& Group::clock() const { return *impl_->messenger.options().clock; }

Grid Group::grid(int rows) {
  Messenger& whole = impl_->messenger;
  const GroupOptions& options = whole.options();
  GridTransports transports = make_grid_transports(
      whole.transport(), rows, {options.max_waiting_messages, options.max_waiting_bytes, options.clock});
  const int columns = transports.row->size();
  // The group of a line, a row or column: the ranks first, first + distance, ...
  const auto line_group = [&](std::unique_ptr<Transport> transport, int first, int distance,
                              double patience) {
    GroupOptions of_line = options;
    of_line.timeout_seconds *= patience;
    of_line.missing_seconds *= patience;
    of_line.node_names.clear();
    if (options.on_missing)
      of_line.on_missing = [missing = options.on_missing, first, distance](int rank, const std::string& why) {
        missing(first + rank * distance, why);
      };
    if (options.on_found)
      of_line.on_found = [found = options.on_found, first, distance](int rank) {
        found(first + rank * distance);
      };
    for (int i = 0; i < transport->size() && !options.node_names.empty(); ++i)
      of_line.node_names.push_back(whole.node_name(first + i * distance));
    return std::unique_ptr<Group>(
        new Group(std::make_unique<Impl>(std::move(transport), std::move(of_line), whole.interruption())));
  };
  return {line_group(std::move(transports.row), rank() / columns * columns, 1, 1),
          line_group(std::move(transports.column), rank() % columns, columns, options.column_patience)};
}

std::unique_ptr<Group> make_solo_group() {
  return std::make_unique<Group>(std::move(make_inproc_transports(1)[0]), GroupOptions{});
}

std::vector<std::unique_ptr<Group>> make_inproc_groups(int size, GroupOptions options) {
  std::vector<std::unique_ptr<Group>> groups;
  for (auto& transport : make_inproc_transports(size))
    groups.push_back(std::make_unique<Group>(std::move(transport), options));
  return groups;
}

}  // namespace modelet::comm
