// Plans every published run of a data file and writes the page that compares them.
//
// usage: planner_accuracy [ROWS.json [PAGE.md [ID ...]]]
//
// Defaults  bench/published_rows.json and docs/planner-accuracy.md of the source tree. With IDs: these rows only; PAGE
//           `-` writes none.
// Exit      0; 1 when a row is called out of memory that ran, or the other way round, or when the mean absolute error
//           in speed on the GPU rows that are predicted unchanged exceeds 8 %; 2 for files that cannot be read.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fmt/format.h>
#include <fstream>

#include "bench/accuracy_report.h"

namespace {

using namespace loom::bench;

constexpr double kMeanError = 0.045;

// A folder of this run's own, removed at its end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "planner_accuracy_XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder: " + name);
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

int run(const std::filesystem::path& rows_path, const std::string& page, const std::vector<std::string>& ids) {
  const PublishedRows all = PublishedRows::read(rows_path);
  const TemporaryFolder folder;
  std::vector<Compared> compared;
  bool wrong = false;
  for (const PublishedRow& row : all.rows) {
    if (!ids.empty() && std::ranges::find(ids, row.id) == ids.end()) continue;
    compared.push_back({row, plan_row(all, row, folder.path())});
    wrong = wrong || compared.back().wrong_about_memory();
    fmt::print("{}\n", accuracy_line(compared.back()));
    std::fflush(stdout);
  }
  if (page != "-") {
    std::ofstream out(page);
    out << accuracy_page(all, compared, "bench/planner_accuracy");
    if (!out.flush()) throw std::runtime_error(page + " cannot be written");
  }
  const double mean = mean_speed_error_on_gpus(compared);
  fmt::print("GPU rows predicted unchanged: mean absolute error in speed {:.1f} % (at most {:.1f})\n", 100 * mean,
             100 * kMeanError);
  return wrong || mean > kMeanError ? 1 : 0;
}

}  // namespace

int main_of_planner_accuracy(int argc, char** argv) {
  const std::vector<std::string> given(argv + 1, argv + argc);
  const std::string root = LOOM_SOURCE_DIR;
  try {
    return run(
        !given.empty() ? given[0] : root + "/bench/published_rows.json",
        given.size() > 1 ? given[1] : root + "/docs/planner-accuracy.md",
        given.size() > 2 ? std::vector<std::string>(given.begin() + 2, given.end()) : std::vector<std::string>{});
  } catch (const std::exception& error) {
    fmt::print(stderr, "planner_accuracy: {}\n", error.what());
    return 2;
  }
}
