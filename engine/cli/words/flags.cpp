#include "engine/cli/words/flags.h"

#include "engine/core/error.h"
#include "engine/job/foreign.h"

namespace loom::cli {

void Flags::noted(const job::Key& key, const std::function<void(const std::string& value)>& note) {
  noted(std::string(key.flags), key.kind == job::Kind::kToggle ? 0 : key.kind == job::Kind::kTexts ? -1 : 1, note);
}

void Flags::noted(const std::string& name, int values, const std::function<void(const std::string& value)>& note) {
  command_.add({.names = name, .least = values, .most = values, .take = [note](const std::vector<std::string>& given) {
                  note(given.empty() ? "" : given.back());
                }});
}

void Flags::without_effect(std::span<const job::Key> table, std::vector<std::string>& refused,
                           std::vector<std::string>& without_effect) {
  for (const job::Key& key : table) {
    noted(key, [&](const std::string& value) {
      if (job::accepts(key, value)) {
        without_effect.push_back(job::as_written(key, value));
      } else {
        refused.push_back(job::refusal(key, value));
      }
    });
  }
}

void check_are_values(const Command& command, const std::string& name, const std::string& type,
                      const std::vector<std::string>& words) {
  const std::string flag = name.substr(0, name.find(','));
  for (const std::string& word : words) {
    const bool is_flag = type == "TEXT" ? command.has(word) : word.starts_with("--");
    if (is_flag) config_error("{} needs a value, but {} follows; give {} {}", flag, word, flag, type);
  }
}

void Flags::parts(const std::string& name, const std::string& type, const std::string& about,
                  const std::function<void(const std::vector<std::string>&)>& take) {
  add_list(name, type, "", about, [take](const std::vector<std::string>& given) {
    std::vector<std::string> all;
    for (const std::string& word : given) {
      for (std::size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
        end = word.find(',', begin);
        all.push_back(word.substr(begin, end - begin));
      }
    }
    take(all);
  });
}

void Flags::add(const std::string& name, const std::string& type, const std::string& default_text,
                const std::string& about, const Take& take) {
  // Of a repeated flag the last, as with argparse.
  const TakeList take_last = [take](const std::vector<std::string>& given) { take(given.back()); };
  add_list(name, type, default_text, about, take_last, 1);
}

void Flags::add_list(const std::string& name, const std::string& type, const std::string& default_text,
                     const std::string& about, const TakeList& take, int most) {
  command_.add({.names = name,
                .type = type,
                .default_text = default_text,
                .about = about,
                .group = group_,
                .common = common_,
                .most = most,
                .take = [&command = command_, name, type, take](const std::vector<std::string>& given) {
                  check_are_values(command, name, type, given);
                  take(given);
                }});
}

}  // namespace loom::cli
