#include "tests/build/private_headers.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <regex>
#include <sstream>

#include "tests/build/tree_files.h"

namespace loom::build_test {
namespace {

namespace fs = std::filesystem;

bool is_below(const std::string& file, const std::string& folder) { return file.starts_with(folder + "/"); }

// The comment that a file begins with, its lines joined.
std::string first_comment(const fs::path& path) {
  std::istringstream lines(read_text(path));
  std::string comment;
  for (std::string line; std::getline(lines, line) && line.starts_with("//");) comment += line.substr(2);
  return comment;
}

// tests/tensor of engine/tensor, tests/sharding of sharding/fsdp, tests of engine.
std::string tests_of(const std::string& room) {
  if (room == "engine") return "tests";
  constexpr std::string_view kEngine = "engine/";
  const std::string seat = room.starts_with(kEngine) ? room.substr(kEngine.size()) : room;
  return "tests/" + seat.substr(0, seat.find('/'));
}

class PrivateLine {
 public:
  PrivateLine(const fs::path& root, std::span<const std::string> installed) : root_(root), installed_(installed) {}

  void check(const std::string& file) {
    const bool is_installed = file.ends_with(".h") && !room_of(file) &&
                              std::ranges::any_of(installed_, [&](const auto& floor) { return is_below(file, floor); });
    if (const auto& room = room_of(file); room && !is_below(file, *room)) {
      problems_.push_back(fmt::format("{}: is private to {} and does not stand in it; name its own room", file, *room));
    }
    for (const IncludeLine& include : quoted_includes(root_ / file)) {
      const auto& room = room_of(include.path);
      if (!room) continue;
      if (!is_below(file, *room) && !is_below(file, tests_of(*room))) {
        report(file, include, *room, fmt::format("use what {} offers, or make the header public", *room));
      } else if (is_installed) {
        report(file, include, *room,
               "and not installed, while this header is; include it in the source, or make both private");
      }
    }
  }

  std::vector<std::string> take() { return std::move(problems_); }

 private:
  const std::optional<std::string>& room_of(const std::string& header) {
    const auto [entry, is_new] = rooms_.try_emplace(header);
    if (is_new && header.ends_with(".h")) entry->second = private_room(root_, header);
    return entry->second;
  }

  void report(const std::string& file, const IncludeLine& include, const std::string& room, std::string_view next) {
    problems_.push_back(fmt::format("{}:{}: includes \"{}\", which is private to {}{}{}", file, include.line,
                                    include.path, room, next.starts_with("and") ? " " : "; ", next));
  }

  const fs::path& root_;
  const std::span<const std::string> installed_;
  std::map<std::string, std::optional<std::string>> rooms_;
  std::vector<std::string> problems_;
};

}  // namespace

std::optional<std::string> private_room(const fs::path& root, const std::string& header) {
  constexpr std::string_view kInternal = "/internal/";
  if (const auto at = header.find(kInternal); at != std::string::npos) return header.substr(0, at);
  static const std::regex kPrivate("Private to ([a-z][a-z_0-9/]*)\\.");
  const std::string comment = first_comment(root / header);
  std::smatch match;
  if (!std::regex_search(comment, match, kPrivate)) return std::nullopt;
  return match[1].str();
}

std::vector<std::string> private_problems(const fs::path& root, std::span<const std::string> folders,
                                          std::span<const std::string> installed) {
  PrivateLine line(root, installed);
  for (const std::string& file : files_below(root, folders, {".h", ".cpp"})) line.check(file);
  return line.take();
}

}  // namespace loom::build_test
