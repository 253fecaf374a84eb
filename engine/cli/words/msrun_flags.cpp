#include "engine/cli/words/msrun_flags.h"

#include <limits>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/launch/affinity.h"
#include "engine/launcher/option_grammar.h"

namespace loom::cli {
namespace {

using launcher::Host;
using launcher::Milliseconds;

constexpr int kLeastPort = 1024, kMostPort = 65535;
constexpr int kYear_s = 365 * 24 * 3600;

bool truth_of(const std::string& flag, const std::string& word) {
  if (word == "True" || word == "true") return true;
  if (word == "False" || word == "false") return false;
  config_error("{} is {}; use True or False", flag, shown_text(word));
}

int port_of(const std::string& word) {
  const auto port = parse_number<int>(word);
  if (port && *port >= kLeastPort && *port <= kMostPort) return *port;
  config_error("--master-port is {}; use {} to {}", shown_text(word), kLeastPort, kMostPort);
}

void check_simulation(const std::string& word) {
  if (job::read_whole<int>("--sim-level", word, -1) == -1) return;
  config_error("--sim-level is {}, a dry run of MindSpore; use -1, or shardloom plan, which predicts memory and time",
               word);
}

void check_rank_table(const std::string& word) {
  if (word.empty()) return;
  config_error("--rank-table-file is {}; nodes meet at --master-addr, leave the flag out", shown_text(word));
}

void add_workers(Flags& flags, MsrunFlags& values) {
  flags.group("Nodes and workers");
  flags.whole("--worker-num", values.worker_num, 1, "Workers of all nodes");
  flags.whole("--local-worker-num", values.local_worker_num, 1, "Workers of this node");
  flags.text("--master-addr", "HOST", values.master_addr, "Where nodes meet", values.master_addr);
  flags.taken("--master-port", "PORT", "Its port, 8118 unless given",
              [&values](const std::string& word) { values.master_port = port_of(word); });
  flags.whole("--node-rank", values.node_rank, -1, "Number of this node; -1: in the order of joining");
  flags.whole("--cluster-time-out", values.cluster_time_out, std::numeric_limits<int>::min(),
              "Seconds until all nodes must have joined; negative: a year");
  flags.text("--bind-core", "TEXT", values.bind_core,
             "True, False, or a JSON map: {\"device0\": [\"0-9\"]}: cores of each worker", values.bind_core);
}

void add_output(Flags& flags, MsrunFlags& values) {
  flags.group("Output");
  flags.text("--log-dir", "DIR", values.log_dir, "Folder of worker_<rank>.log and scheduler.log", ".");
  flags.taken("--join", "{True,False}", "True: wait for the workers; False, the default: leave them in the background",
              [&values](const std::string& word) { values.join = truth_of("--join", word); });
  flags.text("--worker-log-name", "NAME", values.worker_log_name,
             "Instead of worker; {ip} and {hostname} are replaced");
  flags.taken("--tail-worker-log", "R,R", "With --join True, ranks whose output is shown; -1, the default: all",
              [&values](const std::string& word) { values.tail_worker_log = word; });
  flags.group("Accepted");
  flags.taken("--sim-level", "N", "-1; dry runs are refused", check_simulation);
  flags.whole("--sim-rank-id", values.sim_rank_id, -1, "Changes nothing without a dry run");
  flags.taken("--rank-table-file", "FILE", "Empty; a file is refused", check_rank_table);
}

void check_numbers(const MsrunFlags& values) {
  if (values.worker_num < values.local_worker_num) {
    config_error("--worker-num is {}, below --local-worker-num {}; use at least {}", values.worker_num,
                 values.local_worker_num, values.local_worker_num);
  }
  if (values.worker_num % values.local_worker_num != 0) {
    config_error(
        "--worker-num is {}, and --local-worker-num is {}, which does not divide it; each node needs as many "
        "workers",
        values.worker_num, values.local_worker_num);
  }
  if (values.master_addr.find(':') != std::string::npos) {
    config_error("--master-addr is {}; use an IPv4 address or a host name", shown_text(values.master_addr));
  }
  if (values.worker_log_name.find('/') != std::string::npos) {
    config_error("--worker-log-name is {}, a path; give a name, and the folder with --log-dir",
                 shown_text(values.worker_log_name));
  }
  launch::parse_bind_core(values.bind_core);
}

void set_nodes(const MsrunFlags& values, launcher::Options& options) {
  const int nodes = values.worker_num / values.local_worker_num;
  options.nodes = {nodes, nodes};
  options.meeting = {.host = values.master_addr, .port = static_cast<std::uint16_t>(values.master_port)};
  const bool here = comm::tcp::is_local(values.master_addr);
  options.coordinator = here ? Host::kFirst : Host::kOther;
  if (nodes == 1) {
    if (!here) {
      config_error(
          "--master-addr {} is not this host, where all {} workers run; leave the flag out, or raise "
          "--worker-num",
          shown_text(values.master_addr), values.worker_num);
    }
    options.coordinator = Host::kThis;
    return;
  }
  if (values.node_rank >= nodes) {
    config_error("--node-rank is {}, but there are {} nodes of {} workers; use 0 to {}, or -1", values.node_rank, nodes,
                 values.local_worker_num, nodes - 1);
  }
  options.node_rank = values.node_rank;
}

}  // namespace

void add_msrun(Flags& flags, MsrunFlags& values) {
  add_workers(flags, values);
  add_output(flags, values);
}

launcher::Options options_of(const MsrunFlags& values) {
  check_numbers(values);
  launcher::Options options{.tool = launcher::Tool::kMsrun, .run_id = "msrun", .workers = values.local_worker_num};
  set_nodes(values, options);
  const int seconds = values.cluster_time_out < 0 ? kYear_s : values.cluster_time_out;
  options.times.join = Milliseconds(std::int64_t{1000} * seconds);
  if (!values.log_dir.empty()) options.log_dir = values.log_dir;
  options.worker_log_name = values.worker_log_name;
  options.bind_core = values.bind_core;
  if (values.join) options.tee.otherwise = launcher::Streams::kBoth;
  if (values.tail_worker_log != "-1") {
    options.shown_workers = launcher::parse_local_ranks("--tail-worker-log", values.tail_worker_log);
  }
  return options;
}

}  // namespace loom::cli
