// modelet-scheduler: the meeting point of a pool's agents and clients.
#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/system/clock.h"
#include "base/system/file.h"
#include "base/system/log.h"
#include "base/system/process.h"
#include "base/system/program.h"
#include "base/system/service_notice.h"
#include "comm/http/router.h"
#include "comm/http/server.h"
#include "comm/http/token.h"
#include "scheduler/dashboard/dashboard.h"
#include "scheduler/ledger/ledger.h"
#include "scheduler/server/served_pool.h"
#include "scheduler/server/server.h"

namespace {

constexpr const char* kExamples = R"(Examples:
  modelet-scheduler --insecure                        on a machine whose users are all trusted, port 5570
  modelet-scheduler --config scheduler.toml           a file with the options above, '_' for '-'
  modelet-scheduler --insecure --state scheduler      keeps its runs in the folder 'scheduler': started again, it
                                                      goes on with them
  modelet keygen scheduler.key                        makes a key, once; prints the public key
  modelet-scheduler --listen tcp://192.168.1.5:5570 --key scheduler.key --allow-list allowed
                                                      for other machines: those with a key in 'allowed', a file of
                                                      lines 'agent|user|admin KEY NAME', read again
                                                      whenever it changes
  modelet-scheduler --insecure --http 127.0.0.1:5571  with a page that shows the pool: open http://127.0.0.1:5571
Ctrl-C or SIGTERM ends it; without --state agents abort their runs after --dead-after-seconds; their last
checkpoints continue them.
Exit codes: 0 asked to end (Ctrl-C, SIGTERM), 1 failed while running, 2 bad arguments or configuration file.)";

// Makes a folder that only the scheduler's owner may read: it has users' experiments and data.
void make_state_folder(const std::filesystem::path& folder) {
  std::error_code failure;
  std::filesystem::create_directories(folder, failure);
  const auto status = failure ? std::filesystem::file_status() : std::filesystem::status(folder, failure);
  if (failure)
    throw modelet::Error(folder.string() + ": " + failure.message() + " (making the folder of --state)");
  using std::filesystem::perms;
  if ((status.permissions() & (perms::group_all | perms::others_all)) != perms::none)
    throw modelet::UsageError(folder.string() +
                              ": others may enter this folder, which will have users' data: "
                              "chmod 700 it, or give --state another one");
}

// Has the port for data of the former scheduler. Agents that a restarted scheduler has not heard from yet
// look for its data there.
constexpr const char* kPortFile = "data_port";
constexpr size_t kMostLogBytes = 256 << 10;  // of one answer
constexpr uint64_t kShareOfMemory = 8;       // of the process that submissions and events of runs may take

// Returns 0 if no port is known.
uint16_t read_port(const std::filesystem::path& file) {
  if (!std::filesystem::exists(file)) return 0;
  unsigned port = 0;
  const std::string text = modelet::read_text_file(file);
  std::from_chars(text.data(), text.data() + text.size(), port);
  return port <= UINT16_MAX ? static_cast<uint16_t>(port) : uint16_t{0};
}

void write_line(const std::filesystem::path& path, const std::string& text) {
  modelet::AtomicFile file(path);
  file.write(text + "\n");
  file.commit();
}

// The page of the pool, and what serves it.
class Page {
 public:
  Page(modelet::scheduler::ServedPool& pool, std::vector<modelet::comm::http::Token> tokens,
       const modelet::comm::http::ServerOptions& options)
      : router_(std::move(tokens)), dashboard_(pool, router_), server_(router_, options) {
    modelet::log_info("the page of the pool is at {}", server_.endpoint());
  }
  ~Page() { server_.stop(); }

 private:
  modelet::comm::http::Router router_;
  modelet::scheduler::Dashboard dashboard_;
  modelet::comm::http::Server server_;
};

// Throws UsageError if others could see or do there what they may not.
std::vector<modelet::comm::http::Token> page_tokens(const modelet::comm::http::ServerOptions& page,
                                                    const std::string& file, bool pool_has_keys) {
  std::vector<modelet::comm::http::Token> tokens;
  if (!file.empty()) tokens = modelet::comm::http::read_tokens_file(file);
  if (tokens.empty() && pool_has_keys)
    throw modelet::UsageError(
        "--http " + page.listen +
        ": this pool has keys, but without tokens all users of this machine could stop its runs and read their logs: "
        "give --http-tokens FILE");
  modelet::comm::http::check_listening(page, !tokens.empty());
  return tokens;
}

