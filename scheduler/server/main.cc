// modelet-scheduler: the meeting point of a pool's agents and clients.
#include <grp.h>
#include <pwd.h>
#include <spdlog/fmt/fmt.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <optional>
#include <random>
#include <string>
#include <thread>
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
#include "comm/security/invitation.h"
#include "comm/security/keys.h"
#include "comm/transport/endpoint.h"
#include "scheduler/access/invitations.h"
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
  modelet-scheduler --listen tcp://192.168.1.5:5570 --key scheduler.key --state scheduler
                                                      for other machines: those with a key in 'scheduler/allowed', a
                                                      file of lines 'agent|user|admin KEY NAME', read again
                                                      whenever it changes
  modelet-scheduler --insecure --http 127.0.0.1:5571  with a page that shows the pool: open http://127.0.0.1:5571
  modelet-scheduler invite --config scheduler.toml    prints one word, with which machines join: modelet-agent join WORD
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

void write_line(const std::filesystem::path& path, const std::string& text) {
  modelet::AtomicFile file(path);
  file.write(text + "\n");
  file.commit();
}

// Has the port for data of the former scheduler. Agents that a restarted scheduler has not heard from yet
// look for its data there.
constexpr const char* kPortFile = "data_port";
constexpr const char* kInvitations = "invitations";  // folder in that of --state
constexpr const char* kAllowed = "allowed";          // the allow-list, unless --allow-list names another one

// A file that root makes in the folder of another user could not be read by the scheduler, which is that user.
void become_owner_of(const std::filesystem::path& folder) {
  struct stat info {};
  if (::geteuid() != 0 || ::stat(folder.c_str(), &info) != 0 || info.st_uid == 0) return;
  const passwd* const user = ::getpwuid(info.st_uid);
  const bool has_groups =
      user != nullptr ? ::initgroups(user->pw_name, info.st_gid) == 0 : ::setgroups(0, nullptr) == 0;
  if (!has_groups || ::setgid(info.st_gid) != 0 || ::setuid(info.st_uid) != 0)
    throw modelet::Error(modelet::errno_text(folder.string()) +
                         " (becoming the owner of the folder of --state)");
}

// Somebody asks the scheduler, which alone has the ledger, for a copy of it, by the first of these files in the folder of
// --state. The scheduler writes the second one, and then removes the first.
constexpr const char* kCopyWanted = "copy-wanted";
constexpr const char* kCopy = "ledger-copy.sqlite";

// For the scheduler: gives the copy that was asked for.
void copy_if_wanted(const std::filesystem::path& state, modelet::scheduler::Ledger& ledger) {
  if (!std::filesystem::exists(state / kCopyWanted)) return;
  try {
    ledger.back_up(state / kCopy);
    modelet::log_info("a copy of the ledger was made");
  } catch (const modelet::Error& error) {  // the ledger itself is well
    modelet::log_error("{}", error.what());
  }
  std::error_code failure;
  std::filesystem::remove(state / kCopyWanted, failure);
}

// Of a scheduler that is at work, which answers within its tick.
void ask_for_copy(const std::filesystem::path& state, const std::filesystem::path& to) {
  constexpr double kPatience = 60;  // seconds
  std::error_code failure;
  std::filesystem::remove(state / kCopy, failure);
  write_line(state / kCopyWanted, "of ledger.sqlite");
  for (const modelet::Stopwatch watch; std::filesystem::exists(state / kCopyWanted);
       std::this_thread::sleep_for(std::chrono::milliseconds(100))) {
    if (watch.seconds() < kPatience) continue;
    std::filesystem::remove(state / kCopyWanted, failure);
    throw modelet::Error(fmt::format(
        "{}: another program uses the ledger, and gives no copy within {:.0f} s: is it a scheduler of this release?",
        state.string(), kPatience));
  }
  if (!std::filesystem::exists(state / kCopy))
    throw modelet::Error(state.string() + ": the scheduler could not copy its ledger; its log says why");
  std::filesystem::copy_file(state / kCopy, to);
  std::filesystem::remove(state / kCopy, failure);
}

