#include "engine/nn/chunk_mbs.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/rng_state.h"
#include "engine/core/rounding.h"
#include "engine/nn/batch_rows.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/general.h"

namespace loom::nn {
namespace {

// That a module is chunked.
struct Mark {};

template <class... T>
[[noreturn]] void refuse(const std::string& path, fmt::format_string<T...> text, T&&... values) {
  model_error("chunk_mbs of '{}': {}", path, fmt::format(text, std::forward<T>(values)...));
}

// A call cut into pieces: the tensors of the named arguments, each in all its pieces.
class Cut {
 public:
  Cut(const ChunkMbsOptions& options, Args& args) : options_(options) {
    for (const Value* argument : named_arguments(args)) argument->collect_tensors(wholes_);
    if (wholes_.empty()) refuse(options.path, "the arguments to cut hold no tensor; name others");
    batch_ = rows_of(wholes_.front());
    for (const Tensor& whole : wholes_) {
      if (rows_of(whole) == batch_) continue;
      refuse(options.path, "the arguments to cut have {} and {} rows; cut only the arguments of the batch", batch_,
             rows_of(whole));
    }
  }

  std::int64_t batch() const { return batch_; }

  // The call holds its pieces from now on, and `args` only their shapes in place of the wholes.
  void split(Args& args) {
    for (std::int64_t begin = 0; begin < batch_; begin += options_.chunk_mbs) {
      sizes_.push_back(std::min(options_.chunk_mbs, batch_ - begin));
    }
    for (const Tensor& whole : wholes_) pieces_.push_back(ops::split(whole, sizes_, 0));
    wholes_.clear();
    for (Value* argument : named_arguments(args)) {
      *argument = argument->map_tensors([](const Tensor& whole) { return Tensor::meta(whole.shape(), whole.dtype()); });
    }
  }
  const std::vector<std::int64_t>& sizes() const { return sizes_; }

  // Piece `number` of the call; `others` may be null.
  Args piece(Args args, std::size_t number, const BatchRows* others) {
    if (others != nullptr) others->keep(args, static_cast<std::int64_t>(number) * options_.chunk_mbs, sizes_[number]);
    std::size_t place = 0;
    for (Value* argument : named_arguments(args)) {
      *argument = argument->map_tensors([&](const Tensor&) { return std::move(pieces_[place++][number]); });
    }
    return args;
  }

 private:
  std::vector<Value*> named_arguments(Args& args) const {
    std::vector<Value*> arguments;
    for (const std::int64_t index : options_.chunk_arg_indexs) arguments.push_back(&positional(args, index));
    for (const std::string& name : options_.chunk_kwarg_names) arguments.push_back(&named(args, name));
    return arguments;
  }
  Value& positional(Args& args, std::int64_t index) const {
    if (index < static_cast<std::int64_t>(args.positional.size())) {
      return args.positional[static_cast<std::size_t>(index)];
    }
    refuse(options_.path, "chunk_arg_indexs names argument {}, and it was called with {}; they count from 0", index,
           args.positional.size());
  }
  Value& named(Args& args, const std::string& name) const {
    const auto found = std::ranges::find(args.named, name, &ValueDict::value_type::first);
    if (found != args.named.end()) return found->second;
    refuse(options_.path, "chunk_kwarg_names has '{}', and it was called without it; remove the name", name);
  }
  static std::int64_t rows_of(const Tensor& tensor) { return tensor.shape().ndim() == 0 ? 1 : tensor.shape()[0]; }

  const ChunkMbsOptions& options_;
  std::vector<Tensor> wholes_;
  std::int64_t batch_ = 0;
  std::vector<std::int64_t> sizes_;
  std::vector<std::vector<Tensor>> pieces_;  // by tensor, then by piece
};

void check_rows(const ChunkMbsOptions& options, const Tensor& result, std::int64_t rows) {
  if (result.shape().ndim() > 0 && result.shape()[0] == rows) return;
  refuse(options.path, "a result is {}, and its piece has {} rows; only what has the rows of its batch can be joined",
         to_string(result.shape()), rows);
}

Value joined(const ChunkMbsOptions& options, const std::vector<Value>& results,
             const std::vector<std::int64_t>& sizes) {
  std::vector<std::vector<Tensor>> parts;  // by tensor, then by piece
  for (std::size_t piece = 0; piece < results.size(); ++piece) {
    std::vector<Tensor> tensors;
    results[piece].collect_tensors(tensors);
    parts.resize(std::max(parts.size(), tensors.size()));
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      check_rows(options, tensors[i], sizes[piece]);
      parts[i].push_back(tensors[i]);
    }
  }
  for (const std::vector<Tensor>& part : parts) {
    if (part.size() != results.size()) refuse(options.path, "forward returned another number of tensors for a piece");
  }
  std::size_t place = 0;
  return results.front().map_tensors([&](const Tensor&) { return ops::concat(parts[place++], 0); });
}

}  // namespace

void chunk_mbs(Module& module, const ChunkMbsOptions& options) {
  if (!module.has_forward()) {
    config_error("chunk_mbs of '{}': a {} has no forward of its own; name its items: '{}.{{*}}'", options.path,
                 module.type_name(), options.path);
  }
  if (module.attachment<Mark>() != nullptr) config_error("chunk_mbs of '{}' was requested twice", options.path);
  if (options.chunk_mbs < 1) {
    config_error("chunk_mbs of '{}' is {}; use at least 1 row", options.path, options.chunk_mbs);
  }
  module.attach(std::make_shared<Mark>());
  module.wrap_call([options, others = module.attachment<BatchRows>()](const Module::Run& inner, Args args) {
    Cut cut(options, args);
    if (cut.batch() <= options.chunk_mbs) return inner(std::move(args));
    cut.split(args);
    RngPieces draws(cut.batch());
    std::vector<Value> results;
    for (std::size_t piece = 0; piece < cut.sizes().size(); ++piece) {
      draws.begin(static_cast<std::int64_t>(piece) * options.chunk_mbs, cut.sizes()[piece]);
      results.push_back(inner(cut.piece(args, piece, others.get())));
    }
    return joined(options, results, cut.sizes());
  });
}

}  // namespace loom::nn
