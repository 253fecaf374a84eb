#include "engine/formats/indexed/indexed_writer.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <system_error>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/formats/indexed/indexed_layout.h"

namespace loom::io {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{1} << 20;
constexpr std::size_t kCopyBytes = std::size_t{16} << 20;

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

}  // namespace

IndexedWriter::IndexedWriter(std::filesystem::path prefix, IndexedDtype dtype, Modes modes)
    : prefix_(std::move(prefix)),
      dtype_(dtype),
      has_modes_(modes == Modes::kOnePerSequence),
      bin_(bin_path(prefix_)),
      idx_(idx_path(prefix_)) {
  if (dtype == IndexedDtype::kF32 || dtype == IndexedDtype::kF64) {
    config_error("{}: a pair of token ids holds integers, not {}; give pairs of integers",
                 escaped(bin_path(prefix_).string()), name_of(dtype));
  }
}

void IndexedWriter::append_bytes(std::span<const std::byte> bytes) {
  if (buffer_.size() + bytes.size() > kBufferBytes) flush();
  if (bytes.size() > kBufferBytes) return buffered_->write(bytes);
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
}

void IndexedWriter::flush() {
  buffered_->write(buffer_);
  buffer_.clear();
}

template <class T>
void IndexedWriter::append(std::span<const std::int32_t> tokens) {
  std::vector<T> stored(tokens.size());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (!std::in_range<T>(tokens[i])) {
      config_error("{}: token {} of sequence {} is {}, and {} holds {} to {}; write int32",
                   escaped(bin_path(prefix_).string()), i, lengths_.size(), tokens[i], name_of(dtype_),
                   std::numeric_limits<T>::min(), std::numeric_limits<T>::max());
    }
    stored[i] = static_cast<T>(tokens[i]);
  }
  append_bytes(std::as_bytes(std::span(stored)));
}

void IndexedWriter::add_sequence(std::span<const std::int32_t> tokens, std::int8_t mode) {
  if (!std::in_range<std::int32_t>(tokens.size())) {
    config_error("{}: sequence {} has {} tokens, and a sequence has at most {}; cut it",
                 escaped(bin_path(prefix_).string()), lengths_.size(), tokens.size(),
                 std::numeric_limits<std::int32_t>::max());
  }
  switch (dtype_) {
    case IndexedDtype::kU8:
      append<std::uint8_t>(tokens);
      break;
    case IndexedDtype::kI8:
      append<std::int8_t>(tokens);
      break;
    case IndexedDtype::kI16:
      append<std::int16_t>(tokens);
      break;
    case IndexedDtype::kU16:
      append<std::uint16_t>(tokens);
      break;
    case IndexedDtype::kI32:
      append_bytes(std::as_bytes(tokens));
      break;
    case IndexedDtype::kI64:
      append<std::int64_t>(tokens);
      break;
    case IndexedDtype::kF64:
    case IndexedDtype::kF32:
      break;  // refused by the constructor
  }
  lengths_.push_back(static_cast<std::int32_t>(tokens.size()));
  if (has_modes_) modes_.push_back(mode);
}

void IndexedWriter::end_document() { document_index_.push_back(sequence_count()); }

void IndexedWriter::add_all(const IndexedDataset& pair, const std::function<void(std::int64_t)>& wrote) {
  require(document_index_.back() == sequence_count(), "a document is open");
  if (pair.dtype() != dtype_ || pair.has_modes() != has_modes_) {
    config_error("{}: it has {} {} modes, and {} is written as {} {} modes; merge pairs of one kind",
                 escaped(idx_path(pair.prefix()).string()), name_of(pair.dtype()),
                 pair.has_modes() ? "with" : "without", escaped(idx_path(prefix_).string()), name_of(dtype_),
                 has_modes_ ? "with" : "without");
  }
  for (auto rest = pair.bytes(); !rest.empty();) {
    const auto piece = rest.first(std::min(rest.size(), kCopyBytes));
    append_bytes(piece);
    rest = rest.subspan(piece.size());
    if (wrote) wrote(static_cast<std::int64_t>(piece.size()));
  }
  const std::int64_t before = sequence_count();
  for (std::int64_t i = 0; i < pair.sequence_count(); ++i) {
    lengths_.push_back(pair.length(i));
    if (has_modes_) modes_.push_back(pair.mode(i));
  }
  for (std::int64_t i = 1; i <= pair.document_count(); ++i) document_index_.push_back(before + pair.document_begin(i));
}

void IndexedWriter::write_header() {
  append_bytes(std::as_bytes(std::span(indexed_layout::kMagic)));
  append_bytes(bytes_of(indexed_layout::kVersion));
  append_bytes(bytes_of(dtype_));
  append_bytes(bytes_of(static_cast<std::uint64_t>(lengths_.size())));
  append_bytes(bytes_of(static_cast<std::uint64_t>(document_index_.size())));
}

void IndexedWriter::write_index() {
  write_header();
  append_bytes(std::as_bytes(std::span(lengths_)));
  std::int64_t offset = 0;
  for (const std::int32_t length : lengths_) {
    append_bytes(bytes_of(offset));
    offset += length * element_bytes(dtype_);
  }
  append_bytes(std::as_bytes(std::span(document_index_)));
  append_bytes(std::as_bytes(std::span(modes_)));
}

void IndexedWriter::finish() {
  require(document_index_.back() == sequence_count(), "the last document is open");
  if (std::exchange(finished_, true)) return;
  flush();
  bin_.sync();
  buffered_ = &idx_;
  write_index();
  flush();
  idx_.sync();
}

void IndexedWriter::remove_old_index() const {
  std::error_code error;
  const OutputTarget target = resolve_output(idx_path(prefix_));
  if (target.kind == OutputTarget::Kind::kFile) std::filesystem::remove(target.path, error);
}

void IndexedWriter::commit() {
  finish();
  remove_old_index();
  bin_.commit();
  idx_.commit();
}

void IndexedWriter::commit_all(std::span<const std::unique_ptr<IndexedWriter>> writers) {
  for (const auto& writer : writers) writer->finish();
  for (const auto& writer : writers) writer->remove_old_index();
  for (const auto& writer : writers) writer->bin_.commit();
  for (const auto& writer : writers) writer->idx_.commit();
}

}  // namespace loom::io
