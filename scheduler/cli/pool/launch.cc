#include "scheduler/cli/pool/launch.h"

#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/system/file.h"
#include "base/text/suggest.h"
#include "base/text/toml.h"
#include "comm/security/invitation.h"
#include "scheduler/cli/options/output.h"
#include "scheduler/client/launch/command.h"
#include "scheduler/client/launch/ssh_launcher.h"
#include "scheduler/core/values/text.h"

namespace modelet::cli {
namespace {

constexpr size_t kMostHosts = 1024;
constexpr size_t kMostHostsBytes = size_t{1} << 20;
constexpr size_t kHostsAtOnce = 32;  // hosts that are worked on at the same time

struct LaunchOptions {
  std::string hosts, action, invitation, tarball;
  double seconds = 120;
  bool removes = false;
  uint32_t nodes = 1;
  std::string folder = "modelet", partition, program = "modelet-agent";
  std::vector<std::string> sbatch, agent;
  bool prints = false;
};

struct HostsFile {
  SshOptions options;
  std::vector<SshHost> hosts;
  std::vector<std::string> agent;  // options of each agent
};

std::vector<std::string> texts_of(const toml::node_view<const toml::node>& list, const std::string& place) {
  std::vector<std::string> texts;
  if (!list) return texts;
  const toml::array* const array = list.as_array();
  if (array == nullptr) throw UsageError(place + " must be a list of texts");
  for (const toml::node& each : *array) {
    if (!each.is_string()) throw UsageError(place + " must be a list of texts");
    texts.push_back(each.as_string()->get());
  }
  return texts;
}

std::string text_in(const toml::table& table, const char* key, const std::string& otherwise,
                    const std::string& place) {
  if (!table.contains(key)) return otherwise;
  const auto text = table[key].value_exact<std::string>();
  if (!text) throw UsageError(fmt::format("{}: '{}' must be a text", place, key));
  return *text;
}

void refuse_other_keys(const toml::table& table, const std::vector<std::string>& known,
                       const std::string& path) {
  for (const auto& [key, node] : table)
    if (const std::string name(key.str()); std::find(known.begin(), known.end(), name) == known.end())
      throw UsageError(fmt::format("{}:{}: '{}' is not a known key{}", path, key.source().begin.line, name,
                                   suggestion(name, known)));
}

HostsFile read_hosts(const std::string& path) {
  const toml::table table =
      parse_toml_file(read_text_file(path, kMostHostsBytes), path,
                      "a file of hosts is TOML: tarball, invitation and [[host]] with name and address");
  refuse_other_keys(table, {"tarball", "invitation", "folder", "ssh_options", "agent_options", "host"}, path);
  HostsFile file;
  file.options.tarball = text_in(table, "tarball", "", path);
  file.options.invitation = text_in(table, "invitation", "", path);
  file.options.folder = text_in(table, "folder", file.options.folder, path);
  file.agent = texts_of(table["agent_options"], path + ": agent_options");
  const std::vector<std::string> common = texts_of(table["ssh_options"], path + ": ssh_options");
  const toml::array* const hosts = table["host"].as_array();
  if (hosts == nullptr || hosts->empty()) throw UsageError(path + ": names no [[host]]");
  if (hosts->size() > kMostHosts) throw UsageError(fmt::format("{}: more than {} hosts", path, kMostHosts));
  std::set<std::string> names;
  for (const toml::node& node : *hosts) {
    const toml::table* const host = node.as_table();
    if (host == nullptr) throw UsageError(path + ": a host is [[host]] with name and address");
    refuse_other_keys(*host, {"name", "address", "ssh_options"}, path);
    SshHost read{.name = text_in(*host, "name", "", path),
                 .address = text_in(*host, "address", "", path),
                 .options = common};
    if (read.name.empty()) read.name = read.address.substr(read.address.find('@') + 1);
    if (!scheduler::is_name(read.name))
      throw UsageError(
          fmt::format("{}: the name of a host is {}, and not '{}'", path, scheduler::kNameRule, read.name));
    if (!names.insert(read.name).second)
      throw UsageError(fmt::format("{}: two hosts are named '{}'", path, read.name));
    for (std::string& option : texts_of((*host)["ssh_options"], path + ": ssh_options"))
      read.options.push_back(std::move(option));
    file.hosts.push_back(std::move(read));
  }
  return file;
}

// What is done on a host, and what is said of it.
std::string act_on(SshLauncher& launcher, const Program& program, const LaunchOptions& options) {
  const std::vector<std::string> names{program.name};
  if (options.action == "status") {
    const SshStatus now = launcher.status();
    return fmt::format("{}{}: {}",
                       now.runs               ? "runs"
                       : now.programs.empty() ? "nothing installed"
                                              : "stopped",
                       launcher.is_up_to_date() ? "" : ", other programs than the tarball's", now.last_line);
  }
  if (options.action == "down") {
    launcher.stop(names);
    if (options.removes) launcher.remove();
    return options.removes ? "stopped and removed" : "stopped";
  }
  if (options.action == "upgrade" && !launcher.is_up_to_date()) {
    launcher.install();  // if that fails, the agent works on
    launcher.stop(names);
  }
  launcher.start(program);
  return launcher.is_up_to_date() ? "runs"
                                  : "runs, with other programs than the tarball's: 'upgrade' changes them";
}

void launch_ssh(const LaunchOptions& options) {
  HostsFile file = read_hosts(options.hosts);
  if (!options.invitation.empty()) file.options.invitation = options.invitation;
  if (!options.tarball.empty()) file.options.tarball = options.tarball;
  if (!file.options.invitation.empty()) comm::parse_invitation(file.options.invitation);
  file.options.seconds = options.seconds;
  std::vector<std::pair<bool, std::string>> ends(file.hosts.size());
  for (size_t first = 0; first < file.hosts.size(); first += kHostsAtOnce) {
    std::vector<std::jthread> threads;
    for (size_t i = first; i < std::min(first + kHostsAtOnce, file.hosts.size()); ++i)
      threads.emplace_back([&, i] {
        try {
          SshLauncher launcher(file.hosts[i], file.options);
          ends[i] = {true, act_on(launcher, {.name = file.hosts[i].name, .path = {}, .arguments = file.agent},
                                  options)};
        } catch (const std::exception& error) {
          ends[i] = {false, error.what()};
        }
      });
  }
  Table table({{"host", 9, false, 12}, {"state", 8, false}, {"detail", 6, false, 20}});
  size_t failures = 0;
  for (size_t i = 0; i < ends.size(); ++i) {
    const auto& [good, text] = ends[i];
    failures += good ? 0 : 1;
    table.add({file.hosts[i].name, good ? "ok" : "FAILED", text});
  }
  print(table);
  if (failures > 0)
    throw Error(
        fmt::format("{} of {} hosts failed; the same command goes on with them", failures, ends.size()));
}

// SIGTERM of scancel and of a preemption reaches the agent through srun. An agent that was asked to leave ends well, so
// the job puts itself back into the queue; Slurm refuses that for one that was cancelled.
std::string slurm_script(const LaunchOptions& options) {
  std::string arguments, directives;
  for (const std::string& argument : options.agent) arguments += ' ' + quoted(argument);
  for (const std::string& directive : options.sbatch) directives += "#SBATCH " + directive + '\n';
  return fmt::format(
      "#!/bin/bash\n#SBATCH --job-name=modelet-agent\n#SBATCH --nodes=1 --ntasks=1 --exclusive --requeue\n#SBATCH --array=0-{0}\n"
      "#SBATCH --open-mode=append --output={1}/agent-%a.out\n{2}{3}"
      "folder={1}/$SLURM_ARRAY_TASK_ID\nmkdir -p \"$folder\" && chmod 700 \"$folder\"\n"
      "[ -f \"$folder/agent.toml\" ] || {4} join {5} --name \"slurm-$SLURM_ARRAY_TASK_ID\" --config \"$folder/agent.toml\" --no-start || exit 1\n"
      "srun --cpus-per-task=\"${{SLURM_CPUS_ON_NODE:-1}}\" {4} --config \"$folder/agent.toml\" --dedicated --leave-seconds 50 "
      "--work-dir \"${{TMPDIR:-/tmp}}/modelet-$SLURM_ARRAY_TASK_ID\"{6}\n"
      "scontrol requeue \"$SLURM_JOB_ID\" && sleep 60\n",
      options.nodes - 1, quoted(std::filesystem::absolute(options.folder).string()),
      options.partition.empty() ? "" : fmt::format("#SBATCH --partition={}\n", quoted(options.partition)),
      directives, quoted(options.program), quoted(options.invitation), arguments);
}

void launch_slurm(const LaunchOptions& options) {
  constexpr double kSeconds = 60;
  if (options.action == "down") {
    const CommandEnd end = run_command({"scancel", "--name", "modelet-agent"}, kSeconds);
    if (end.code != 0) throw Error("scancel: " + end.output);
    return;
  }
  comm::parse_invitation(options.invitation);
  const std::string script = slurm_script(options);
  if (options.prints) {
    std::cout << script;
    return;
  }
  std::filesystem::create_directories(options.folder);
  const CommandEnd end = run_command({"sbatch"}, kSeconds, script);
  if (end.code != 0) throw Error("sbatch: " + end.output);
  std::cout << end.output;
}

}  // namespace

void add_launch_verb(CLI::App& app) {
  CLI::App& launch = *app.add_subcommand("launch", "Put agents on other machines, and take them away");
  launch.require_subcommand(1);
  launch.footer(
      "Examples:\n  modelet launch ssh hosts.toml status\n  modelet launch slurm --down\n"
      "'modelet launch ssh --help' and 'modelet launch slurm --help' tell more.");
  const auto ssh = std::make_shared<LaunchOptions>();
  CLI::App& ssh_verb = *launch.add_subcommand("ssh", "On machines that ssh reaches without a password");
  ssh_verb.footer(
      "HOSTS.toml: tarball = \"modelet-...tar.xz\", invitation = \"modelet1-...\", folder, ssh_options and agent_options (lists), "
      "and for each machine [[host]] with name, address (USER@HOST) and ssh_options.\n"
      "All hosts at once. What is there already stays, so the same command goes on where one failed.\n"
      "  up       installs the programs, joins the pool and starts the agent, where that was not done\n"
      "  status   whether the agent runs, and the last line of its log\n"
      "  upgrade  installs another tarball; the agent leaves its run first, and starts again\n"
      "  down     the agent leaves; --remove: its folder goes, too\n"
      "Examples:\n"
      "  modelet launch ssh hosts.toml up --invitation $(modelet-scheduler invite --config scheduler.toml)\n"
      "  modelet launch ssh hosts.toml status");
  ssh_verb.add_option("hosts", ssh->hosts, "file of hosts")->required();
  ssh_verb.add_option("action", ssh->action, "up, status, upgrade or down")
      ->required()
      ->check(CLI::IsMember({"up", "status", "upgrade", "down"}));
  ssh_verb.add_option("--invitation", ssh->invitation,
                      "what 'modelet-scheduler invite' printed (default: the file's)");
  ssh_verb.add_option("--tarball", ssh->tarball, "programs to install (default: the file's)");
  ssh_verb.add_option("--seconds", ssh->seconds, "for each step on a host")->capture_default_str();
  ssh_verb.add_flag("--remove", ssh->removes, "with down: remove the folder on the host");
  ssh_verb.callback([ssh] { launch_ssh(*ssh); });

  const auto slurm = std::make_shared<LaunchOptions>();
  slurm->action = "up";
  CLI::App& slurm_verb = *launch.add_subcommand("slurm", "As an array job of Slurm, an agent on each node");
  slurm_verb.footer(
      "A job that is preempted comes back: its agent leaves its run to others, and the job goes into the queue again. "
      "Slurm's GraceTime and KillWait must be longer than 50 s.\n"
      "Examples:\n"
      "  modelet launch slurm -N 8 --invitation modelet1-... --folder /shared/modelet\n"
      "  modelet launch slurm -N 8 --invitation modelet1-... --print > agent.sbatch\n"
      "  modelet launch slurm --down");
  slurm_verb.add_option("-N,--nodes", slurm->nodes, "how many nodes")
      ->capture_default_str()
      ->check(CLI::Range(1u, 1024u));
  slurm_verb.add_option("--invitation", slurm->invitation, "what 'modelet-scheduler invite' printed");
  slurm_verb.add_option("--folder", slurm->folder, "folder that all nodes share, for keys and logs")
      ->capture_default_str();
  slurm_verb.add_option("--partition", slurm->partition, "of Slurm");
  slurm_verb.add_option("--program", slurm->program, "the agent, on the nodes")->capture_default_str();
  slurm_verb.add_option("--sbatch", slurm->sbatch,
                        "option of sbatch, such as --sbatch=--time=7-0 (repeatable)");
  slurm_verb.add_option("--agent", slurm->agent,
                        "option of the agent, such as --agent=--cores=8 (repeatable)");
  slurm_verb.add_flag("--print", slurm->prints, "print the job instead of submitting it");
  slurm_verb.add_flag_callback(
      "--down", [slurm] { slurm->action = "down"; }, "cancel the agents' jobs instead");
  slurm_verb.callback([slurm] { launch_slurm(*slurm); });
}

}  // namespace modelet::cli
