#include "engine/launcher/worker_environment.h"

#include <unistd.h>

#include <cstdlib>
#include <fmt/format.h>
#include <map>

namespace loom::launcher {
namespace {

using Variables = std::map<std::string, std::string>;

Variables of_this_process() {
  Variables variables;
  for (char** entry = ::environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::size_t equals = text.find('=');
    if (equals != std::string::npos) variables[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return variables;
}

void set_torchrun(Variables& variables, const Options& options, const Assigned& assigned, int local_rank,
                  const comm::tcp::Address& meeting) {
  const auto set = [&](const char* name, int value) { variables[name] = fmt::to_string(value); };
  set("RANK", assigned.first_rank + local_rank);
  set("LOCAL_RANK", local_rank);
  set("WORLD_SIZE", assigned.world_size);
  set("LOCAL_WORLD_SIZE", options.workers);
  set("GROUP_RANK", assigned.node);
  set("GROUP_WORLD_SIZE", assigned.nodes);
  set("ROLE_RANK", assigned.first_role_rank + local_rank);
  set("ROLE_WORLD_SIZE", assigned.role_world_size);
  set("MASTER_PORT", meeting.port);
  set("TORCHELASTIC_RESTART_COUNT", assigned.restarts);
  set("TORCHELASTIC_MAX_RESTARTS", options.max_restarts);
  variables["ROLE_NAME"] = options.role;
  variables["MASTER_ADDR"] = meeting.host;
  variables["TORCHELASTIC_RUN_ID"] = options.run_id;
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "True";
}

void set_msrun(Variables& variables, const Options& options, const Assigned& assigned, int local_rank,
               const comm::tcp::Address& meeting) {
  const auto set = [&](const char* name, auto value) { variables[name] = fmt::to_string(value); };
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK"}) variables.erase(name);
  set("MS_WORKER_NUM", assigned.world_size);
  set("MS_SCHED_PORT", meeting.port);
  set("MS_NODE_ID", assigned.first_rank + local_rank);
  set("MS_CLUSTER_TIMEOUT", std::chrono::duration_cast<std::chrono::seconds>(options.times.join).count());
  set("DEVICE_ID", local_rank);
  set("RANK_ID", assigned.first_rank + local_rank);
  set("RANK_SIZE", assigned.world_size);
  set("LOCAL_WORLD_SIZE", options.workers);
  variables["MS_ROLE"] = "MS_WORKER";
  variables["MS_SCHED_HOST"] = meeting.host;
}

}  // namespace

bool sets_openmp_threads(const Options& options) {
  return options.workers > 1 && std::getenv("OMP_NUM_THREADS") == nullptr;
}

std::vector<std::string> worker_environment(const Options& options, const Assigned& assigned, int local_rank,
                                            const comm::tcp::Address& meeting,
                                            const std::filesystem::path& error_file) {
  Variables variables = of_this_process();
  if (options.tool == Tool::kTorchrun) {
    set_torchrun(variables, options, assigned, local_rank, meeting);
    if (!error_file.empty()) variables["TORCHELASTIC_ERROR_FILE"] = error_file.string();
  } else {
    set_msrun(variables, options, assigned, local_rank, meeting);
  }
  if (sets_openmp_threads(options)) variables["OMP_NUM_THREADS"] = "1";
  std::vector<std::string> entries;
  for (const auto& [name, value] : variables) entries.push_back(fmt::format("{}={}", name, value));
  return entries;
}

}  // namespace loom::launcher
