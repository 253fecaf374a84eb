// Command lines of the program: one word a line.
#include <vector>

#include "engine/cli/arguments.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace loom;
  std::vector<std::string> words{"shardloom"};
  std::string word;
  for (const char c : fuzz::text_of(data, size)) {
    if (c == '\n') {
      words.push_back(std::exchange(word, {}));
    } else if (c != '\0') {  // no argument has one
      word += c;
    }
  }
  words.push_back(word);
  std::vector<const char*> argv;
  for (const std::string& w : words) argv.push_back(w.c_str());
  return fuzz::answered_or_refused([&] {
    cli::parse_arguments(static_cast<int>(argv.size()), argv.data(),
                         {.cores = 2, .mpi_ranks = 0, .mpi_local_ranks = 0});
  });
}
