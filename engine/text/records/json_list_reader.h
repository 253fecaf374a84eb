// A JSON file that is one list of objects, never held as a whole. Private to engine/text.
#pragma once

#include <memory>

#include "engine/text/records/record.h"
#include "engine/text/records/record_file.h"

namespace loom::data {

// `text` is the part of the file read so far. Only the edges of objects are searched; the batch parses their
// contents. A record's line is the line on which its object begins.
std::unique_ptr<RecordReader> json_list_reader(std::unique_ptr<RecordFile> file, std::string text);

}  // namespace loom::data
