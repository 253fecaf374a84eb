// Records: the rows of data sets in files of any kind, one JSON object each.
//
// Files      by the text behind the last dot: json, jsonl, csv, txt, parquet.
// Batches    a reader gives raw pieces of its file in their order; the costly part, parsing, is the batch's own, so
//            that several threads do it. A batch is a few hundred KiB; memory does not grow with the file.
// Records    the same ones in the same order however batches are spread over threads.
// Threads    a reader belongs to one thread. A batch belongs to its holder, and does not need its reader.
// Errors     ConfigError with file and line (row of a table) for malformed input; nothing is skipped.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace loom::data {

struct Record {
  nlohmann::ordered_json columns;  // an object
  std::string where;               // "data/a.jsonl:12", "data/b.parquet: row 7"; lines and rows count from 1
};

class RecordBatch {
 public:
  virtual ~RecordBatch() = default;
  virtual std::vector<Record> records() const = 0;
};

class RecordReader {
 public:
  virtual ~RecordReader() = default;
  // Nothing behind the last one.
  virtual std::unique_ptr<RecordBatch> next() = 0;
  // Bytes of the file: returned so far, and in total.
  virtual std::uint64_t done_bytes() const = 0;
  virtual std::uint64_t all_bytes() const = 0;
};

std::unique_ptr<RecordReader> open_records(const std::filesystem::path& file);

// The files of a path: itself, or in a folder all files of the extension that most files have, by name; ties go to
// the one that comes first in the list above. ConfigError that names `flag`: no such path, no readable file.
std::vector<std::filesystem::path> record_files(const std::string& flag, const std::filesystem::path& path);

}  // namespace loom::data
