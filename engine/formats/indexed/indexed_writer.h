// IndexedWriter: writes the pair PREFIX.bin and PREFIX.idx of an IndexedDataset, sequence by sequence.
//
// Files     both appear at commit() under their names, or neither: .bin first, .idx last, so that a pair with an .idx
//           is whole. Where commit() replaces a pair, the old .idx goes before the new .bin comes. Without commit()
//           nothing is left and an old pair stays as it was. commit_all() does the same for several pairs: all of them
//           are whole on the disk before the first one appears.
// Memory    4 bytes a sequence, 8 a document, and a buffer of 1 MiB; tokens go to the file as they come.
// Threads   one thread at a time.
// Errors    ConfigError: a file cannot be made, an id that the dtype does not hold, dtypes that differ. Error: the disk
//           is full.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/formats/indexed/indexed_dataset.h"
#include "engine/io/atomic_file.h"

namespace loom::io {

class IndexedWriter {
 public:
  enum class Modes : bool { kNone, kOnePerSequence };

  // ConfigError for a dtype of floating-point numbers.
  IndexedWriter(std::filesystem::path prefix, IndexedDtype dtype, Modes modes = Modes::kNone);

  // Appends a sequence to the document that is open. `mode` is written with kOnePerSequence alone.
  void add_sequence(std::span<const std::int32_t> tokens, std::int8_t mode = 0);
  // Ends the document that is open; one without sequences is a document too.
  void end_document();
  // Appends all documents of a pair. Before: no document is open. ConfigError where dtype or modes differ. `wrote` is
  // called behind every few MB, and may throw.
  void add_all(const IndexedDataset& pair, const std::function<void(std::int64_t bytes)>& wrote = {});

  std::int64_t sequence_count() const { return static_cast<std::int64_t>(lengths_.size()); }
  std::int64_t document_count() const { return static_cast<std::int64_t>(document_index_.size()) - 1; }

  // Both files are whole on the disk, not yet visible. Before: no document is open. Nothing may be added after it.
  void finish();
  // Makes the pair visible; finish() where it was not called. Call once, last.
  void commit();
  static void commit_all(std::span<const std::unique_ptr<IndexedWriter>> writers);

 private:
  template <class T>
  void append(std::span<const std::int32_t> tokens);
  void append_bytes(std::span<const std::byte> bytes);
  void flush();
  void write_header();
  void write_index();
  void remove_old_index() const;

  const std::filesystem::path prefix_;
  const IndexedDtype dtype_;
  const bool has_modes_;
  AtomicFile bin_;
  AtomicFile idx_;
  std::vector<std::byte> buffer_ = {};
  AtomicFile* buffered_ = &bin_;  // where the buffer goes
  std::vector<std::int32_t> lengths_ = {};
  std::vector<std::int64_t> document_index_ = {0};
  std::vector<std::int8_t> modes_ = {};
  bool finished_ = false;
};

}  // namespace loom::io
