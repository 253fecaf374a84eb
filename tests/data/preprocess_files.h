// Conversion without the command, for tests: records of json, jsonl and txt files, handlers made of flags.
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/data/preprocess/handler.h"

namespace loom::test {

inline data::Record record_of(const std::string& json, const std::string& where = "a.jsonl:1") {
  return {nlohmann::ordered_json::parse(json), where};
}

inline std::vector<data::Record> records_of(const std::filesystem::path& file) {
  std::ifstream stream(file);
  std::vector<data::Record> records;
  const auto add = [&](nlohmann::ordered_json columns, std::size_t number) {
    records.push_back({std::move(columns), file.string() + ":" + std::to_string(number)});
  };
  if (file.extension() == ".json") {
    for (const auto& columns : nlohmann::ordered_json::parse(stream)) add(columns, records.size() + 1);
    return records;
  }
  const bool is_text = file.extension() == ".txt";
  std::size_t number = 0;
  for (std::string line; std::getline(stream, line);) {
    ++number;
    if (!line.empty())
      add(is_text ? nlohmann::ordered_json{{"text", line}} : nlohmann::ordered_json::parse(line), number);
  }
  return records;
}

}  // namespace loom::test
