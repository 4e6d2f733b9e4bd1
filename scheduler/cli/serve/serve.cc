#include "scheduler/cli/serve/serve.h"

#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include "base/error.h"
#include "base/system/file.h"
#include "base/system/log.h"
#include "base/system/process.h"
#include "base/system/program.h"
#include "node_agent/machine/capacity.h"
#include "scheduler/cli/serve/http_server.h"
#include "scheduler/cli/serve/model_holder.h"
#include "scheduler/cli/serve/service.h"

namespace modelet::cli {
namespace {

struct ServeOptions {
  ServedModelOptions model;
  RequestLimits limits;
  HttpOptions http{.threads = 0};
  double read_seconds = 10, write_seconds = 10, idle_seconds = 60, grace_seconds = 30, reload_seconds = 10;
  std::string token_file, endpoint_file;
  bool no_probabilities = false;
};

// Reads the token that questions must bring, a single line. Whoever can read the file can ask questions, so
// no other user may be able to read it.
std::string read_token(const std::string& file) {
  constexpr size_t kFewest = 16, kMost = 1024;
  struct stat info {};
  if (::stat(file.c_str(), &info) != 0) throw UsageError(errno_text(file));
  if ((info.st_mode & (S_IRWXG | S_IRWXO)) != 0)
    throw UsageError(file + ": others may read or change this token: chmod 600 it");
  std::string token = read_text_file(file, kMost);
  while (!token.empty() && (token.back() == '\n' || token.back() == '\r')) token.pop_back();
  if (token.size() < kFewest || !std::ranges::all_of(token, [](char c) { return c > ' ' && c < 127; }))
    throw UsageError(file + ": a token is one line of at least " + std::to_string(kFewest) +
                     " visible ASCII characters; 'openssl rand -hex 32' makes one");
  return token;
}

void serve(ServeOptions options) {
  std::string token;
  if (!options.token_file.empty()) token = read_token(options.token_file);
  if (token.empty() && !is_loopback(options.http.listen))
    throw UsageError(
        "--listen " + options.http.listen +
        ": other machines can reach this address: give --token-file FILE, or listen on 127.0.0.1");
  constexpr uint64_t kFiles = 64;  // of the model, a newer one, and the server
  require_descriptors(kFiles + 1, "modelet serve");
  if (const uint64_t room = descriptor_limit() - kFiles; room < options.http.connections) {
    options.http.connections = room;
    log_warning("--connections is {}: this process may have {} files open (ulimit -n)", room, room + kFiles);
  }
  require_free(options.http.listen);  // a large model takes long to load
  options.http.read = Seconds(options.read_seconds);
  options.http.write = Seconds(options.write_seconds);
  options.http.idle = Seconds(options.idle_seconds);
  options.http.grace = Seconds(options.grace_seconds);
  if (options.http.threads == 0) options.http.threads = agent::usable_cores();
  options.model.proba = !options.no_probabilities;
  options.model.threads = options.http.threads;
  ModelHolder models(options.model, Seconds(options.reload_seconds));
  Statistics statistics;
  Service service(models, statistics, options.limits, token);
  HttpServer server(service, statistics, options.http);
  log_info("serving {}, step {}, on {}", models.model()->folder().string(), models.model()->step(),
           server.endpoint());
  if (!options.endpoint_file.empty()) {
    AtomicFile file(options.endpoint_file);
    file.write(server.endpoint() + "\n");
    file.commit();
  }
  const bool all_answered = server.run([&] { models.look_now(); });
  const auto conclude = [all_answered] {
    if (!all_answered)
      throw Error(
          "some questions were not answered within --grace-seconds; the clients see closed connections");
    log_info("ended");
    return static_cast<int>(ExitCode::kDone);
  };
  // Nobody will ask a model that is being loaded now.
  if (models.stop()) std::quick_exit(exit_code_of("modelet", conclude));
  conclude();
}

}  // namespace

void add_serve_verb(CLI::App& app) {
  const auto options = std::make_shared<ServeOptions>();
  CLI::App& verb = *app.add_subcommand("serve", "Answer questions to a model over HTTP");
  verb.add_option("run", options->model.run, "run folder, whose newer checkpoints take over, or checkpoint")
      ->required()
      ->check(CLI::ExistingDirectory);
  verb.add_option("--listen", options->http.listen, "ADDRESS:PORT; port 0: any that is free")
      ->capture_default_str();
  verb.add_option("--token-file", options->token_file,
                  "a file with a token that questions must bring; needed beyond this machine")
      ->check(CLI::ExistingFile);
  verb.add_option("--endpoint-file", options->endpoint_file, "write the address of the server to this file");
  verb.add_option("--threads", options->http.threads, "0: all cores")
      ->check(CLI::Range(0u, 1024u))
      ->capture_default_str();
  verb.add_flag("--sparse", options->model.sparse,
                "score only the likeliest labels unless a question says otherwise");
  verb.add_option("--queries", options->model.queries,
                  "samples on which --sparse is tuned (default: the test data of the run)")
      ->check(CLI::ExistingFile);
  verb.add_option("--labels", options->model.labels,
                  "names of the labels, one a line (default: data.labels of the experiment)");
  verb.add_option("--calibrate", options->model.calibrate,
                  "labelled samples for probabilities (default: as 'modelet predict --proba')")
      ->check(CLI::ExistingFile);
  verb.add_flag("--no-probabilities", options->no_probabilities, "answer with scores alone");
  verb.add_option("--reload-seconds", options->reload_seconds,
                  "between two looks for a newer checkpoint; 0: only after SIGHUP")
      ->check(number_between(0.0, 1e6))
      ->capture_default_str();
  verb.add_option("--most-samples", options->limits.samples, "samples of a question")
      ->check(CLI::Range(size_t{1}, size_t{100000}))
      ->capture_default_str();
  verb.add_option("--most-labels", options->limits.k, "labels of a sample")
      ->check(CLI::Range(size_t{1}, size_t{1000}))
      ->capture_default_str();
  verb.add_option("--body-bytes", options->http.body_bytes, "size of a question")
      ->check(CLI::Range(size_t{1} << 10, size_t{1} << 30))
      ->capture_default_str();
  verb.add_option("--header-bytes", options->http.header_bytes, "size of a question's header")
      ->check(CLI::Range(size_t{1} << 10, size_t{1} << 20))
      ->capture_default_str();
  verb.add_option("--connections", options->http.connections,
                  "open at once; the one that waits longest for a question gives way to a new one")
      ->check(CLI::Range(size_t{1}, size_t{60000}))
      ->capture_default_str();
  verb.add_option("--connections-per-address", options->http.connections_of_address,
                  "of one client address; 0: half of --connections")
      ->check(CLI::Range(size_t{0}, size_t{60000}))
      ->capture_default_str();
  verb.add_option(
      "--host", options->http.hosts,
      "a further name under which this machine is asked, besides localhost and 127.0.0.1, if --listen is "
      "such an address; may be repeated");
  const auto seconds = [&](const char* name, double& value, const char* meaning) {
    verb.add_option(name, value, meaning)->check(number_between(0.01, 1e5))->capture_default_str();
  };
  seconds("--read-seconds", options->read_seconds, "from the first byte of a question to its last");
  seconds("--write-seconds", options->write_seconds, "for sending an answer");
  seconds("--idle-seconds", options->idle_seconds, "between two questions of a connection");
  seconds("--grace-seconds", options->grace_seconds,
          "for questions that have begun when the server is told to end");
  verb.footer(
      "Examples:\n  modelet serve runs/sections --listen 127.0.0.1:8080\n"
      "  curl -s 127.0.0.1:8080/v1/predict -H 'Content-Type: application/json' -d '{\"text\": \"some words\", \"k\": 3}'\n"
      "  modelet serve runs/amazon --sparse --queries test.mlt --threads 2\n"
      "  modelet serve runs/sections --listen 0.0.0.0:8080 --token-file token\n"
      "docs/serving.md says what it answers. SIGHUP looks for a newer checkpoint at once; SIGTERM and Ctrl-C end it "
      "when questions that have begun are answered.");
  verb.callback([options] { serve(*options); });
}

}  // namespace modelet::cli
