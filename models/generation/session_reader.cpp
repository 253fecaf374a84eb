#include "models/generation/session_reader.h"

#include <algorithm>

#include "engine/core/error.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/ops/decoding.h"
#include "models/generation/evaluating.h"
#include "sharding/fsdp/fsdp_state.h"

namespace loom::models {
namespace {

constexpr std::int64_t kPiece = 1024;    // tokens of a row in one call
constexpr std::int64_t kFirstRoom = 64;  // behind the prompt

// The dtype in which the decoder's layers compute.
DType dtype_of_keys(nn::Module& model) {
  if (const sharding::FsdpState* state = sharding::FsdpState::of(model)) {
    if (const auto& dtype = state->options().policy.param_dtype) return *dtype;
  }
  for (const auto& [path, slot] : model.named_slots()) {
    if (is_floating(slot->value.dtype())) return slot->value.dtype();
  }
  return DType::kF32;
}

std::vector<float> row_of(const Tensor& logits, std::int64_t row) {
  const std::int64_t vocab = logits.shape()[-1];
  return logits.view({logits.numel() / vocab, vocab}).rows(row, 1).to_vector<float>();
}

}  // namespace

std::int64_t SessionReader::begin(const std::vector<Row>& rows, const nn::ValueDict& inputs) {
  logits_.assign(rows.size(), {});
  std::int64_t common = 0;
  const bool has_inputs = !inputs.empty() || !inputs_.empty();
  inputs_ = inputs;
  if (cache_ && !has_inputs && rows.size() == 1 && read_.size() == 1 && !depends_on_length(config_.rope_scaling)) {
    const auto [mine, theirs] = std::ranges::mismatch(read_.front(), rows.front());
    common = std::min<std::int64_t>(mine - read_.front().begin(), std::ssize(rows.front()) - 1);
    read_.front().resize(static_cast<std::size_t>(common));
    cache_->truncate(0, common);
    return common;
  }
  std::int64_t longest = 0;
  for (const Row& row : rows) longest = std::max<std::int64_t>(longest, std::ssize(row));
  const std::int64_t room = std::min(longest + kFirstRoom, longest_sequence(config_));
  cache_.reset();
  cache_.emplace(kv_cache_shape(config_), std::ssize(rows), room, dtype_of_keys(model_));
  read_.assign(rows.size(), {});
  return 0;
}

const std::vector<std::vector<float>>& SessionReader::read(const std::vector<std::span<const std::int32_t>>& tokens,
                                                           bool at_once) {
  std::int64_t longest = 1, needed = 0;
  for (std::size_t b = 0; b < tokens.size(); ++b) {
    longest = std::max<std::int64_t>(longest, std::ssize(tokens[b]));
    needed = std::max<std::int64_t>(needed, std::ssize(read_[b]) + std::ssize(tokens[b]));
  }
  cache_->reserve(needed);
  // A piece of the prompt would be rotated by the frequencies of a shorter one.
  const bool whole = at_once || depends_on_length(config_.rope_scaling) || !inputs_.empty();
  const std::int64_t most = whole ? longest : kPiece;
  for (std::int64_t first = 0; first < longest; first += most) {
    std::vector<std::span<const std::int32_t>> piece;
    for (const auto& row : tokens) {
      const auto begin = static_cast<std::size_t>(std::min<std::int64_t>(first, std::ssize(row)));
      piece.push_back(row.subspan(begin, std::min(static_cast<std::size_t>(most), row.size() - begin)));
    }
    read_piece(piece, std::min(most, longest - first));
  }
  return logits_;
}

void SessionReader::read_piece(const std::vector<std::span<const std::int32_t>>& tokens, std::int64_t width) {
  const std::int64_t batch = std::ssize(tokens);
  const Tensor ids = Tensor::host({batch, width}, DType::kI32, "token ids");
  const Tensor mask = Tensor::host({batch, width}, DType::kI32, "attention mask");
  for (std::int64_t b = 0; b < batch; ++b) {
    const auto row = tokens[static_cast<std::size_t>(b)];
    const auto fill = [&](const Tensor& to, auto value_at) {
      for (std::int64_t s = 0; s < width; ++s) {
        const bool is_token = s < std::ssize(row);
        to.data<std::int32_t>()[b * width + s] = is_token ? value_at(static_cast<std::size_t>(s)) : 0;
      }
    };
    fill(ids, [&](std::size_t s) { return row[s]; });
    fill(mask, [](std::size_t) { return 1; });
  }
  const autograd::NoGrad no_grad;
  const Evaluating evaluating(model_);
  const ops::DecodingScope decoding;
  nn::ValueDict named{{"past_key_values", cache_->to_value()}, {"attention_mask", mask}, {"logits_to_keep", 1}};
  const bool is_first = std::ranges::all_of(read_, [](const Row& row) { return row.empty(); });
  if (is_first) named.insert(named.end(), inputs_.begin(), inputs_.end());
  const Tensor logits = model_.call({{ids}, std::move(named)});
  for (std::size_t b = 0; b < tokens.size(); ++b) {
    if (tokens[b].empty()) continue;
    logits_[b] = row_of(logits, static_cast<std::int64_t>(b));
    read_[b].insert(read_[b].end(), tokens[b].begin(), tokens[b].end());
  }
}

const std::vector<std::vector<float>>& SessionReader::read_whole(const std::vector<Row>& rows) {
  const autograd::NoGrad no_grad;
  const Evaluating evaluating(model_);
  for (std::size_t b = 0; b < rows.size(); ++b) {
    const auto length = std::ssize(rows[b]);
    const Tensor ids = Tensor::from(rows[b], {1, length});
    logits_[b] = row_of(model_.call({{ids}, inputs_}), length - 1);
  }
  return logits_;
}

void SessionReader::select_rows(std::span<const std::int64_t> rows) {
  if (cache_) cache_->select_rows(rows);
  const std::vector<Row> before = std::move(read_);
  read_.clear();
  for (const std::int64_t row : rows) read_.push_back(before[static_cast<std::size_t>(row)]);
  logits_.assign(rows.size(), {});
}

void SessionReader::clear() {
  cache_.reset();
  read_.clear();
  logits_.clear();
  inputs_.clear();
}

}  // namespace loom::models
