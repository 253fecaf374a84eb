// The flags of torchrun: what was written, and the launcher's options that follow from it. Private to engine/cli.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/cli/words/command.h"
#include "engine/cli/words/flags.h"
#include "engine/launcher/options.h"
#include "engine/launcher/program.h"

namespace loom::cli {

struct TorchrunFlags {
  std::string nodes = "1:1", workers = "1";
  int node_rank = 0;
  std::string master_addr = "127.0.0.1";
  int master_port = 29500;
  std::string backend = "static", endpoint{}, id = "none", conf{};
  bool standalone = false;
  int max_restarts = 0;
  double monitor_interval = 0.1;
  std::string start_method = "spawn", role = "default", local_addr{};
  bool module = false, no_python = false, run_path = false;
  std::string log_dir{}, redirects = "0", tee = "0", shown{};
};

// `values` outlives the parse.
void add_torchrun(Flags& flags, TorchrunFlags& values);
// ConfigError for values that contradict each other. Without the program.
launcher::Options options_of(const TorchrunFlags& values);
launcher::Entry entry_of(const TorchrunFlags& values);

}  // namespace loom::cli
