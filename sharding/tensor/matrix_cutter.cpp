#include "sharding/tensor/matrix_cutter.h"

#include <algorithm>

#include "engine/core/error.h"
#include "engine/dist/context_attention.h"
#include "engine/dist/tensor_slot.h"
#include "sharding/cut_parameter.h"
#include "sharding/fsdp/chunk.h"
#include "sharding/selected_modules.h"

namespace loom::sharding {

nn::MatrixLayer& matrix_at(nn::Module& model, const std::string& path, const std::string& where) {
  nn::Module& module = *model.find(path);
  if (auto* layer = dynamic_cast<nn::MatrixLayer*>(&module)) return *layer;
  config_error("{}: '{}' is a {}, and tensor parallelism cuts linear layers; take it out of the plan", where, path,
               module.type_name());
}

std::int64_t outputs_of(nn::MatrixLayer& layer) {
  const nn::MatrixLayer::Part matrix = layer.parts().front();
  return matrix.slot->shard.global_shape[*matrix.outputs];
}

std::int64_t inputs_of(nn::MatrixLayer& layer) {
  const nn::MatrixLayer::Part matrix = layer.parts().front();
  return matrix.slot->shard.global_shape[*matrix.inputs];
}

int joined_matrices(const SharedMatrices& matrices, const std::string& path) {
  const auto found = std::ranges::find(matrices.joined, path, &JoinedMatrices::layer);
  return found == matrices.joined.end() ? 1 : found->matrices;
}

// An attention's layers with most outputs have all heads; the others have those of keys and values.
std::int64_t units_of(nn::Module& model, const std::string& path, const SharedMatrices& matrices) {
  const std::int64_t outputs = outputs_of(matrix_at(model, path, ""));
  const std::string attention = parent_of(path);
  const auto tensor = model.find(attention)->attachment<dist::TensorSlot>();
  if (tensor != nullptr && tensor->heads > 0) return tensor->heads;
  const auto slot = model.find(attention)->attachment<dist::ContextSlot>();
  if (slot == nullptr || slot->heads == 0) return outputs / joined_matrices(matrices, path);
  if (slot->kv_heads == slot->heads) return slot->heads;
  std::int64_t most = 0;
  for (const std::string& other : matrices.colwise) {
    if (parent_of(other) == attention) most = std::max(most, outputs_of(matrix_at(model, other, "")));
  }
  return outputs * slot->heads / most;
}

MatrixCutter::MatrixCutter(nn::Module& model, const SharedMatrices& matrices, const comm::Axis& axis)
    : model_(model), slots_(model.named_slots()), matrices_(matrices), axis_(axis) {}

// Fewer units than ranks: neighbours have copies of one.
MatrixCutter::Piece MatrixCutter::piece_of(std::int64_t units, std::int64_t unit) const {
  const int ranks = axis_.size();
  if (units % ranks == 0) return {axis_.rank() * (units / ranks) * unit, units / ranks * unit, 1};
  const int copies = ranks / static_cast<int>(units);
  return {axis_.rank() / copies * unit, unit, copies};
}

void MatrixCutter::cut_outputs(const std::string& path) {
  nn::MatrixLayer& layer = matrix_at(model_, path, "");
  const int joined = joined_matrices(matrices_, path);
  const std::int64_t units = units_of(model_, path, matrices_);
  const Piece piece = piece_of(units, outputs_of(layer) / units);
  for (const nn::MatrixLayer::Part& part : layer.parts()) {
    if (part.outputs) cut(*part.slot, *part.outputs, piece, joined);
  }
}

void MatrixCutter::cut_inputs(const std::string& path) {
  nn::MatrixLayer& layer = matrix_at(model_, path, "");
  const Piece piece = piece_of(inputs_of(layer), 1);
  for (const nn::MatrixLayer::Part& part : layer.parts()) {
    if (part.inputs) {
      cut(*part.slot, *part.inputs, piece);
    } else if (part.slot->shard.global_shape.ndim() == 1) {
      row_biases_.insert(part.slot);
    }
  }
}

void MatrixCutter::cut_rows(nn::ParamSlot& table) {
  if (cut_.contains(table.value.id())) return;
  const Chunk chunk = chunk_of(table.shard.global_shape[0], axis_.rank(), axis_.size());
  cut(table, 0, {chunk.row_begin, chunk.rows, 1});
}

TensorShares MatrixCutter::shares(const std::vector<std::string>& partial, const std::vector<std::string>& apart) {
  TensorShares result;
  for (const auto& [path, slot] : slots_) {
    const auto below = [&path = path](const std::string& above) { return is_below(path, above); };
    if (std::ranges::any_of(apart, below)) continue;
    if (const auto found = cut_.find(slot->value.id()); found != cut_.end()) {
      result.shares[slot] = found->second;
      continue;
    }
    const bool sees_all = !matrices_.head.empty() && below(matrices_.head);
    const bool sees_part = (matrices_.sequence_parallel && !sees_all) ||
                           (std::ranges::any_of(partial, below) && !row_biases_.contains(slot));
    result.shares[slot] = {axis_.size(), sees_part ? axis_.shared_group() : nullptr};
  }
  return result;
}

void MatrixCutter::cut(nn::ParamSlot& slot, int dim, const Piece& piece, int joined) {
  nn::ShardSpec shard = slot.shard;
  shard.offset[static_cast<std::size_t>(dim)] = piece.begin;
  if (joined > 1) shard.joined = {dim, joined, axis_.size()};
  Shape box = slot.value.shape();
  box[dim] = piece.count;
  cut_parameter(slots_, slot, shard, box);
  TensorShares::Share share{piece.copies, nullptr};
  if (piece.copies > 1) share.sums = axis_.consecutive(piece.copies, "tp_copies").shared_group();
  cut_[slot.value.id()] = share;
}

}  // namespace loom::sharding
