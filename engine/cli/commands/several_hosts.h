// Training on several hosts by the program's own flags: `shardloom train --nnodes 2 --node-rank 1 ...`, as launch
// scripts pass the words of torchrun or msrun on. The program is then the launcher of itself. Private to engine/cli.
//
// When     --nnodes is not 1, or --worker-num is not --local-worker-num, and no launcher has started this process.
#pragma once

#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "engine/launch/start.h"

namespace loom::cli {

// The words of the launcher: "torchrun", its flags, the path of this program, and the other words. None where `words`
// (of the program's command line, without the program) ask for one host.
std::optional<std::vector<std::string>> words_of_several_hosts(const std::vector<std::string>& words,
                                                               const launch::Start& start);

// Starts this program on this host, and returns its status; none where the words ask for one host.
std::optional<int> run_on_several_hosts(int argc, const char* const* argv, const launch::Start& start,
                                        std::ostream& out);

}  // namespace loom::cli
