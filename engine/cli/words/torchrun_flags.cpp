#include "engine/cli/words/torchrun_flags.h"

#include <algorithm>
#include <random>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/core/thread_cores.h"
#include "engine/launcher/option_grammar.h"

namespace loom::cli {
namespace {

using launcher::Host;
using launcher::Milliseconds;

constexpr int kMostPort = 65535;
constexpr std::uint16_t kRendezvousPort = 29400;

bool is_interval(double value) { return value > 0 && value <= 3600; }

std::string random_id() {
  std::random_device device;
  return fmt::format("{:08x}{:08x}", device(), device());
}

void set_standalone(launcher::Options& options) {
  if (options.nodes.most > 1) {
    config_error(
        "--standalone is for one node, but --nnodes is {}; give --rdzv-backend c10d --rdzv-endpoint HOST:PORT "
        "on each node instead",
        options.nodes.most);
  }
  options.meeting = {.host = "127.0.0.1", .port = 0};
  options.coordinator = Host::kThis;
  options.run_id = random_id();
}

void set_static(const TorchrunFlags& values, launcher::Options& options) {
  if (values.node_rank >= options.nodes.most) {
    config_error("--node-rank is {}, but --nnodes is {}; use 0 to {}", values.node_rank, values.nodes,
                 options.nodes.most - 1);
  }
  options.node_rank = values.node_rank;
  options.meeting = {.host = values.master_addr, .port = static_cast<std::uint16_t>(values.master_port)};
  if (!values.endpoint.empty()) {
    options.meeting =
        comm::tcp::parse_address(values.endpoint, "--rdzv-endpoint", static_cast<std::uint16_t>(values.master_port));
  }
  options.coordinator = values.node_rank == 0 ? Host::kThis : Host::kOther;
}

void set_c10d(const TorchrunFlags& values, const launcher::RendezvousSettings& settings, launcher::Options& options) {
  if (values.endpoint.empty() && options.nodes.most > 1) {
    config_error("--rdzv-backend c10d needs --rdzv-endpoint; give one node's HOST:PORT, the same on all nodes");
  }
  options.port_flag = "--rdzv-endpoint";
  const bool any_port = values.endpoint.ends_with(":0");
  const std::string text = any_port ? values.endpoint.substr(0, values.endpoint.size() - 2) : values.endpoint;
  options.meeting = {.host = "127.0.0.1", .port = kRendezvousPort};
  if (!text.empty()) options.meeting = comm::tcp::parse_address(text, "--rdzv-endpoint", kRendezvousPort);
  if (any_port && options.nodes.most > 1) {
    config_error("--rdzv-endpoint is {}; give a port that all nodes know, as in {}:{}", shown_text(values.endpoint),
                 shown_text(text), kRendezvousPort);
  }
  if (any_port) options.meeting.port = 0;
  const bool here = settings.is_host.value_or(comm::tcp::is_local(options.meeting.host));
  options.coordinator = !here ? Host::kOther : settings.is_host ? Host::kThis : Host::kFirst;
  if (options.nodes.most == 1 && here) options.coordinator = Host::kThis;
}

std::string read_backend(const std::string& word) {
  if (word == "etcd" || word == "etcd-v2") {
    config_error("--rdzv-backend is {}, which needs an etcd server; use c10d with --rdzv-endpoint HOST:PORT, or static",
                 word);
  }
  return job::read_choice("--rdzv-backend", word, {"static", "c10d"});
}

void add_nodes(Flags& flags, TorchrunFlags& values) {
  flags.group("Nodes and workers");
  flags.text("--nnodes", "N|MIN:MAX", values.nodes, "Nodes of the job; a range: the job goes on with fewer", "1:1");
  flags.text("--nproc-per-node", "N|auto|gpu|cpu", values.workers, "Workers of this node", "1");
  flags.whole("--node-rank", values.node_rank, 0, "Number of this node; static rendezvous");
  flags.text("--master-addr", "HOST", values.master_addr, "Host of node 0; static rendezvous", values.master_addr);
  flags.taken("--master-port", "PORT", "Port of node 0, 29500 unless given; static rendezvous",
              [&values](const std::string& text) {
                values.master_port = job::read_whole<int>("--master-port", text, 1);
                if (values.master_port > kMostPort) config_error("--master-port is {}; use 1 to 65535", text);
              });
  flags.text("--role", "NAME", values.role, "Role of the workers", values.role);
  flags.text("--local-addr", "HOST", values.local_addr, "Name that this node announces", "the host's");
}

void add_rendezvous(Flags& flags, TorchrunFlags& values) {
  flags.group("Rendezvous");
  flags.toggle("--standalone", values.standalone, "One node, at a free port");
  flags.taken("--rdzv-backend", "{static,c10d}", "How nodes meet; c10d: at --rdzv-endpoint, in any order",
              [&values](const std::string& word) { values.backend = read_backend(word); });
  flags.text("--rdzv-endpoint", "HOST[:PORT]", values.endpoint, "Where nodes meet; c10d");
  flags.text("--rdzv-id", "ID", values.id, "Name of the job, the same on all nodes", values.id);
  flags.text("--rdzv-conf", "K=V,K=V", values.conf, "timeout, last_call_timeout, read_timeout in seconds; is_host");
  flags.whole("--max-restarts", values.max_restarts, 0, "Restarts of all workers after failures");
  flags.real("--monitor-interval", values.monitor_interval, is_interval, "seconds above 0, up to 3600",
             "Seconds between two looks at the workers");
}

void add_program(Flags& flags, TorchrunFlags& values) {
  flags.group("Program and output");
  flags.toggle("--no-python", values.no_python, "PROGRAM is an executable file");
  flags.toggle("--module,-m", values.module, "PROGRAM is a Python module");
  flags.toggle("--run-path", values.run_path, "PROGRAM is a Python script that runpy runs");
  flags.taken("--start-method", "{spawn,fork,forkserver}", "Accepted; changes nothing", [&](const std::string& word) {
    values.start_method = job::read_choice("--start-method", word, {"spawn", "fork", "forkserver"});
  });
  flags.text("--log-dir", "DIR", values.log_dir, "Folder of the logs", "a temporary folder");
  flags.text("--redirects,-r", "0..3|R:N,...", values.redirects, "Write 1 stdout, 2 stderr, 3 both to logs", "0");
  flags.text("--tee,-t", "0..3|R:N,...", values.tee, "The same, and show them too", "0");
  flags.text("--local-ranks-filter", "R,R", values.shown, "Local ranks whose output is shown", "all");
}

}  // namespace

void add_torchrun(Flags& flags, TorchrunFlags& values) {
  add_nodes(flags, values);
  add_rendezvous(flags, values);
  add_program(flags, values);
}

launcher::Options options_of(const TorchrunFlags& values) {
  launcher::Options options{.tool = launcher::Tool::kTorchrun, .run_id = values.id};
  options.nodes = launcher::parse_nodes(values.nodes);
  const int cores = static_cast<int>(cores_of_this_thread().size());
  options.workers = launcher::parse_workers(values.workers, std::max(1, cores), launcher::devices_of_this_host());
  const auto settings = launcher::parse_rendezvous_settings(values.conf, options.times);
  if (values.standalone) {
    set_standalone(options);
  } else if (values.backend == "c10d") {
    set_c10d(values, settings, options);
  } else {
    set_static(values, options);
  }
  options.max_restarts = values.max_restarts;
  // A longer one would delay signs of life.
  const auto interval = Milliseconds(static_cast<std::int64_t>(values.monitor_interval * 1000));
  options.times.monitor = std::clamp(interval, Milliseconds(1), Milliseconds(1000));
  options.role = values.role;
  options.host = values.local_addr;
  if (!values.log_dir.empty()) options.log_dir = values.log_dir;
  options.redirects = launcher::parse_streams("--redirects", values.redirects);
  options.tee = launcher::parse_streams("--tee", values.tee);
  options.shown_workers = launcher::parse_local_ranks("--local-ranks-filter", values.shown);
  return options;
}

launcher::Entry entry_of(const TorchrunFlags& values) {
  if (static_cast<int>(values.module) + static_cast<int>(values.no_python) + static_cast<int>(values.run_path) > 1) {
    config_error("--module, --no-python and --run-path exclude each other; give one of them, or none");
  }
  if (values.module) return launcher::Entry::kModule;
  if (values.no_python) return launcher::Entry::kProgram;
  return values.run_path ? launcher::Entry::kRunPath : launcher::Entry::kGuess;
}

}  // namespace loom::cli