// What root has made in `folder` is to be read by the scheduler, which is the user to whom `state` belongs.
void give_to_owner_of(const std::filesystem::path& state, const std::filesystem::path& folder) {
  struct stat info {};
  if (::geteuid() != 0 || ::stat(state.c_str(), &info) != 0 || info.st_uid == 0) return;
  std::vector<std::filesystem::path> made{folder};
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    made.push_back(entry.path());
  for (const std::filesystem::path& path : made)
    if (::lchown(path.c_str(), info.st_uid, info.st_gid) != 0)
      throw modelet::Error(modelet::errno_text(path.string()) + " (giving the copy to the scheduler's user)");
}

// What a scheduler needs to go on elsewhere, except the store, whose files may be copied at any time.
void back_up(const std::filesystem::path& state, const std::filesystem::path& to) {
  if (!std::filesystem::exists(state / "ledger.sqlite"))
    throw modelet::UsageError(state.string() + ": has no ledger: give the folder of the scheduler's --state");
  if (std::filesystem::exists(to))
    throw modelet::UsageError(to.string() + ": exists: give a new folder, so that nothing is overwritten");
  make_state_folder(to);
  try {
    modelet::scheduler::Ledger(state / "ledger.sqlite").back_up(to / "ledger.sqlite");
  } catch (const modelet::scheduler::InUse&) {
    ask_for_copy(state, to / "ledger.sqlite");
  }
  for (const char* name : {kAllowed, kInvitations, kPortFile})
    if (std::filesystem::exists(state / name))
      std::filesystem::copy(state / name, to / name, std::filesystem::copy_options::recursive);
  give_to_owner_of(state, to);
  std::cout << fmt::format(
      "{} has the ledger, the allow-list and the invitations. Add the key of the scheduler and, for data and "
      "checkpoints: rsync -a {}/store {}/\n",
      to.string(), state.string(), to.string());
}

struct InviteOptions {
  std::string listen, address, key, state;
  double hours = 24;
  uint32_t uses = 40;
};

// The address at which other machines reach a scheduler that listens at `listen`.
std::string address_for_others(const std::string& listen) {
  constexpr std::string_view kTcp = "tcp://";
  const size_t colon = listen.rfind(':');
  const std::string host = listen.substr(kTcp.size(), colon - kTcp.size()), port = listen.substr(colon + 1);
  if (!listen.starts_with(kTcp) || port == "*")
    throw modelet::UsageError("give --address: the scheduler listens at " + listen +
                              ", of which other machines do not know where it is");
  if (host != "*" && host != "0.0.0.0" && host != "[::]") return listen;
  return fmt::format("tcp://{}:{}", modelet::comm::address_on_the_way_to("tcp://192.0.2.1:9"), port);
}

void invite(const InviteOptions& options) {
  if (options.state.empty() || options.key.empty())
    throw modelet::UsageError(
        "an invitation needs the scheduler's --state, where it is kept, and its --key: give both, or --config with them");
  const modelet::comm::KeyPair own =
      modelet::comm::read_key_file(options.key);  // before this process becomes another user
  const std::filesystem::path folder(options.state);
  make_state_folder(folder);
  become_owner_of(folder);
  const std::string address = options.address.empty() ? address_for_others(options.listen) : options.address;
  modelet::comm::check_endpoint(address, false);
  if (modelet::comm::is_loopback(address))
    modelet::log_warning("{} is reached from this machine alone: give --address, or another --listen",
                         address);
  modelet::scheduler::Invitations invitations(folder / kInvitations);
  const std::string secret = invitations.make(options.hours, options.uses);
  std::cout << modelet::comm::to_word(
                   {.endpoint = address, .scheduler_key = own.public_key, .secret = secret})
            << '\n';
  modelet::log_info(
      "for the scheduler at {}, {} times within {:g} hours. On each machine: modelet-agent join WORD",
      address, options.uses, options.hours);
}

