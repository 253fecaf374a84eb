#include "engine/launch/start.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <initializer_list>
#include <string_view>
#include <thread>

#include "engine/comm/tcp/greeting.h"
#include "engine/core/error.h"
#include "engine/core/parse_number.h"
#include "engine/core/version.h"
#include "engine/launch/run_ranks.h"

namespace loom::launch {
namespace {

int environment_number(std::initializer_list<const char*> names, int least = 1) {
  for (const char* name : names) {
    const char* found = std::getenv(name);
    if (found == nullptr) continue;
    const std::string_view text = found;
    const auto number = parse_number<int>(text);
    if (!number || *number < least) {
      config_error("the environment variable {} is '{}', expected a {}", name, text,
                   least == 0 ? "rank" : "number of ranks");
    }
    return *number;
  }
  return 0;
}

int usable_cores() {
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof(mask), &mask) == 0) return std::max(1, CPU_COUNT(&mask));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

std::string text_of(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const char* found = std::getenv(name);
    if (found != nullptr) return found;
  }
  return {};
}

bool has(const char* name) { return !text_of({name}).empty(); }

// Where a launcher says who a process is.
struct Source {
  const char* launcher;
  const char *rank, *size, *local_rank, *local_size;
};
constexpr Source kTorchrun{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr Source kMsrun{"msrun", "RANK_ID", "RANK_SIZE", "DEVICE_ID", "LOCAL_WORLD_SIZE"};
constexpr Source kOpenMpi{"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                          "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Source kHydra{"hydra", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};
constexpr Source kSlurm{"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ""};

// The one that counts, or null. A local rank tells a launcher's RANK from a variable of another meaning.
const Source* find_source() {
  if (has("RANK") && has("LOCAL_RANK")) return &kTorchrun;
  if (text_of({"MS_ROLE"}) == "MS_WORKER") {
    if (has("RANK_ID") && has("DEVICE_ID")) return &kMsrun;
    if (environment_number({"MS_WORKER_NUM"}) > 1) {
      config_error("msrun started {} workers without RANK_ID; give it --node_rank on each host",
                   text_of({"MS_WORKER_NUM"}));
    }
  }
  if (has("OMPI_COMM_WORLD_SIZE")) return &kOpenMpi;
  if (has("PMI_SIZE")) return &kHydra;
  // An interactive allocation sets the variables for programs too that srun did not start.
  if (has("SLURM_STEP_ID") && has("SLURM_PROCID") && environment_number({"SLURM_NTASKS"}) > 1) return &kSlurm;
  return nullptr;
}

bool is_mpi(const Source& source) { return &source == &kOpenMpi || &source == &kHydra; }

void read_ranks(Start& start, const Source& source) {
  start.launcher = source.launcher;
  start.processes = environment_number({source.size});
  start.process = environment_number({source.rank}, 0);
  if (start.process >= std::max(1, start.processes)) {
    config_error("the environment variable {} is {}, but {} is {}; ranks are 0 to {}", source.rank, start.process,
                 source.size, start.processes, std::max(0, start.processes - 1));
  }
  if (&source == &kSlurm) {
    const std::vector<int> nodes = tasks_per_node(text_of({"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"}));
    const auto node = static_cast<std::size_t>(environment_number({"SLURM_NODEID"}, 0));
    start.local_processes = node < nodes.size() ? nodes[node] : environment_number({"SLURM_NTASKS_PER_NODE"});
  } else {
    start.local_processes = environment_number({source.local_size});
  }
  start.local_process =
      has(source.local_rank) ? environment_number({source.local_rank}, 0) : start.process % start.local_ranks(1);
}

std::string slurm_port() {
  const auto job = parse_number<std::int64_t>(text_of({"SLURM_JOB_ID"}));
  return job ? std::to_string(15000 + *job % 20000) : "";
}

// Where ranks meet: host, port, and the variables that say so.
struct MeetingPoint {
  std::string host, port, from;
};
MeetingPoint meeting_point(const Source& source) {
  if (&source == &kMsrun && has("MS_SCHED_HOST")) {
    return {text_of({"MS_SCHED_HOST"}), text_of({"MS_SCHED_PORT"}), "MS_SCHED_HOST and MS_SCHED_PORT"};
  }
  MeetingPoint point{text_of({"MASTER_ADDR"}), text_of({"MASTER_PORT", "MS_SCHED_PORT"}),
                     "MASTER_ADDR and MASTER_PORT"};
  if (&source == &kSlurm) {
    if (point.host.empty()) point.host = first_host(text_of({"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"}));
    if (point.port.empty()) point.port = slurm_port();
  }
  return point;
}

void settle_tcp(Start& start, const Source& source, const MeetingPoint& point) {
  if (point.host.empty() || point.port.empty()) {
    config_error(
        "{} started {} processes, but they know no meeting point: {} are not set; export the host of rank 0 "
        "and a free port of it",
        source.launcher, start.processes, point.from);
  }
  start.carrier = Carrier::kTcp;
  const bool six = point.host.find(':') != std::string::npos;
  const std::string address = (six ? "[" + point.host + "]" : point.host) + ":" + point.port;
  start.tcp = {
      .rank = start.process,
      .size = start.processes,
      .store = comm::tcp::parse_address(address, point.from),
      .hosts_store = &source != &kMsrun && start.process == 0 && text_of({"TORCHELASTIC_USE_AGENT_STORE"}) != "True",
      .id = start.meeting.empty() ? "run" : start.meeting,
      .interfaces = text_of({"GLOO_SOCKET_IFNAME"}),
      .secret = comm::tcp::secret_of_environment(),
      .reads_memory = text_of({"SHARDLOOM_P2P_DISABLE"}) != "1",
      .version = shardloom_version()};
}

// What the processes of one run, at one attempt, have in common.
std::string run_of(const Source& source, const MeetingPoint& point) {
  if (&source == &kSlurm) return text_of({"SLURM_JOB_ID"}) + "." + text_of({"SLURM_STEP_ID"});
  if (point.port.empty()) return {};
  return point.port + "." + text_of({"TORCHELASTIC_RESTART_COUNT"}) + "." + text_of({"TORCHELASTIC_RUN_ID"});
}

void detect_processes(Start& start) {
  if (text_of({"MS_ROLE"}) == "MS_SCHED") {
    start.is_scheduler = true;
    start.launcher = kMsrun.launcher;
    start.tcp = {.size = environment_number({"MS_WORKER_NUM"}),
                 .store = comm::tcp::parse_address(text_of({"MS_SCHED_HOST"}) + ":" + text_of({"MS_SCHED_PORT"}),
                                                   "MS_SCHED_HOST and MS_SCHED_PORT")};
    return;
  }
  const Source* source = find_source();
  if (source == nullptr) return;
  read_ranks(start, *source);
  if (is_mpi(*source) && has_mpi()) return;
  if (start.processes < 2) {
    start.processes = start.local_processes = 0;
    return;
  }
  const MeetingPoint point = meeting_point(*source);
  start.meeting = run_of(*source, point);
  const bool on_one_host = start.local_processes == 0 ? comm::tcp::is_loopback(point.host) || point.host.empty()
                                                      : start.local_processes == start.processes;
  if (on_one_host && (source == &kTorchrun || source == &kMsrun)) {
    start.carrier = Carrier::kFirst;
  } else {
    settle_tcp(start, *source, point);
  }
}

}  // namespace

Start Start::detect() {
  Start start{.cores = usable_cores(), .affinity_conf = text_of({"CPU_AFFINITY_CONF"})};
  for (const char* name : {"PYTORCH_ALLOC_CONF", "PYTORCH_NPU_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}) {
    if (start.alloc_conf.empty() && !text_of({name}).empty()) {
      start.alloc_conf = text_of({name});
      start.alloc_conf_from = name;
    }
  }
  detect_processes(start);
  return start;
}

int Start::local_ranks(int ranks) const {
  if (!ranks_are_processes()) return ranks;
  return local_processes > 0 ? local_processes : processes;
}

std::string Start::describe() const {
  constexpr std::string_view kTable =
      "; read in the order of torchrun (RANK), msrun (MS_ROLE, RANK_ID), Open MPI (OMPI_COMM_WORLD_RANK), hydra "
      "(PMI_RANK), Slurm (SLURM_PROCID)";
  if (launcher.empty()) return fmt::format("launch: no launcher, ranks are threads{}", kTable);
  const char* const by = carrier == Carrier::kMpi   ? "messages by MPI"
                         : carrier == Carrier::kTcp ? "messages by TCP"
                                                    : "the first process runs all ranks as threads";
  const std::string where = carrier == Carrier::kTcp ? ", meeting at " + comm::tcp::to_text(tcp.store) : "";
  return fmt::format("launch: {}, process {} of {}, {} of {} on this host, {}{}{}", launcher, process, processes,
                     local_process, local_ranks(processes), by, where, kTable);
}

std::string first_host(std::string_view list) {
  const std::size_t bracket = list.find_first_of("[,");
  if (bracket == std::string_view::npos || list[bracket] == ',') return std::string(list.substr(0, bracket));
  const std::size_t end = list.find(']', bracket);
  const std::string_view inside = list.substr(bracket + 1, end == std::string_view::npos ? end : end - bracket - 1);
  const std::string_view after =
      end == std::string_view::npos ? "" : list.substr(end + 1, list.find(',', end) - end - 1);
  return std::string(list.substr(0, bracket)) + std::string(inside.substr(0, inside.find_first_of("-,"))) +
         std::string(after);
}

std::vector<int> tasks_per_node(std::string_view text) {
  std::vector<int> tasks;
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find(','));
    const std::size_t times = part.find("(x");
    const auto count = parse_number<int>(part.substr(0, times));
    const bool repeats = times != std::string_view::npos;
    const auto nodes = !repeats              ? std::optional(1)
                       : part.ends_with(')') ? parse_number<int>(part.substr(times + 2, part.size() - times - 3))
                                             : std::nullopt;
    if (!count || !nodes || *count < 1 || *nodes < 1 || *nodes > 1'000'000) return {};
    tasks.insert(tasks.end(), static_cast<std::size_t>(*nodes), *count);
    text.remove_prefix(std::min(text.size(), part.size() + 1));
  }
  return tasks;
}

}  // namespace loom::launch
