// Documents: a file's text as one mapping of Values.
//
// YAML      one document, a mapping; keys are scalars and occur once. Line marks are the text's.
// JSON      an object; keys occur once. Marks name the file only.
// Bytes     UTF-8, of a regular file: a pipe or a device is refused without being opened for long.
// Limits    16 MiB, 64 levels, and a million values once YAML's aliases are written out; all far above what a person
//           writes.
// Errors    ConfigError with file, line and column. DocumentWords has the messages that differ between kinds of file.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "engine/config/value.h"

namespace loom::config {

// The messages of one kind of file. Names in braces are filled in: {where} is file:line:column, {file} the file.
struct DocumentWords {
  // The text is not YAML; {problem} is the reason.
  std::string_view unreadable =
      "{where}: not readable as YAML ({problem}); check indentation, colons and quotes here and in the line above";
  // The same where the parser met an alias (*name) that nothing defines; empty: as `unreadable`.
  std::string_view unknown_alias = "";
  std::string_view empty = "{file}: the file has no keys; write key: value lines";
  // {kind} is "a list" or "a single value".
  std::string_view no_mapping = "{where}: the file is {kind}; write key: value lines";
  // {path} is the dotted key, {first} the line of its first occurrence.
  std::string_view repeated = "{where}: {path} is given again, first at line {first}; keep one";
};

// The bytes of `path`, a regular file. ConfigError when it is something else, is longer than 16 MiB or cannot be read;
// `wanted` ends the latter: "give the path of WANTED".
std::string read_text(const std::filesystem::path& path, std::string_view wanted);

// Messages call the text `file_name`. YAML is read with an end of line appended: if a text that has one already ends
// too early, the mark is on the next line.
Value parse_yaml(std::string_view text, std::string_view file_name, const DocumentWords& words = {});
// The same as PyYAML's safe loader reads it: << merges mappings, own keys win and earlier mappings before later ones;
// an anchor that is defined twice is refused with both places.
Value parse_python_yaml(std::string_view text, std::string_view file_name, const DocumentWords& words = {});
Value parse_json(std::string_view text, std::string_view file_name);

}  // namespace loom::config
