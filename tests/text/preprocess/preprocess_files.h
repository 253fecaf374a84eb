// Records for tests of handlers: one by hand, those of a file.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/text/preprocess/handler.h"

namespace loom::test {

inline data::Record record_of(const std::string& json, const std::string& where = "a.jsonl:1") {
  return {nlohmann::ordered_json::parse(json), where};
}

inline std::vector<data::Record> records_of(const std::filesystem::path& file) {
  const auto reader = data::open_records(file);
  std::vector<data::Record> records;
  while (const auto batch = reader->next()) {
    for (data::Record& record : batch->records()) records.push_back(std::move(record));
  }
  return records;
}

}  // namespace loom::test
