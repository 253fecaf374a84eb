// Grammars of the launchers' flags: texts that are more than a number or a word.
//
// Errors   ConfigError with the flag, the text, the grammar.
#pragma once

#include <string>
#include <string_view>

#include "engine/launcher/options.h"

namespace loom::launcher {

// "2" or "2:4".
NodeRange parse_nodes(const std::string& text);
// "3", or "1:3,0:0" by local rank.
StreamChoice parse_streams(std::string_view flag, const std::string& text);
// "auto", "gpu", "cpu" or a number. The devices are those that /dev lists.
int parse_workers(const std::string& text, int cores, int devices);
// How many NVIDIA devices /dev lists.
int devices_of_this_host();
// --rdzv-conf "timeout=600,last_call_timeout=30", into `times`. Keys of torchrun's that change nothing here are taken.
// True if is_host is there and says that this agent has the coordinator; false if it says that it does not.
struct RendezvousSettings {
  std::optional<bool> is_host{};
};
RendezvousSettings parse_rendezvous_settings(const std::string& text, Times& times);
// "0,2"
std::vector<int> parse_local_ranks(const std::string& flag, const std::string& text);

}  // namespace loom::launcher
