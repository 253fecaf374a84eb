// Files whose lines are records: jsonl, txt, json with an object a line. Private to engine/text.
#pragma once

#include <memory>

#include "engine/text/records/record.h"
#include "engine/text/records/record_file.h"

namespace loom::data {

enum class LineKind : std::uint8_t {
  kJsonl,  // a line is an object; lines of white space alone are ignored
  kJson,   // the same, but a file of one object that holds columns is refused
  kText    // a line, without its end, is column `text`
};

// `text` is the part of the file read so far.
std::unique_ptr<RecordReader> line_reader(std::unique_ptr<RecordFile> file, LineKind kind, std::string text = {});

}  // namespace loom::data
