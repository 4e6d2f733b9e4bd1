#include "scheduler/cli/serve/serve.h"

#include <poll.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/system/file.h"
#include "base/system/log.h"
#include "base/system/process.h"
#include "base/system/program.h"
#include "base/system/wake_event.h"
#include "comm/http/server.h"
#include "node_agent/machine/capacity.h"
#include "scheduler/cli/serve/label_routes.h"
#include "scheduler/cli/serve/model_holder.h"
#include "scheduler/cli/serve/service.h"
#include "scheduler/cli/serve/update_route.h"

namespace modelet::cli {
namespace {

struct ServeOptions {
  ServedModelOptions model;
  RequestLimits limits;
  comm::http::ServerOptions http{.threads = 0};
  double reload_seconds = 10;
  std::string token_file, endpoint_file;
  bool no_probabilities = false, change_labels = false, update = false;
};

// While it lives, SIGTERM and SIGINT end wait(). SIGHUP looks for a newer checkpoint.
class Signals {
 public:
  void wait(ModelHolder& models) {
    while (true) {
      pollfd one{wake_.fd(), POLLIN, 0};
      ::poll(&one, 1, -1);
      if (stop_) return;
      if (!wake_.is_set()) continue;
      wake_.clear();
      models.look_now();
    }
  }

