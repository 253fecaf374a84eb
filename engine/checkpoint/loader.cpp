#include "engine/checkpoint/loader.h"

#include <algorithm>
#include <fmt/format.h>
#include <unordered_set>

#include "engine/core/error.h"
#include "engine/core/log.h"
#include "engine/core/shown_text.h"
#include "engine/core/spelling.h"

namespace loom::checkpoint {
namespace {

constexpr std::string_view kOptimizerState = "optimizer.state.";
constexpr std::string_view kWithoutState = "optimizer.without_state";
constexpr std::size_t kShownNames = 8;

// Names that do not fit, of one load.
class Unfit {
 public:
  Unfit(const io::DcpFolder& checkpoint, Strictness strictness) : checkpoint_(checkpoint), strictness_(strictness) {}

  void missing(const std::string& name, const Shape& shape) {
    missing_.push_back(fmt::format("{} {}", escaped(name), to_string(shape)));
    missing_names_.push_back(name);
  }
  void unexpected(const std::string& name) { unexpected_.push_back(name); }
  void mismatched(const std::string& name, const Shape& stored, const Shape& wanted) {
    mismatched_.push_back(
        fmt::format("{} is {} there and {} here", escaped(name), shown_text(to_string(stored)), to_string(wanted)));
  }

  void settle(std::string_view of) const {
    std::vector<std::string> parts;
    add(parts, "missing in the checkpoint", missing_);
    if (strictness_ != Strictness::kAssumeOkUnexpected) add(parts, "unknown here", escaped_all(unexpected_));
    add(parts, "of another shape", mismatched_);
    if (parts.empty()) return;
    const std::string text = fmt::format("{}: the {} does not fit the checkpoint: {}{}", checkpoint_.folder().string(),
                                         of, fmt::join(parts, "; "), nearest());
    if (strictness_ == Strictness::kLogAll && mismatched_.empty()) return log_warning("{}", text);
    config_error(
        "{}; load it with the flags and the model it was saved with, or allow the difference: "
        "--dist-ckpt-strictness assume_ok_unexpected or log_all",
        text);
  }

 private:
  static std::vector<std::string> escaped_all(const std::vector<std::string>& names) {
    std::vector<std::string> found;
    for (const std::string& name : names) found.push_back(escaped(name));
    return found;
  }
  static void add(std::vector<std::string>& parts, std::string_view what, const std::vector<std::string>& names) {
    if (names.empty()) return;
    const std::vector<std::string> shown(
        names.begin(), names.begin() + static_cast<std::ptrdiff_t>(std::min(kShownNames, names.size())));
    parts.push_back(
        fmt::format("{} {}: {}{}", names.size(), what, fmt::join(shown, ", "),
                    names.size() > shown.size() ? fmt::format(" and {} more", names.size() - shown.size()) : ""));
  }
  std::string nearest() const {
    if (missing_names_.empty() || unexpected_.empty()) return "";
    const auto found = nearest_spelling(missing_names_.front(), unexpected_);
    return found ? fmt::format("; the nearest to {} is {}", escaped(missing_names_.front()), escaped(*found)) : "";
  }

