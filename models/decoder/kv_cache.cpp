#include "models/decoder/kv_cache.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "engine/core/error.h"
#include "engine/device/device.h"
#include "models/decoder/cache_call.h"

namespace loom::models {
namespace {

Tensor filled_lengths(const std::vector<std::int64_t>& lengths) {
  const Tensor tensor = Tensor::host({std::ssize(lengths)}, DType::kI64, "cache lengths");
  std::ranges::copy(lengths, tensor.data<std::int64_t>());
  return tensor;
}

Tensor make_part(const KvCacheShape& shape, std::int64_t batch, std::int64_t capacity, DType dtype) {
  return Tensor::empty({batch, capacity, shape.kv_heads, shape.head_dim}, dtype, device::MemCategory::kActivation,
                       "cache of keys and values");
}

}  // namespace

KvCacheShape kv_cache_shape(const DecoderConfig& config) {
  const std::int64_t value_dim = config.latent_attention ? config.latent_attention->v_head_dim : config.head_dim;
  return {config.num_hidden_layers, config.num_key_value_heads, std::max(config.head_dim, value_dim)};
}

KvCache::KvCache(const KvCacheShape& shape, std::int64_t batch, std::int64_t capacity, DType dtype)
    : shape_(shape), dtype_(dtype), capacity_(capacity) {
  require(batch > 0 && capacity >= 0, "a cache of {} rows of {} tokens", batch, capacity);
  for (std::int64_t i = 0; i < shape.layers; ++i) {
    keys_.push_back(make_part(shape, batch, capacity, dtype));
    values_.push_back(make_part(shape, batch, capacity, dtype));
  }
  lengths_ = filled_lengths(std::vector<std::int64_t>(static_cast<std::size_t>(batch), 0));
  offsets_ = filled_lengths(std::vector<std::int64_t>(static_cast<std::size_t>(batch), 0));
}

// The dtype is a number: wrappers cast tensors, and a cast cache would be a copy that is never read again.
nn::Value KvCache::to_value() const {
  return nn::ValueDict{{"keys", keys_},
                       {"values", values_},
                       {"lengths", lengths_},
                       {"offsets", offsets_},
                       {"dtype", static_cast<std::int64_t>(dtype_)}};
}

std::int64_t KvCache::batch() const { return lengths_.numel(); }

std::int64_t KvCache::length(std::int64_t row) const {
  require(row >= 0 && row < batch(), "row {} of a cache of {}", row, batch());
  return lengths_.data<std::int64_t>()[row];
}

std::int64_t KvCache::nbytes() const {
  std::int64_t bytes = 0;
  for (const Tensor& keys : keys_) bytes += 2 * keys.nbytes();
  return bytes;
}

void KvCache::reserve(std::int64_t tokens) {
  if (tokens <= capacity_) return;
  std::vector<std::int64_t> same(static_cast<std::size_t>(batch()));
  std::iota(same.begin(), same.end(), std::int64_t{0});
  remake(same, std::max(tokens, 2 * capacity_));
}

void KvCache::truncate(std::int64_t row, std::int64_t new_length) {
  require(new_length >= 0 && new_length <= length(row), "row {} of {} tokens cut to {}", row, length(row), new_length);
  lengths_.data<std::int64_t>()[row] = new_length;
  if (new_length == 0) offsets_.data<std::int64_t>()[row] = 0;
}

void KvCache::select_rows(std::span<const std::int64_t> rows) {
  require(!rows.empty(), "a cache of no rows");
  for (const std::int64_t row : rows) length(row);
  remake(rows, capacity_);
}

void KvCache::remake(std::span<const std::int64_t> from, std::int64_t capacity) {
  const std::int64_t place_bytes = shape_.kv_heads * shape_.head_dim * element_bytes(dtype_);
  std::vector<std::int64_t> lengths, offsets;
  for (const std::int64_t row : from) {
    lengths.push_back(length(row));
    offsets.push_back(offsets_.data<std::int64_t>()[row]);
  }
  const auto remade = [&](const Tensor& old) {
    const Tensor part = make_part(shape_, std::ssize(from), capacity, dtype_);
    const std::int64_t bytes = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}) * place_bytes;
    device::Device::current().launch("copy_cache", {.read_bytes = bytes, .written_bytes = bytes}, [&] {
      for (std::size_t i = 0; i < from.size(); ++i) {
        std::memcpy(static_cast<char*>(part.raw()) + static_cast<std::int64_t>(i) * capacity * place_bytes,
                    static_cast<const char*>(old.raw()) + from[i] * capacity_ * place_bytes,
                    static_cast<std::size_t>(lengths[i] * place_bytes));
      }
    });
    return part;
  };
  for (std::size_t layer = 0; layer < keys_.size(); ++layer) {
    keys_[layer] = remade(keys_[layer]);
    values_[layer] = remade(values_[layer]);
  }
  lengths_ = filled_lengths(lengths);
  offsets_ = filled_lengths(offsets);
  capacity_ = capacity;
}

