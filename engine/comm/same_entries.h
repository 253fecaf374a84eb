// same_entries: checks that all ranks have the same list of keys and values; all of them report the differences.
//
// Cost     one 8-byte exchange, whatever the entries are; texts are exchanged only when digests differ.
// Errors   ConfigError, the same text on every rank: "DIFFER: sharding_size: ranks 0-2 have 4, rank 3 has 2;
//          sub_modules_to_wrap: ranks 0-2 list 'layers.3', rank 3 does not; ADVICE". Up to 8 differences are written
//          out. A rank that does not come ends in the process group's error, after its deadline at the latest.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/comm/process_group.h"

namespace loom::comm {

// The value of a key, or one item of a key that lists some. A key holds no tab, a value no end of line.
struct SaidEntry {
  std::string key;
  std::string value;
  bool is_item = false;
};

struct EntryWords {
  std::string_view tag;  // of the exchange, in errors
  std::string_view differ;
  std::string_view advice;
};

// Collective.
void check_same_entries(const std::vector<SaidEntry>& entries, ProcessGroup& everyone, const EntryWords& words);

}  // namespace loom::comm