 private:
  WakeEvent wake_;
  std::atomic<bool> stop_{false};
  const StopSignals signals_{[this] {
                               stop_ = true;
                               wake_.set();
                             },
                             StopSignals::Again::kEndsProcess, [this] { wake_.set(); }};
};

void serve(ServeOptions options) {
  std::vector<comm::http::Token> tokens;
  if (!options.token_file.empty()) tokens.push_back({comm::http::read_token_file(options.token_file)});
  constexpr uint64_t kFiles = 64;  // of the model, a newer one, and the server
  require_descriptors(kFiles + 1, "modelet serve");
  if (const uint64_t room = descriptor_limit() - kFiles; room < options.http.connections) {
    options.http.connections = room;
    log_warning("--connections is {}: this process may have {} files open (ulimit -n)", room, room + kFiles);
  }
  comm::http::check_listening(options.http, !tokens.empty());  // a large model takes long to load
  if (options.http.threads == 0) options.http.threads = agent::usable_cores();
  options.model.proba = !options.no_probabilities;
  options.model.threads = options.http.threads;
  ModelHolder models(options.model, Seconds(options.reload_seconds));
  comm::http::Router router(std::move(tokens));
  const Service service(models, options.limits, options.change_labels, options.update, router);
  std::optional<LabelRoutes> labels;
  if (options.change_labels) {
    labels.emplace(options.model.run, options.http.threads, models, router);
    ++options.http.others;  // a change takes its time
  }
  std::optional<UpdateRoute> update;
  if (options.update) update.emplace(models, router);
  comm::http::Server server(router, options.http);
  {
    Signals signals;
    log_info("serving {}, step {}, on {}", models.model()->folder().string(), models.model()->step(),
             server.endpoint());
    if (!options.endpoint_file.empty()) {
      AtomicFile file(options.endpoint_file);
      file.write(server.endpoint() + "\n");
      file.commit();
    }
    signals.wait(models);
  }  // from here on, a signal ends the process
  const bool all_answered = server.stop();
  const auto conclude = [all_answered] {
    if (!all_answered)
      throw Error(
          "some requests were not answered within --grace-seconds; the clients see closed connections");
    log_info("ended");
    return static_cast<int>(ExitCode::kDone);
  };
  // Nobody will use a model that is being loaded now.
  if (models.stop()) std::quick_exit(exit_code_of("modelet", conclude));
  conclude();
}

}  // namespace

void add_serve_verb(CLI::App& app) {
  const auto options = std::make_shared<ServeOptions>();
  CLI::App& verb = *app.add_subcommand("serve", "Serve a model over HTTP");
  verb.add_option("run", options->model.run, "run folder, whose newer checkpoints take over, or checkpoint")
      ->required()
      ->check(CLI::ExistingDirectory);
  verb.add_option("--listen", options->http.listen, "ADDRESS:PORT; port 0: any that is free")
      ->capture_default_str();
  verb.add_option("--token-file", options->token_file,
                  "a file with a token that requests must bring; needed beyond this machine")
      ->check(CLI::ExistingFile);
  verb.add_option("--endpoint-file", options->endpoint_file, "write the address of the server to this file");
  verb.add_option("--threads", options->http.threads, "0: all cores")
      ->check(CLI::Range(0u, 1024u))
      ->capture_default_str();
  verb.add_flag("--sparse", options->model.sparse,
                "score only the likeliest labels unless a request says otherwise");
  verb.add_option("--queries", options->model.queries,
                  "samples on which --sparse is tuned (default: the test data of the run)")
      ->check(CLI::ExistingFile);
  verb.add_option("--labels", options->model.labels,
                  "names of the labels, one a line (default: data.labels of the experiment)");
  verb.add_option("--calibrate", options->model.calibrate,
                  "labelled samples for probabilities (default: as 'modelet predict --proba')")
      ->check(CLI::ExistingFile);
  verb.add_flag("--no-probabilities", options->no_probabilities, "answer with scores alone");
  verb.add_option_function<std::vector<std::string>>(
          "--subset",
          [options](const std::vector<std::string>& given) {
            for (const std::string& each : given) {
              const size_t equals = each.find('=');
              if (equals == std::string::npos || equals == 0)
                throw CLI::ValidationError("--subset", "is '" + each + "'; write NAME=FILE");
              options->model.subsets[each.substr(0, equals)] = each.substr(equals + 1);
            }
          },
          "NAME=FILE: labels, one a line, among which requests may choose by \"among\": \"NAME\"; read again with each "
          "model; may be repeated")
      ->allow_extra_args(false);
  verb.add_option("--examples", options->model.examples,
                  "training samples that an explanation names for each label; reads the training data")
      ->check(CLI::Range(size_t{0}, size_t{100}))
      ->capture_default_str();
  verb.add_flag("--change-labels", options->change_labels,
                "requests may add, correct, remove and rename labels of the run (POST /v1/labels/...)");
  verb.add_flag("--update", options->update,
                "requests may add events to the histories of entities (POST /v1/update), which are kept beside the model");
  verb.add_option("--reload-seconds", options->reload_seconds,
                  "between two looks for a newer checkpoint; 0: only after SIGHUP")
      ->check(number_between(0.0, 1e6))
      ->capture_default_str();
  verb.add_option("--most-samples", options->limits.samples, "samples of a request")
      ->check(CLI::Range(size_t{1}, size_t{100000}))
      ->capture_default_str();
  verb.add_option("--most-labels", options->limits.k, "labels of a sample")
      ->check(CLI::Range(size_t{1}, size_t{1000}))
      ->capture_default_str();
  verb.add_option("--body-bytes", options->http.body_bytes, "size of a request")
      ->check(CLI::Range(size_t{1} << 10, size_t{1} << 30))
      ->capture_default_str();
  verb.add_option("--header-bytes", options->http.header_bytes, "size of a request's header")
      ->check(CLI::Range(size_t{1} << 10, size_t{1} << 20))
      ->capture_default_str();
  verb.add_option("--connections", options->http.connections,
                  "open at once; the one that waits longest for a request gives way to a new one")
      ->check(CLI::Range(size_t{1}, size_t{60000}))
      ->capture_default_str();
  verb.add_option("--connections-per-address", options->http.connections_per_address,
                  "of one client address; 0: half of --connections")
      ->check(CLI::Range(size_t{0}, size_t{60000}))
      ->capture_default_str();
  verb.add_option(
      "--host", options->http.hosts,
      "a further name of this machine in requests, besides localhost and 127.0.0.1, if --listen is "
      "such an address; may be repeated");
  const auto seconds = [&](const char* name, double& value, const char* meaning) {
    verb.add_option(name, value, meaning)->check(number_between(0.01, 1e5))->capture_default_str();
  };
  seconds("--read-seconds", options->http.read_seconds, "from the first byte of a request to its last");
  seconds("--write-seconds", options->http.write_seconds, "for sending a response");
  seconds("--idle-seconds", options->http.idle_seconds, "between two requests of a connection");
  seconds("--grace-seconds", options->http.grace_seconds,
          "for requests in progress when the server shuts down");
  verb.footer(
      "Examples:\n  modelet serve runs/sections --listen 127.0.0.1:8080\n"
      "  curl -s 127.0.0.1:8080/v1/predict -H 'Content-Type: application/json' -d '{\"text\": \"some words\", \"k\": 3}'\n"
      "  modelet serve runs/amazon --sparse --queries test.mlt --threads 2\n"
      "  modelet serve runs/sections --listen 0.0.0.0:8080 --token-file token\n"
      "  modelet serve runs/products --subset in-stock=in-stock.txt --change-labels\n"
      "  modelet serve runs/orders --update\n"
      "docs/serving.md has the requests and responses. SIGHUP looks for a newer checkpoint at once; SIGTERM and Ctrl-C end it "
      "when the requests in progress are answered.");
  verb.callback([options] { serve(*options); });
}

}  // namespace modelet::cli