namespace {

void check_cache(const nn::Value& cache, const Shape& input, const DecoderConfig& config) {
  const nn::ValueList &keys = cache["keys"].list(), &values = cache["values"].list();
  const Tensor& lengths = cache["lengths"];
  check_model(std::ssize(keys) == config.num_hidden_layers && keys.size() == values.size(),
              "past_key_values has {} layers, the model {}; make the cache of this model's kv_cache_shape()",
              keys.size(), config.num_hidden_layers);
  check_model(lengths.numel() == input[0], "past_key_values has {} rows, the input {}; they need as many",
              lengths.numel(), input[0]);
}

// For each row, the first token and the number of tokens.
std::vector<std::pair<std::int64_t, std::int64_t>> token_ranges(const nn::Value& mask, const Shape& input) {
  const std::int64_t batch = input[0], tokens = input[1];
  std::vector<std::pair<std::int64_t, std::int64_t>> ranges(static_cast<std::size_t>(batch), {0, tokens});
  if (mask.is_none()) return ranges;
  const Tensor& given = mask.tensor();
  const Shape expected{batch, tokens};
  check_model(given.dtype() == DType::kI32 && given.shape() == expected,
              "attention_mask is {} {}; int32 {} is needed: the tokens of this call", name(given.dtype()),
              to_string(given.shape()), to_string(expected));
  const std::vector<std::int32_t> values = given.to_vector<std::int32_t>();
  for (std::int64_t b = 0; b < batch; ++b) {
    const auto row = values.begin() + b * tokens, end = row + tokens;
    const auto first = std::find(row, end, 1), behind = std::find(first, end, 0);
    const bool is_mask = std::all_of(row, end, [](std::int32_t value) { return value == 0 || value == 1; });
    check_model(is_mask && std::find(behind, end, 1) == end,
                "attention_mask of row {} is neither 0 before or behind 1 alone; padding goes before or behind a row's "
                "tokens",
                b);
    ranges[static_cast<std::size_t>(b)] = {first - row, behind - first};
  }
  return ranges;
}

void check_room(std::int64_t row, std::int64_t length, std::int64_t count, std::int64_t capacity,
                const DecoderConfig& config) {
  check_model(length + count <= capacity,
              "past_key_values has room for {} tokens, but row {} has {} and {} more come; call reserve({}) before",
              capacity, row, length, count, length + count);
  if (length + count > longest_sequence(config)) {
    config_error("row {} has {} tokens and {} more come, but the model's {}; use shorter sequences", row, length, count,
                 longest_sequence_text(config));
  }
}

}  // namespace

std::optional<CacheCall> CacheCall::of(const nn::Args& args, const Shape& input, const DecoderConfig& config) {
  const nn::Value& cache = args.find(kPastKeyValues);
  if (cache.is_none()) {
    check_model(args.find("attention_mask").is_none(),
                "attention_mask is given without past_key_values; padding is left out with a cache only");
    return std::nullopt;
  }
  check_model(args.find("actual_seq_len").is_none(),
              "actual_seq_len is given with past_key_values; segments are for whole sequences");
  check_cache(cache, input, config);
  CacheCall call(cache);
  const Shape capacity = cache["keys"].list().front().tensor().shape();
  const auto ranges = token_ranges(args.find("attention_mask"), input);
  const auto* lengths = cache["lengths"].tensor().data<std::int64_t>();
  const auto* offsets = cache["offsets"].tensor().data<std::int64_t>();
  call.rows_ = Tensor::host({input[0], 3}, DType::kI64, "cache rows");
  const nn::Value& given = args.find("position_ids");
  const Tensor positions = Tensor::host({input[0], input[1]}, DType::kI32, "position ids");
  if (given.is_none()) std::fill_n(positions.data<std::int32_t>(), positions.numel(), 0);
  for (std::int64_t b = 0; b < input[0]; ++b) {
    const auto [first, count] = ranges[static_cast<std::size_t>(b)];
    check_room(b, lengths[b], count, capacity[1], config);
    std::int64_t* row = call.rows_.data<std::int64_t>() + 3 * b;
    row[0] = first, row[1] = count, row[2] = lengths[b];
    if (!given.is_none()) continue;
    for (std::int64_t i = 0; i < count; ++i) {
      positions.data<std::int32_t>()[b * input[1] + first + i] = static_cast<std::int32_t>(lengths[b] + offsets[b] + i);
    }
  }
  call.position_ids_ = given.is_none() ? positions : given.tensor();
  return call;
}

nn::Value CacheCall::layer(std::size_t layer) const {
  return nn::ValueDict{{"keys", cache_["keys"].list()[layer]},
                       {"values", cache_["values"].list()[layer]},
                       {"rows", rows_},
                       {"dtype", cache_["dtype"]}};
}

void CacheCall::finish() const {
  auto* lengths = cache_["lengths"].tensor().data<std::int64_t>();
  const auto* rows = rows_.data<std::int64_t>();
  for (std::int64_t b = 0; b < rows_.shape()[0]; ++b) lengths[b] += rows[3 * b + 1];
}

std::optional<ops::CachePart> cache_part(const nn::Value& of_layer) {
  if (of_layer.is_none()) return std::nullopt;
  const auto made = static_cast<DType>(of_layer["dtype"].number());
  const DType now = of_layer["keys"].tensor().dtype();
  check_model(
      made == now,
      "past_key_values was made in {}, but mixed precision computes in {} and would fill a copy of it; make the "
      "cache in {}",
      name(made), name(now), name(now));
  return ops::CachePart{of_layer["keys"], of_layer["values"], of_layer["rows"]};
}

KeptLogits::KeptLogits(const nn::Args& args, const Shape& input, const DecoderConfig& config) {
  const nn::Value& kept = args.find("logits_to_keep");
  const std::int64_t number = kept.is_none() ? 0 : kept.number();
  check_model(number == 0 || number == 1, "logits_to_keep is {}; 0 keeps all, 1 each row's last", number);
  if (number == 0) return;
  const auto call = CacheCall::of(args, input, config);
  check_model(call.has_value(), "logits_to_keep is 1 without past_key_values; give a cache, or leave it out");
  rows_ = call->rows();
}

Tensor KeptLogits::of(const Tensor& hidden) const {
  return rows_.defined() ? ops::last_new_tokens(hidden, rows_) : hidden;
}

}  // namespace loom::models