// The allow-list that the scheduler itself may add to. It need not exist before.
std::string own_allow_list(const std::filesystem::path& state) {
  const std::filesystem::path file = state / kAllowed;
  if (!std::filesystem::exists(file))
    write_line(file, "# agent KEY NAME, user KEY NAME or admin KEY NAME; 'modelet keygen' makes keys");
  return file;
}

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
  app.add_option(
      "--allow-list", allow_list,
      "file of the keys of agents and users that may connect; agents that are let in are added (default: 'allowed' in "
      "the folder of --state)");
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

  InviteOptions inviting;
  bool invites = false;
  CLI::App* const invite_verb =
      app.add_subcommand("invite", "print one word, with which machines join the pool")->fallthrough();
  invite_verb->footer(
      "Whoever has the word can add agents to the pool until it has expired or is used up, and nothing else. The scheduler "
      "keeps only a hash, in 'invitations' in the folder of --state: without its file an invitation is void. It need not "
      "be stopped.\n"
      "Examples:\n"
      "  modelet-scheduler invite --config scheduler.toml                   for 24 hours and 40 machines\n"
      "  modelet-scheduler invite --config scheduler.toml --hours 1 --uses 1");
  invite_verb->add_option("--hours", inviting.hours, "for which it is valid")
      ->capture_default_str()
      ->check(modelet::number_between(0.0, modelet::scheduler::Invitations::kMostHours));
  invite_verb->add_option("--uses", inviting.uses, "how many machines may join with it")
      ->capture_default_str()
      ->check(CLI::Range(1u, modelet::scheduler::Invitations::kMostUses));
  invite_verb->add_option("--address", inviting.address,
                          "address of the scheduler for other machines (default: that of --listen)");
  invite_verb->callback([&invites] { invites = true; });
  std::string copy;
  bool backs_up = false;
  CLI::App* const backup_verb =
      app.add_subcommand("backup", "copy what a scheduler keeps in its --state; it may be at work")
          ->fallthrough();
  backup_verb->footer(
      "A scheduler that is started with the copy, and with the same key, goes on as the other one would.\n"
      "Examples:\n"
      "  modelet-scheduler backup --config scheduler.toml /backup/monday\n"
      "  rsync -a /var/lib/modelet-scheduler/store /backup/monday/        data and checkpoints of runs");
  backup_verb->add_option("folder", copy, "new folder for the copy")->required();
  backup_verb->callback([&backs_up] { backs_up = true; });
  app.require_subcommand(0, 1);

  return modelet::run_program(app, argc, argv, [&] {
    ::umask(0077);  // only the scheduler's owner may read users' data
    modelet::start_logging("scheduler");
    if (backs_up) {
      if (state.empty())
        throw modelet::UsageError("give --state, the folder of the scheduler, or --config with it");
      return back_up(state, copy);
    }
    if (invites) {
      inviting.listen = options.listen;
      inviting.key = key;
      inviting.state = state;
      return invite(inviting);
    }
    modelet::exit_with_parent(parent);
    constexpr uint64_t kFiles = 100;  // sockets, the ledger, some data and a few agents
    modelet::require_descriptors(kFiles + (page.listen.empty() ? 0 : page.connections), "a scheduler");
    modelet::limit_address_space(memory_mib << 20);
    if (options.core.dead_after < 2 * options.core.heartbeat)
      throw modelet::UsageError("dead-after-seconds must be at least twice heartbeat-seconds");
    if (key.empty() && !allow_list.empty())
      throw modelet::UsageError("--allow-list (who may connect) needs --key, this scheduler's key");
    if (!key.empty() && allow_list.empty() && state.empty())
      throw modelet::UsageError(
          "--key (this scheduler's key) needs --allow-list (who may connect), or --state, whose folder then has one");
    if (!state.empty()) make_state_folder(state);
    if (!key.empty())
      options.keys = {modelet::comm::read_key_file(key),
                      allow_list.empty() ? own_allow_list(state) : allow_list};
    data.store_bytes = store_mib << 20;
    data.key_bytes = store_mib_per_key << 20;
    std::optional<modelet::scheduler::Ledger> ledger;
    if (!state.empty()) {
      const std::filesystem::path folder(state);
      options.invitations = folder / kInvitations;
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
    options.core.calendar = [] { return std::chrono::system_clock::now(); };
    std::vector<modelet::comm::http::Token> tokens;
    std::optional<modelet::scheduler::ServedPool> shown;
    if (!page.listen.empty()) {
      tokens = page_tokens(page, tokens_file, options.keys.has_value());
      shown.emplace(!state.empty(), data.store, data.store_bytes);
    } else if (!tokens_file.empty()) {
      throw modelet::UsageError("--http-tokens is for --http ADDRESS:PORT, which is missing");
    }
    options.observe = [&](const modelet::scheduler::Core& core) {
      if (shown) shown->observe(core);
      if (ledger) copy_if_wanted(state, *ledger);
    };
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
