#include "tests/build/source_tree.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <iterator>
#include <optional>
#include <regex>
#include <sstream>

#include "tests/build/tree_files.h"

namespace loom::build_test {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> words(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

std::vector<std::string> project_links(const std::string& text) {
  constexpr std::string_view kPrefix = "shardloom::";
  std::vector<std::string> links;
  for (const std::string& word : words(text)) {
    if (word.starts_with(kPrefix)) links.push_back(word.substr(kPrefix.size()));
  }
  return links;
}

// `folder`, its parent, ... up to but without the root.
std::vector<std::string> upwards(std::string folder) {
  std::vector<std::string> folders;
  for (; !folder.empty(); folder = parent(folder)) folders.push_back(folder);
  return folders;
}

class Edges {
 public:
  explicit Edges(std::span<const Target> targets) : targets_(targets) {}

  std::vector<const Target*> owners(const std::string& file) const {
    const std::string source = fs::path(file).replace_extension(".cpp").generic_string();
    auto owning = select([&](const Target& target) {
      return std::ranges::any_of(target.sources,
                                 [&](const std::string& s) { return target.folder + "/" + s == source; });
    });
    if (!owning.empty()) return owning;
    for (const std::string& folder : upwards(parent(file))) {
      owning = select([&](const Target& target) { return target.folder == folder; });
      if (!owning.empty()) return owning;
    }
    return {};
  }

  bool reaches(const Target& from, const Target& to) const {
    std::set<std::string> seen{from.name};
    std::vector<std::string> open = from.public_links;
    open.insert(open.end(), from.private_links.begin(), from.private_links.end());
    while (!open.empty()) {
      const std::string name = open.back();
      open.pop_back();
      if (!seen.insert(name).second) continue;
      if (const Target* target = find(name)) {
        open.insert(open.end(), target->public_links.begin(), target->public_links.end());
      }
    }
    return seen.contains(to.name);
  }

  const Target* find(const std::string& name) const {
    const auto found = std::ranges::find(targets_, name, &Target::name);
    return found == targets_.end() ? nullptr : &*found;
  }

 private:
  template <class Holds>
  std::vector<const Target*> select(Holds holds) const {
    std::vector<const Target*> selected;
    for (const Target& target : targets_) {
      if (holds(target)) selected.push_back(&target);
    }
    return selected;
  }

  std::span<const Target> targets_;
};

std::string joined_names(std::span<const Target* const> targets) {
  std::vector<std::string> names;
  for (const Target* target : targets) names.push_back(target->name);
  return fmt::format("{}", fmt::join(names, " or "));
}

// The #include lines of the files of one tree, held against its edges.
class Includes {
 public:
  Includes(const fs::path& root, const Edges& edges, std::span<const std::string> shared)
      : root_(root), edges_(edges), shared_(shared) {}

  void check(const std::string& file) {
    if (is_shared(file)) return;  // checked with each file that includes it
    const auto includers = edges_.owners(file);
    if (includers.empty()) {
      problems_.push_back(fmt::format("{}: no target owns it", file));
      return;
    }
    std::set<std::string> seen;
    for (const IncludeLine& include : quoted_includes(root_ / file)) {
      check_include(fmt::format("{}:{}: includes", file, include.line), includers, include.path, seen);
    }
  }

  std::vector<std::string> take() { return std::move(problems_); }

 private:
  bool is_shared(const std::string& file) const {
    return std::ranges::any_of(shared_, [&](const auto& path) { return file == path || file.starts_with(path + "/"); });
  }

  // `place` is where the header is included, directly or through shared ones.
  void check_include(const std::string& place, std::span<const Target* const> includers, const std::string& header,
                     std::set<std::string>& seen) {
    if (!fs::exists(root_ / header)) {
      problems_.push_back(fmt::format("{} \"{}\", which does not exist; write the path from the root of the repository",
                                      place, header));
    } else if (is_shared(header)) {
      if (!seen.insert(header).second) return;
      for (const IncludeLine& include : quoted_includes(root_ / header)) {
        check_include(fmt::format("{} \"{}\", which includes", place, header), includers, include.path, seen);
      }
    } else if (const auto owners = edges_.owners(header); !any_reaches(includers, owners)) {
      problems_.push_back(fmt::format(
          "{} \"{}\" of {}, which {} does not link; add the edge in {}/CMakeLists.txt or move the code", place, header,
          owners.empty() ? "no target" : joined_names(owners), joined_names(includers), includers.front()->folder));
    }
  }

  bool any_reaches(std::span<const Target* const> includers, std::span<const Target* const> owners) const {
    return std::ranges::any_of(includers, [&](const Target* from) {
      return std::ranges::any_of(owners, [&](const Target* to) { return edges_.reaches(*from, *to); });
    });
  }

  const fs::path& root_;
  const Edges& edges_;
  const std::span<const std::string> shared_;
  std::vector<std::string> problems_;
};

std::optional<int> floor_of(const House& house, const std::string& folder) {
  for (const std::string& above : upwards(folder)) {
    for (const auto& [name, floor] : house.floors) {
      if (name == above) return floor;
    }
  }
  return std::nullopt;
}

std::optional<std::string> floor_problem(const House& house, const Target& from, const Target& to) {
  if (from.folder == to.folder) return std::nullopt;
  const auto from_floor = floor_of(house, from.folder);
  const auto to_floor = floor_of(house, to.folder);
  if (!from_floor || !to_floor) {
    return fmt::format("{}: has no floor; add it to the table of floors", (from_floor ? to : from).folder);
  }
  const bool named = std::ranges::find(house.level_edges, std::pair(from.folder, to.folder)) != house.level_edges.end();
  if (*to_floor < *from_floor || (*to_floor == *from_floor && named)) return std::nullopt;
  return fmt::format("{}/CMakeLists.txt: {} (floor {}) links {} of {} (floor {}); a target links lower floors only",
                     from.folder, from.name, *from_floor, to.name, to.folder, *to_floor);
}

// The words of a CMakeLists.txt without its comments.
std::set<std::string> cmake_words(const fs::path& path) {
  static const std::regex kNoise("#[^\n]*|[()\"]");
  const auto list = words(std::regex_replace(read_text(path), kNoise, " "));
  return {list.begin(), list.end()};
}

std::optional<std::string> unlisted_problem(const fs::path& root, const std::string& source) {
  for (const std::string& folder : upwards(parent(source))) {
    const fs::path list = root / folder / "CMakeLists.txt";
    if (!fs::exists(list)) continue;
    if (cmake_words(list).contains(fs::path(source).lexically_relative(folder).generic_string())) return std::nullopt;
    return fmt::format("{}: {}/CMakeLists.txt does not name it; list it there or remove it", source, folder);
  }
  return fmt::format("{}: no folder above it has a CMakeLists.txt", source);
}

}  // namespace

std::vector<Target> parse_link_edges(std::string_view text) {
  std::vector<Target> targets;
  std::istringstream stream{std::string(text)};
  for (std::string line; std::getline(stream, line);) {
    std::istringstream fields(line);
    std::string name, folder, sources, public_links, private_links;
    std::getline(fields, name, '|') && std::getline(fields, folder, '|') && std::getline(fields, sources, '|') &&
        std::getline(fields, public_links, '|') && std::getline(fields, private_links);
    targets.push_back({words(name).at(0), words(folder).at(0), words(sources), project_links(public_links),
                       project_links(private_links)});
  }
  return targets;
}

std::vector<std::string> floor_problems(std::span<const Target> targets, const House& house) {
  const Edges edges(targets);
  std::vector<std::string> problems;
  for (const Target& from : targets) {
    for (const auto* links : {&from.public_links, &from.private_links}) {
      for (const std::string& link : *links) {
        const Target* to = edges.find(link);
        if (to == nullptr) continue;
        if (auto problem = floor_problem(house, from, *to)) problems.push_back(std::move(*problem));
      }
    }
  }
  return problems;
}

std::vector<std::string> include_problems(const fs::path& root, std::span<const std::string> folders,
                                          std::span<const Target> targets, std::span<const std::string> shared) {
  const Edges edges(targets);
  Includes includes(root, edges, shared);
  for (const std::string& file : files_below(root, folders, {".h", ".cpp"})) includes.check(file);
  return includes.take();
}

std::vector<std::string> orphan_problems(const fs::path& root, std::span<const std::string> folders,
                                         const std::set<std::string>& compiled) {
  std::set<std::string> included;
  std::vector<std::string> problems;
  for (const std::string& file : files_below(root, folders, {".h", ".cpp"})) {
    for (const IncludeLine& include : quoted_includes(root / file)) included.insert(include.path);
  }
  for (const std::string& source : files_below(root, folders, {".cpp"})) {
    if (compiled.contains(source)) continue;
    if (auto problem = unlisted_problem(root, source)) problems.push_back(std::move(*problem));
  }
  for (const std::string& header : files_below(root, folders, {".h"})) {
    if (!included.contains(header))
      problems.push_back(fmt::format("{}: nothing includes it; use it or remove it", header));
  }
  return problems;
}

}  // namespace loom::build_test
