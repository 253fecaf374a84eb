// SessionReader: a session's cache and the reading of tokens into it. Private to models.
//
// Rows     of the current batch; a row may have no tokens in a call.
// Threads  the rank's host thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/nn/module.h"
#include "models/decoder/decoder_config.h"
#include "models/decoder/kv_cache.h"

namespace loom::models {

using Row = std::vector<std::int32_t>;

class SessionReader {
 public:
  SessionReader(nn::Module& model, const DecoderConfig& config) : model_(model), config_(config) {}

  // Sets the cache up for `rows` rows, empty except for the common beginning of a single row and the tokens read last;
  // returns how many of its tokens need not be read (never all). Always empty if the rotary frequencies depend on
  // the length, and if the model has `inputs` beside the tokens (pictures): these go along with the first call.
  std::int64_t begin(const std::vector<Row>& rows, const nn::ValueDict& inputs = {});
  // Reads each row's tokens behind its earlier ones, long ones in calls of 1024 unless `at_once`. [rows][V]: logits of
  // the last token of each row, unchanged for a row without tokens (empty if there are none).
  const std::vector<std::vector<float>>& read(const std::vector<std::span<const std::int32_t>>& tokens,
                                              bool at_once = false);
  // The same without a cache: each row whole, one after the other.
  const std::vector<std::vector<float>>& read_whole(const std::vector<Row>& rows);
  // Row i continues from row rows[i].
  void select_rows(std::span<const std::int64_t> rows);

  void clear();
  const KvCache* cache() const { return cache_ ? &*cache_ : nullptr; }

 private:
  void read_piece(const std::vector<std::span<const std::int32_t>>& tokens, std::int64_t width);

  nn::Module& model_;
  const DecoderConfig& config_;
  std::optional<KvCache> cache_;
  std::vector<Row> read_;  // the tokens in the cache
  nn::ValueDict inputs_;
  std::vector<std::vector<float>> logits_;
};

}  // namespace loom::models
