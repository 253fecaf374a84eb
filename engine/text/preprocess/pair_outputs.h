// PairOutputs: the pairs .bin/.idx that one run writes, all of them or none. Private to engine/text.
//
// Checked  before anything is computed: the folder of --output-prefix exists and can be written, no other run writes
//          these names, no output is an input, a link, a folder or a device.
// Threads  one thread at a time.
// Errors   ConfigError with --output-prefix; Error if the disk is full.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/formats/indexed/indexed_writer.h"
#include "engine/io/output_lock.h"
#include "engine/text/preprocess/preprocess.h"

namespace loom::data {

// The inputs of a run, with their flags.
using NamedInputs = std::vector<std::pair<std::string, std::filesystem::path>>;

class PairOutputs {
 public:
  // `kinds`: dtype and modes of each pair.
  struct Kind {
    std::string name;  // behind the prefix: "text_document"
    io::IndexedDtype dtype = io::IndexedDtype::kI32;
    io::IndexedWriter::Modes modes = io::IndexedWriter::Modes::kNone;
  };
  PairOutputs(const std::filesystem::path& output_prefix, const std::vector<Kind>& kinds, const NamedInputs& inputs);

  std::size_t size() const { return writers_.size(); }
  io::IndexedWriter& writer(std::size_t pair) { return *writers_[pair]; }
  void add_document(std::size_t pair, std::span<const std::int32_t> tokens);
  void add_empty_document();  // to all pairs
  void count_tokens(std::size_t pair, std::int64_t tokens) { pairs_[pair].tokens += tokens; }

  // Makes the pairs visible.
  std::vector<WrittenPair> commit();

 private:
  std::vector<WrittenPair> pairs_;
  std::vector<io::OutputLock> locks_;
  std::vector<std::unique_ptr<io::IndexedWriter>> writers_;
};

}  // namespace loom::data
