// Reference-driven programs: every case of a folder, a line each, one verdict.
//
// Output   "NAME: passed, DETAIL", "NAME: FAILED, DETAIL" or "NAME: skipped, DETAIL"; last "N passed, N failed, N
//          skipped".
// Exit     0 only if at least one case ran and all that ran agree.
#pragma once

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fmt/format.h>
#include <string>
#include <string_view>
#include <vector>

namespace loom::test {

class ParityReport {
 public:
  // Under MPI only rank 0 shows its lines.
  explicit ParityReport(bool shown = true) : shown_(shown) {}

  void passed(std::string_view name, std::string_view detail) { line(name, "passed", detail, passed_); }
  void failed(std::string_view name, std::string_view detail) { line(name, "FAILED", detail, failed_); }
  void skipped(std::string_view name, std::string_view detail) { line(name, "skipped", detail, skipped_); }

  // Prints the last line; the program's exit status.
  int finish() const {
    if (shown_) fmt::print("{} passed, {} failed, {} skipped\n", passed_, failed_, skipped_);
    return failed_ == 0 && passed_ > 0 ? 0 : 1;
  }

 private:
  void line(std::string_view name, std::string_view verdict, std::string_view detail, int& count) {
    ++count;
    if (!shown_) return;
    fmt::print("{}: {}, {}\n", name, verdict, detail);
    std::fflush(stdout);
  }

  const bool shown_;
  int passed_ = 0;
  int failed_ = 0;
  int skipped_ = 0;
};

// The subfolders of `folder` that hold `marker`, by name. Throws filesystem_error when there is no such folder.
inline std::vector<std::filesystem::path> case_folders(const std::filesystem::path& folder, std::string_view marker) {
  std::vector<std::filesystem::path> cases;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (std::filesystem::exists(entry.path() / marker)) cases.push_back(entry.path());
  }
  std::sort(cases.begin(), cases.end());
  return cases;
}

// The same at any depth.
inline std::vector<std::filesystem::path> case_folders_below(const std::filesystem::path& folder,
                                                             std::string_view marker) {
  std::vector<std::filesystem::path> cases;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.path().filename() == marker) cases.push_back(entry.path().parent_path());
  }
  std::sort(cases.begin(), cases.end());
  return cases;
}

// The folder of the reference that a case names as its `base`: "shared/reference/training/NAME" is training/NAME in a
// folder above the case.
inline std::filesystem::path base_folder(const std::filesystem::path& case_folder, const std::filesystem::path& base) {
  const std::filesystem::path below = base.parent_path().filename() / base.filename();
  for (auto above = std::filesystem::absolute(case_folder); above != above.parent_path(); above = above.parent_path()) {
    if (std::filesystem::is_directory(above / below)) return above / below;
  }
  throw std::runtime_error(fmt::format("its base {} is in no folder above {}", base.string(), case_folder.string()));
}

// The main of a parity program `NAME DIR`: 2 for a wrong command line or a folder that cannot be read, else what `run`
// returns. `more`: what else its usage shows (" [--mesh NAME=SIZE,...]").
template <class Run>
int parity_main(int argc, char** argv, std::string_view name, Run&& run, std::string_view more = "") {
  if (argc != 2) {
    fmt::print(stderr, "usage: {} DIR{}\n", name, more);
    return 2;
  }
  try {
    return run(std::filesystem::path(argv[1]));
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
}

}  // namespace loom::test