uint64_t new_pool_id() {
  std::random_device random;
  return (uint64_t{random()} << 32) | random();
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("The scheduler of a pool: keeps track of agents and runs, and places runs on agents.",
               "modelet-scheduler");
  app.footer(kExamples);
  modelet::scheduler::ServerOptions options;
  modelet::comm::DataServerOptions data;
  uint64_t store_mib = data.store_bytes >> 20, memory_mib = 8192, store_mib_per_key = 0;
  std::string endpoint_file, key, allow_list, state, tokens_file;
  // Few people look at a pool. Each has a handful of connections.
  modelet::comm::http::ServerOptions page{.listen = "",
                                          .listen_option = "--http",
                                          .token_option = "--http-tokens",
                                          .threads = 2,
                                          .connections = 128,
                                          .body_bytes = 4096,
                                          .grace_seconds = 1};
  int parent = 0;
  app.add_option("--listen", options.listen, "address for agents and clients; port '*' takes a free one")
      ->capture_default_str();
  app.add_option("--key", key,
                 "file of this scheduler's key, made by 'modelet keygen'; connections are encrypted");
  app.add_option("--allow-list", allow_list, "file of the keys of agents and users that may connect");
  app.add_flag("--insecure", options.insecure,
               "listen without keys: all who reach the address are trusted with the pool")
      ->envname("MODELET_INSECURE");
  app.add_option("--heartbeat-seconds", options.core.heartbeat, "time between two heartbeats of an agent")
      ->capture_default_str()
      ->check(modelet::number_between(0.05, 60.0));
  app.add_option("--dead-after-seconds", options.core.dead_after,
                 "silence after which an agent counts as dead")
      ->capture_default_str()
      ->check(modelet::number_between(0.2, 3600.0));
  app.add_option("--stop-grace-seconds", options.core.stop_grace,
                 "time that a run may take to stop before it is aborted")
      ->capture_default_str()
      ->check(modelet::number_between(0.1, 86400.0));
  app.add_option(
         "--replan-after-seconds", options.core.replan_after,
         "time for which a node must compute notably longer than the others (or, alone, than planned) "
         "before its run is planned anew")
      ->capture_default_str()
      ->check(modelet::number_between(0.0, 86400.0));
  app.add_option("--most-replans", options.core.most_replans, "how often a run may be planned anew; 0: never")
      ->capture_default_str();
  app.add_option("--names-per-key", options.core.max_names,
                 "how many names of nodes may be registered with one key")
      ->capture_default_str()
      ->check(CLI::Range(1u, 1024u));
  app.add_option("--runs-per-key", options.core.max_of_key.runs,
                 "how many runs of one key may wait or work at the same time")
      ->capture_default_str()
      ->check(CLI::Range(1u, 1000u));
  app.add_option("--state", state,
                 "folder for what outlives this process: a scheduler that is started with it again knows its "
                 "runs, and goes on; without it all runs end with the scheduler");
  app.add_option(
      "--store", data.store,
      "folder for the data and the checkpoints of runs, which the scheduler sends to whoever needs them "
      "(default: 'store' in that of --state); without it every agent must be able to read the data at its path");
  app.add_option("--store-mib", store_mib,
                 "limit of that folder; the least recently used data is removed first")
      ->capture_default_str()
      ->check(CLI::Range(1u, 1u << 30));
  app.add_option("--store-mib-per-key", store_mib_per_key,
                 "share of --store-mib for the data of one key; 0: half")
      ->capture_default_str()
      ->check(CLI::Range(0u, 1u << 30));
  app.add_option("--data-port", options.data_port, "port for data; 0: a free one")
      ->capture_default_str()
      ->check(CLI::Range(0u, 65535u));
  app.add_option("--http", page.listen,
                 "ADDRESS:PORT of a page that shows the pool, its JSON, and metrics for Prometheus");
  app.add_option(
      "--http-tokens", tokens_file,
      "file of lines 'viewer TOKEN NAME' (may look) or 'admin TOKEN NAME' (may drain and stop, too): who may "
      "use --http; needed in a pool with keys, and beyond this machine");
  app.add_option("--memory-mib", memory_mib, "limit of the address space of this process")
      ->capture_default_str()
      ->check(CLI::Range(1024u, 1u << 30));
  app.add_option("--endpoint-file", endpoint_file, "write the address listened on to this file");
  app.add_option("--exit-with-parent", parent, "process id of the parent: end when it ends")
      ->configurable(false);

  return modelet::run_program(app, argc, argv, [&] {
    ::umask(0077);  // only the scheduler's owner may read users' data
    modelet::start_logging("scheduler");
    modelet::exit_with_parent(parent);
    constexpr uint64_t kFiles = 100;  // sockets, the ledger, some data and a few agents
    modelet::require_descriptors(kFiles + (page.listen.empty() ? 0 : page.connections), "a scheduler");
    modelet::limit_address_space(memory_mib << 20);
    if (options.core.dead_after < 2 * options.core.heartbeat)
      throw modelet::UsageError("dead-after-seconds must be at least twice heartbeat-seconds");
    if (key.empty() != allow_list.empty())
      throw modelet::UsageError(
          "--key (this scheduler's key) and --allow-list (who may connect) must be given together");
    if (!key.empty()) options.keys = {modelet::comm::read_key_file(key), allow_list};
    data.store_bytes = store_mib << 20;
    data.key_bytes = store_mib_per_key << 20;
    std::optional<modelet::scheduler::Ledger> ledger;
    if (!state.empty()) {
      const std::filesystem::path folder(state);
      make_state_folder(folder);
      ledger.emplace(folder / "ledger.sqlite");
      options.restored = ledger->read((memory_mib << 20) / kShareOfMemory);
      if (const uint64_t unread = options.restored.unread_runs; unread > 0)
        modelet::log_warning(
            "{}: its runs are too many bytes for --memory-mib {}: the oldest {} that have ended are left in the file "
            "and not shown",
            (folder / "ledger.sqlite").string(), memory_mib, unread);
      options.persist = [&ledger](const modelet::scheduler::Records& records) { ledger->write(records); };
      options.read_log = [&ledger](uint64_t run, const std::string& node, uint64_t after) {
        return ledger->read_log(run, node, after, kMostLogBytes);
      };
      options.nodes_with_log = [&ledger](uint64_t run) { return ledger->nodes_with_log(run); };
      options.former_data_port = read_port(folder / kPortFile);
      if (data.store.empty()) data.store = folder / "store";
    }
    if (!data.store.empty()) options.data = data;
    options.core.max_bytes = (memory_mib << 20) / kShareOfMemory;
    options.core.max_of_key.bytes = std::min(options.core.max_of_key.bytes, options.core.max_bytes / 4);
    options.core.pool = new_pool_id();
    options.core.utc = [] { return modelet::utc_text(std::chrono::system_clock::now()); };
    std::vector<modelet::comm::http::Token> tokens;
    std::optional<modelet::scheduler::ServedPool> shown;
    if (!page.listen.empty()) {
      tokens = page_tokens(page, tokens_file, options.keys.has_value());
      shown.emplace(!state.empty(), data.store, data.store_bytes);
      options.observe = [&shown](const modelet::scheduler::Core& core) { shown->observe(core); };
    } else if (!tokens_file.empty()) {
      throw modelet::UsageError("--http-tokens is for --http ADDRESS:PORT, which is missing");
    }
    modelet::scheduler::Server server(options);
    const modelet::StopSignals signals([&server] { server.request_stop(); });
    if (!state.empty() && server.data_port() != options.former_data_port)
      write_line(std::filesystem::path(state) / kPortFile, std::to_string(server.data_port()));
    modelet::ServiceNotice notice;
    modelet::log_info("listening on {}", server.endpoint());
    if (!endpoint_file.empty()) write_line(endpoint_file, server.endpoint());
    std::optional<Page> served;
    if (shown) {
      shown->show(server);
      served.emplace(*shown, std::move(tokens), page);
    }
    notice.ready();
    notice.status("listens at " + server.endpoint());
    server.run();
    notice.stopping();
    modelet::log_info("stopped");
  });
}