  const io::DcpFolder& checkpoint_;
  const Strictness strictness_;
  std::vector<std::string> missing_;
  std::vector<std::string> missing_names_;
  std::vector<std::string> unexpected_;
  std::vector<std::string> mismatched_;
};

// "model.", or nothing if the checkpoint's names are the module's own (HuggingFaceStorageWriter).
std::string prefix_of(const io::DcpFolder& checkpoint, const nn::StateDict& module, const std::string& key) {
  const auto is_there = [&](const std::string& prefix) {
    return std::ranges::any_of(
        module, [&](const nn::StateEntry& entry) { return checkpoint.find(prefix + entry.path) != nullptr; });
  };
  return !is_there(key + '.') && is_there("") ? "" : key + '.';
}

struct Match {
  const io::DcpItem* item;
  nn::LocalTensor target;
};

const io::DcpItem* find_tensor(const io::DcpFolder& checkpoint, const std::string& name) {
  const io::DcpItem* item = checkpoint.find(name);
  return item != nullptr && item->is_tensor ? item : nullptr;
}

// "w.exp_avg" -> {"w", "exp_avg"}
std::pair<std::string_view, std::string_view> split_state_name(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return {name, ""};
  return {name.substr(0, dot), name.substr(dot + 1)};
}

std::unordered_set<std::string> names_without_state(const io::DcpFolder& checkpoint) {
  std::unordered_set<std::string> names;
  const auto value = read_value(checkpoint, kWithoutState);
  if (!value || !value->is(io::PlainValue::Kind::kList)) return names;
  for (const io::PlainValue& item : value->items()) {
    if (item.is(io::PlainValue::Kind::kText)) names.insert(item.as_text());
  }
  return names;
}

double read_number(const io::DcpFolder& checkpoint, const io::DcpItem& item) {
  const Tensor tensor = Tensor::host(item.shape, item.dtype, "optimizer state");
  const nn::LocalTensor whole{tensor, nn::ShardSpec::whole(item.shape)};
  read_tensor(checkpoint, item, whole);
  return tensor.to_vector<double>().at(0);
}

}  // namespace

void read_tensor(const io::DcpFolder& checkpoint, const io::DcpItem& item, const nn::LocalTensor& target) {
  if (target.shard.joined) {
    nn::fill_parts(target, item.name, [&](const nn::LocalTensor& part) { read_tensor(checkpoint, item, part); });
    return;
  }
  const Tensor& tensor = target.value;
  const bool convert = tensor.dtype() != item.dtype;
  const Tensor to = convert ? Tensor::host(tensor.shape(), item.dtype, "loaded") : tensor;
  const std::span bytes(static_cast<std::byte*>(to.raw()), static_cast<std::size_t>(to.nbytes()));
  checkpoint.read_box(item, target.shard.offset, tensor.shape(), bytes);
  if (convert) {
    tensor.copy_from(to);
  } else {
    tensor.storage()->bump_version();
  }
}

void load_module(const io::DcpFolder& checkpoint, const nn::StateDict& module, Strictness strictness,
                 const std::string& key, const Elsewhere& elsewhere) {
  const std::string prefix = prefix_of(checkpoint, module, key);
  Unfit misfits(checkpoint, strictness);
  std::unordered_set<std::string> known;
  for (const std::string& path : elsewhere) known.insert(prefix + path);
  std::vector<Match> matches;
  for (const nn::StateEntry& entry : module) {
    const Shape& shape = entry.local.shard.global_shape;
    const io::DcpItem* found = find_tensor(checkpoint, prefix + entry.path);
    known.insert(prefix + entry.path);
    for (const std::string& tied : entry.tied_paths) {
      known.insert(prefix + tied);
      if (found == nullptr) found = find_tensor(checkpoint, prefix + tied);
    }
    if (found == nullptr) {
      misfits.missing(prefix + entry.path, shape);
    } else if (found->shape != shape) {
      misfits.mismatched(found->name, found->shape, shape);
    } else {
      matches.push_back({found, entry.local});
    }
  }
  for (const io::DcpItem& item : checkpoint.metadata().items) {
    if (item.name.starts_with(prefix) && !known.contains(item.name)) misfits.unexpected(item.name);
  }
  misfits.settle("model");
  for (const Match& match : matches) read_tensor(checkpoint, *match.item, match.target);
}

nn::OptimizerState read_optimizer(const io::DcpFolder& checkpoint, const nn::Optimizer& optimizer,
                                  Strictness strictness, const Elsewhere& elsewhere) {
  Unfit misfits(checkpoint, strictness);
  std::unordered_map<std::string_view, std::vector<const io::DcpItem*>> stored;  // by parameter
  for (const io::DcpItem& item : checkpoint.metadata().items) {
    if (!item.is_tensor || !item.name.starts_with(kOptimizerState)) continue;
    stored[split_state_name(std::string_view(item.name).substr(kOptimizerState.size())).first].push_back(&item);
  }
  const auto without = names_without_state(checkpoint);
  std::unordered_set<std::string_view> used;  // both ends of a pipeline may be here, with one tied parameter each
  nn::OptimizerState state;
  std::vector<Match> matches;
  for (const nn::ParameterGroup& group : optimizer.groups()) {
    for (const nn::OptimizedParameter& parameter : group.parameters) {
      const auto found = stored.find(parameter.path);
      if (found == stored.end()) {
        if (!without.contains(parameter.path)) {
          misfits.missing(fmt::format("{}{}", kOptimizerState, parameter.path), parameter.shard.global_shape);
        }
        continue;
      }
      nn::ParameterState& own = state.parameters[parameter.path];
      for (const io::DcpItem* item : found->second) {
        const std::string name(split_state_name(item->name).second);
        if (name == "step" && item->shape.numel() == 1) {
          own[name] = read_number(checkpoint, *item);
        } else if (item->shape != parameter.shard.global_shape) {
          misfits.mismatched(item->name, item->shape, parameter.shard.global_shape);
        } else {
          const Tensor value = Tensor::host(parameter.value.shape(), item->dtype, "optimizer state");
          matches.push_back({item, {value, parameter.shard}});
          own[name] = matches.back().target;
        }
      }
      used.insert(found->first);
    }
  }
  for (const auto& [path, items] : stored) {
    if (!used.contains(path) && !elsewhere.contains(std::string(path)))
      misfits.unexpected(fmt::format("{}{}", kOptimizerState, path));
  }
  misfits.settle("optimizer");
  for (const Match& match : matches) read_tensor(checkpoint, *match.item, match.target);
  return state;
}

bool has_optimizer(const io::DcpFolder& checkpoint) {
  return checkpoint.find(kWithoutState) != nullptr ||
         std::ranges::any_of(checkpoint.metadata().items,
                             [](const io::DcpItem& item) { return item.name.starts_with(kOptimizerState); });
}

std::optional<io::PlainValue> read_value(const io::DcpFolder& checkpoint, std::string_view name) {
  const io::DcpItem* item = checkpoint.find(name);
  if (item == nullptr || item->is_tensor) return std::nullopt;
  return checkpoint.value(*item);
}

std::vector<std::pair<std::string, io::PlainValue>> read_values(const io::DcpFolder& checkpoint,
                                                                std::string_view prefix) {
  std::vector<std::pair<std::string, io::PlainValue>> values;
  for (const io::DcpItem& item : checkpoint.metadata().items) {
    if (item.is_tensor || !item.name.starts_with(prefix)) continue;
    values.emplace_back(item.name.substr(prefix.size()), checkpoint.value(item));
  }
  return values;
}

}  // namespace loom::checkpoint
