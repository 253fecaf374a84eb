// The flags of msrun: what was written, and the launcher's options that follow from it. Private to engine/cli.
#pragma once

#include <string>

#include "engine/cli/words/flags.h"
#include "engine/launcher/options.h"

namespace loom::cli {

struct MsrunFlags {
  int worker_num = 8, local_worker_num = 8;
  std::string master_addr = "127.0.0.1";
  int master_port = 8118;
  int node_rank = -1;
  std::string log_dir{};
  bool join = false;
  int cluster_time_out = 600;
  std::string bind_core = "False";
  int sim_level = -1, sim_rank_id = -1;
  std::string rank_table_file{}, worker_log_name{}, tail_worker_log = "-1";
};

// `values` outlives the parse.
void add_msrun(Flags& flags, MsrunFlags& values);
// ConfigError for values that contradict each other. Without the program.
launcher::Options options_of(const MsrunFlags& values);

}  // namespace loom::cli
