// Records of text files; the first byte says of which kind: j json, l jsonl, c csv, t txt.
#include <map>

#include "engine/text/records/record.h"
#include "tests/fuzz/fuzz.h"

LOOM_FUZZ_TARGET(records) {
  using namespace loom;
  static const std::map<char, std::string> kNames = {{'j', "a.json"}, {'l', "a.jsonl"}, {'c', "a.csv"}, {'t', "a.txt"}};
  const std::string_view input = fuzz::text_of(data, size);
  if (input.empty() || !kNames.contains(input.front())) return 0;
  const auto path = fuzz::written(kNames.at(input.front()), input.substr(1));
  return fuzz::answered_or_refused([&] {
    const auto reader = data::open_records(path);
    while (const auto batch = reader->next()) {
      for (const data::Record& record : batch->records()) {
        if (!record.columns.is_object()) fuzz::found("a record that is no object", record.where);
        [[maybe_unused]] const auto text = record.columns.dump();  // throws where a text is no UTF-8
      }
    }
    if (reader->done_bytes() != reader->all_bytes()) fuzz::found("not all bytes were given", path.string());
  });
}
