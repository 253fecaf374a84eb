#include "engine/cli/commands/several_hosts.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <variant>

#include "engine/cli/commands/launcher_command.h"
#include "engine/cli/words/launcher_words.h"
#include "engine/cli/words/written_flags.h"

namespace loom::cli {
namespace {

using Words = std::vector<std::string>;

// Flags of the launchers, each with a value.
constexpr std::array kOfTorchrun{"--nnodes", "--nproc-per-node", "--node-rank", "--master-addr", "--master-port"};
constexpr std::array kOfMsrun{"--worker-num",  "--local-worker-num", "--node-rank",
                              "--master-addr", "--master-port",      "--log-dir",
                              "--join",        "--cluster-time-out", "--bind-core"};

template <std::size_t kCount>
Words split(const Words& words, const char* tool, const std::array<const char*, kCount>& flags) {
  Words launcher{tool}, rest;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (std::ranges::find(flags, flag_name(words[i])) == flags.end()) {
      rest.push_back(words[i]);
      continue;
    }
    launcher.push_back(words[i]);
    if (words[i].find('=') == std::string::npos && i + 1 < words.size()) launcher.push_back(words[++i]);
  }
  launcher.push_back(std::filesystem::read_symlink("/proc/self/exe").string());
  launcher.insert(launcher.end(), rest.begin(), rest.end());
  return launcher;
}

}  // namespace

std::optional<Words> words_of_several_hosts(const Words& words, const launch::Start& start) {
  if (!start.launcher.empty() || (!words.empty() && words.front() == "plan")) return std::nullopt;
  const auto nodes = value_in(words, "--nnodes");
  if (nodes && *nodes != "1" && *nodes != "1:1") return split(words, "torchrun", kOfTorchrun);
  const auto all = value_in(words, "--worker-num"), here = value_in(words, "--local-worker-num");
  if (all && here && *all != *here) return split(words, "msrun", kOfMsrun);
  return std::nullopt;
}

std::optional<int> run_on_several_hosts(int argc, const char* const* argv, const launch::Start& start,
                                        std::ostream& out) {
  const auto words = words_of_several_hosts({argv + 1, argv + argc}, start);
  if (!words) return std::nullopt;
  Command app("", "shardloom");
  LauncherWords launcher(app);
  const ParsedCommand parsed = launcher.settled(*words);
  if (const auto* help = std::get_if<EarlyExit>(&parsed)) return help->code;
  return run_launcher(std::get<LauncherArguments>(parsed), out);
}

}  // namespace loom::cli
