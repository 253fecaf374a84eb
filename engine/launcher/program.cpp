#include "engine/launcher/program.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"

namespace loom::launcher {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kRunPathCode =
    "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')";

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

bool is_executable(const fs::path& path) { return is_file(path) && ::access(path.c_str(), X_OK) == 0; }

std::optional<std::string> in_path(const std::string& name) {
  const char* const variable = std::getenv("PATH");
  std::string_view folders = variable == nullptr ? "/usr/local/bin:/usr/bin:/bin" : variable;
  while (!name.empty()) {
    const std::size_t colon = folders.find(':');
    const fs::path folder = colon == 0 || folders.empty() ? "." : fs::path(folders.substr(0, colon));
    if (is_executable(folder / name)) return (folder / name).string();
    if (colon == std::string_view::npos) break;
    folders.remove_prefix(colon + 1);
  }
  return std::nullopt;
}

std::string this_program() {
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  return error ? "/proc/self/exe" : self.string();
}

std::string python() {
  const char* const named = std::getenv("PYTHON_EXEC");
  const std::string name = named == nullptr || *named == '\0' ? "python3" : named;
  const bool is_path = name.find('/') != std::string::npos;
  const auto found = is_path ? (is_executable(name) ? std::optional(name) : std::nullopt) : in_path(name);
  if (found) return *found;
  config_error("the program is a Python script, but there is no {}; install python3, or export PYTHON_EXEC", name);
}

void check_script(const std::string& script, const std::string& tool) {
  if (is_file(script)) return;
  config_error(
      "{}: {} does not exist or is not a file; give the path of a script, or an executable file with "
      "--no-python",
      tool, shown_text(script));
}

std::vector<std::string> with_rest(std::vector<std::string> first, const std::vector<std::string>& words,
                                   std::size_t from) {
  first.insert(first.end(), words.begin() + static_cast<std::ptrdiff_t>(from), words.end());
  return first;
}

// An executable file: of this folder, of PATH, or this program under its own name.
std::string executable(const std::string& word, const std::string& tool) {
  const bool is_path = word.find('/') != std::string::npos;
  if (is_executable(word)) return is_path ? word : "./" + word;
  if (!is_path) {
    if (const auto found = in_path(word)) return *found;
    if (word == "python") return python();
    if (fs::path(this_program()).filename() == word) return this_program();
  }
  if (is_file(word))
    config_error("{}: {} is not executable; run chmod +x {}", tool, shown_text(word), shown_text(word));
  std::error_code error;
  if (fs::is_directory(word, error)) {
    config_error("{}: {} is a folder; give an executable file or a script", tool, shown_text(word));
  }
  config_error("{}: {} does not exist{}; give a command of shardloom, an executable file or a Python script", tool,
               shown_text(word), is_path ? "" : " here or in PATH");
}

// "python script.py": a script that is not there would fail in every worker.
void check_script_of_python(const std::vector<std::string>& words, const std::string& tool) {
  const std::string name = fs::path(words.front()).filename();
  if (!name.starts_with("python")) return;
  for (std::size_t i = 1; i < words.size(); ++i) {
    if (words[i].starts_with("-u")) continue;
    if (!words[i].starts_with('-') && words[i].ends_with(".py")) check_script(words[i], tool);
    return;
  }
}

}  // namespace

std::vector<std::string> find_program(const ProgramWords& request) {
  const std::vector<std::string>& words = request.words;
  const std::string& tool = request.tool;
  if (words.empty() || words.front().empty()) {
    config_error("{}: no program is given; use shardloom {} FLAGS PROGRAM ARGS, as in shardloom {} FLAGS train ...",
                 tool, tool, tool);
  }
  const std::string& first = words.front();
  if (request.entry == Entry::kModule) return with_rest({python(), "-u", "-m"}, words, 0);
  if (request.entry == Entry::kRunPath) {
    check_script(first, tool);
    return with_rest({python(), "-u", "-c", std::string(kRunPathCode)}, words, 0);
  }
  if (request.entry == Entry::kGuess) {
    if (std::ranges::find(request.commands, first) != request.commands.end()) {
      return with_rest({this_program()}, words, 0);
    }
    if (first.ends_with(".py")) {
      check_script(first, tool);
      return with_rest({python(), "-u"}, words, 0);
    }
  }
  const std::string found = executable(first, tool);
  check_script_of_python(words, tool);
  return with_rest({found}, words, 1);
}

}  // namespace loom::launcher
