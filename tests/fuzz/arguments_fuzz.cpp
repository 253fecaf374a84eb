// Command lines of the program: one word a line. The whole text as CPU_AFFINITY_CONF and as the value of --bind-core.
#include <vector>

#include "engine/cli/words/arguments.h"
#include "tests/fuzz/fuzz.h"

LOOM_FUZZ_TARGET(arguments) {
  using namespace loom;
  const std::string text(fuzz::text_of(data, size));
  fuzz::answered_or_refused([&] { launch::parse_affinity_conf(text); });
  fuzz::answered_or_refused([&] { launch::parse_bind_core(text); });
  std::vector<std::string> words{"shardloom"};
  std::string word;
  for (const char c : text) {
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
                         {.cores = 2, .processes = 0, .local_processes = 0});
  });
}
