#include "engine/launcher/option_grammar.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <system_error>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/parse_number.h"
#include "engine/core/shown_text.h"

namespace loom::launcher {
namespace {

constexpr int kMostNodes = 1 << 16;
constexpr int kMostWorkers = 4096;
constexpr int kMostSeconds = 30 * 24 * 3600;

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0, end = 0; end != std::string_view::npos; begin = end + 1) {
    end = text.find(at, begin);
    parts.push_back(text.substr(begin, end - begin));
  }
  return parts;
}

std::optional<Streams> streams_of(std::string_view text) {
  const auto number = parse_number<int>(text);
  if (!number || *number < 0 || *number > 3) return std::nullopt;
  return static_cast<Streams>(*number);
}

bool has(Streams streams, Streams one) { return (static_cast<unsigned>(streams) & static_cast<unsigned>(one)) != 0U; }

Streams chosen(const StreamChoice& choice, int local_rank) {
  const auto found = choice.of_worker.find(local_rank);
  return found == choice.of_worker.end() ? choice.otherwise : found->second;
}

Milliseconds seconds_of(std::string_view key, std::string_view value) {
  const auto seconds = parse_number<double>(value);
  if (!seconds || !(*seconds > 0) || *seconds > kMostSeconds) {
    config_error("--rdzv-conf has {}={}; use seconds above 0, as in {}=600", key, shown_text(value), key);
  }
  return Milliseconds(static_cast<std::int64_t>(*seconds * 1000));
}

bool truth_of(std::string_view key, std::string_view value) {
  for (const char* yes : {"1", "true", "True", "t", "yes", "y"}) {
    if (value == yes) return true;
  }
  for (const char* no : {"0", "false", "False", "f", "no", "n"}) {
    if (value == no) return false;
  }
  config_error("--rdzv-conf has {}={}; use true or false", key, shown_text(value));
}

// Settings of torchrun's for stores and threads that it has and this launcher does not.
constexpr std::array<std::string_view, 6> kWithoutEffect{
    "close_timeout", "rank", "store_type", "use_agent_store", "keep_alive_max_attempt", "heartbeat_timeout"};

}  // namespace

const char* name_of(Tool tool) { return tool == Tool::kTorchrun ? "torchrun" : "msrun"; }

bool StreamChoice::has_out(int local_rank) const { return has(chosen(*this, local_rank), Streams::kOut); }
bool StreamChoice::has_err(int local_rank) const { return has(chosen(*this, local_rank), Streams::kErr); }
bool StreamChoice::any() const {
  const auto writes = [](const auto& entry) { return entry.second != Streams::kNone; };
  return otherwise != Streams::kNone || std::ranges::any_of(of_worker, writes);
}

NodeRange parse_nodes(const std::string& text) {
  const std::size_t colon = text.find(':');
  const auto least = parse_number<int>(text.substr(0, colon));
  const auto most = colon == std::string::npos ? least : parse_number<int>(text.substr(colon + 1));
  if (!least || !most || *least < 1 || *most > kMostNodes) {
    config_error("--nnodes is {}; use a number of nodes of at least 1, or MIN:MAX, as in 2 or 2:4", shown_text(text));
  }
  if (*least > *most) {
    config_error("--nnodes is {}, where MIN is above MAX; use {}:{}", shown_text(text), *most, *least);
  }
  return {*least, *most};
}

StreamChoice parse_streams(std::string_view flag, const std::string& text) {
  const auto refuse = [&] {
    config_error(
        "{} is {}; use 0 (none), 1 (stdout), 2 (stderr) or 3 (both), or one for each local rank, as in 0:3,1:0", flag,
        shown_text(text));
  };
  StreamChoice choice;
  if (const auto all = streams_of(text)) {
    choice.otherwise = *all;
    return choice;
  }
  for (const std::string_view part : split(text, ',')) {
    const std::size_t colon = part.find(':');
    const auto rank = parse_number<int>(part.substr(0, colon));
    const auto streams = colon == std::string_view::npos ? std::nullopt : streams_of(part.substr(colon + 1));
    if (!rank || *rank < 0 || *rank >= kMostWorkers || !streams) refuse();
    choice.of_worker[*rank] = *streams;
  }
  return choice;
}

int parse_workers(const std::string& text, int cores, int devices) {
  if (text == "cpu") return cores;
  if (text == "auto") return devices > 0 ? devices : cores;
  if (text == "gpu") {
    if (devices > 0) return devices;
    config_error("--nproc-per-node is gpu, but /dev lists no NVIDIA device; use a number, cpu ({}) or auto", cores);
  }
  const auto workers = parse_number<int>(text);
  if (!workers || *workers < 1 || *workers > kMostWorkers) {
    config_error("--nproc-per-node is {}; use a number from 1 to {}, auto, gpu or cpu", shown_text(text), kMostWorkers);
  }
  return *workers;
}

int devices_of_this_host() {
  constexpr std::string_view kName = "nvidia";
  int devices = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", error)) {
    const std::string name = entry.path().filename();
    if (name.starts_with(kName) && parse_number<unsigned>(std::string_view(name).substr(kName.size()))) ++devices;
  }
  return devices;
}

RendezvousSettings parse_rendezvous_settings(const std::string& text, Times& times) {
  RendezvousSettings settings;
  if (text.empty()) return settings;
  for (const std::string_view part : split(text, ',')) {
    const std::size_t equals = part.find('=');
    const std::string_view key = part.substr(0, equals);
    if (equals == std::string_view::npos || key.empty()) {
      config_error("--rdzv-conf is {}; use KEY=VALUE,KEY=VALUE, as in timeout=600,last_call_timeout=30",
                   shown_text(text));
    }
    const std::string_view value = part.substr(equals + 1);
    if (key == "timeout" || key == "join_timeout") {
      times.join = seconds_of(key, value);
    } else if (key == "last_call_timeout") {
      times.last_call = seconds_of(key, value);
    } else if (key == "read_timeout") {
      times.read = seconds_of(key, value);
      times.heartbeat = std::min(times.heartbeat, times.read / 4);
    } else if (key == "is_host") {
      settings.is_host = truth_of(key, value);
    } else if (std::ranges::find(kWithoutEffect, key) == kWithoutEffect.end()) {
      config_error(
          "--rdzv-conf has the unknown key {}; use timeout, join_timeout, last_call_timeout, read_timeout, "
          "close_timeout or is_host",
          shown_text(key));
    }
  }
  return settings;
}

std::vector<int> parse_local_ranks(const std::string& flag, const std::string& text) {
  std::vector<int> ranks;
  if (text.empty()) return ranks;
  for (const std::string_view part : split(text, ',')) {
    const auto rank = parse_number<int>(part);
    if (!rank || *rank < 0 || *rank >= kMostWorkers) {
      config_error("{} is {}; use ranks behind commas, as in 0,2", flag, shown_text(text));
    }
    ranks.push_back(*rank);
  }
  return ranks;
}

}  // namespace loom::launcher
