#include "engine/convert/hf/merge.h"

#include <algorithm>
#include <fmt/core.h>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/convert/element_convert.h"
#include "engine/convert/hf/assets.h"
#include "engine/convert/whole_folder.h"
#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/core/spelling.h"
#include "engine/io/atomic_file.h"
#include "engine/io/output_plan.h"
#include "models/hf/published_names.h"
#include "models/lora/adapter_folder.h"

namespace loom::checkpoint {
namespace {

using Pair = models::AdapterFolder::Pair;

// An update of rows [row, row + rows) of a tensor.
struct Adapted {
  const Pair* pair = nullptr;
  std::int64_t row = 0;
  std::int64_t rows = 0;
};

// A tensor of the result: copied, or with updates.
struct Item {
  OutputTensor output;
  std::vector<Adapted> updates;
};

// A tensor of the result and the rows of it that a path means.
struct Place {
  Item& item;
  Shape shape;  // of the path's parameter
  std::int64_t row = 0;
};

using Files = std::map<std::string, std::vector<Item>>;

std::string_view without_first(std::string_view path) { return path.substr(path.find('.') + 1); }

SourceTensor source_of(const io::StoredTensor& stored) {
  return {
      stored.name, stored.dtype, stored.shape, "",
      [&stored](const Offset& offset, const Shape& box, std::span<std::byte> to) { stored.read_box(offset, box, to); }};
}

// All elements as T, rows of `stored` as rows, or transposed.
template <class T>
std::vector<T> matrix(const io::StoredTensor& stored, bool transposed) {
  const auto rows = static_cast<std::size_t>(stored.shape[0]), columns = static_cast<std::size_t>(stored.shape[1]);
  std::vector<std::byte> bytes(stored.bytes.size());
  stored.read_box({0, 0}, stored.shape, bytes);
  std::vector<T> values(rows * columns);
  convert_elements(stored.dtype, bytes, dtype_of<T>, std::as_writable_bytes(std::span(values)));
  if (!transposed) return values;
  std::vector<T> turned(values.size());
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t j = 0; j < columns; ++j) turned[j * rows + i] = values[i * columns + j];
  }
  return turned;
}

// W [rows, columns] gets scale * left [rows, r] . right [r, columns]; sums are in T.
template <class T>
class Update {
 public:
  Update(const Pair& pair, double scale, bool conv1d)
      : r_(static_cast<std::size_t>(pair.a->shape[0])),
        scale_(static_cast<T>(scale)),
        left_(conv1d ? matrix<T>(*pair.a, true) : matrix<T>(*pair.b, false)),
        right_(conv1d ? matrix<T>(*pair.b, true) : matrix<T>(*pair.a, false)) {}

  // Rows of W from number `first` on.
  void add_to(std::span<T> rows, std::size_t first, std::size_t columns) {
    sum_.resize(columns);
    for (std::size_t row = 0; row * columns < rows.size(); ++row) {
      std::ranges::fill(sum_, T{0});
      for (std::size_t k = 0; k < r_; ++k) {
        const T factor = left_[(first + row) * r_ + k];
        const T* from = right_.data() + k * columns;
        for (std::size_t j = 0; j < columns; ++j) sum_[j] += factor * from[j];
      }
      T* to = rows.data() + row * columns;
      for (std::size_t j = 0; j < columns; ++j) to[j] += scale_ * sum_[j];
    }
  }

 private:
  const std::size_t r_;
  const T scale_;
  const std::vector<T> left_;
  const std::vector<T> right_;
  std::vector<T> sum_;
};

class Merge {
 public:
  Merge(const MergeAdapter& options, const CopyWatcher& watcher)
      : options_(options),
        watcher_(watcher),
        assets_(options.base, "--base"),
        weights_(options.base),
        base_(tensors_of(weights_)),
        published_(models::published_names_in(base_.names())),
        adapter_(options.adapter) {
    check_orientation();
    for (const SourceTensor& tensor : base_.tensors()) {
      Item& item = items_[tensor.name];
      item.output = whole(tensor, tensor.name);
      file_of_[tensor.name] = tensor.file;
    }
    untie();
    for (const Pair& pair : adapter_.pairs()) add_update(pair);
    for (const auto& [path, stored] : adapter_.tensors()) {
      if (!path.ends_with(".lora_A.weight") && !path.ends_with(".lora_B.weight")) replace(path, *stored);
    }
  }

  Merged write() {
    open_output();
    WholeFolder output("--save", options_.save);
    Files files;
    for (auto& [name, item] : items_) files[file_of_.at(name)].push_back(item);
    done_.path = options_.save;
    done_.files = static_cast<std::int64_t>(files.size());
    done_.tensors = static_cast<std::int64_t>(items_.size());
    for (const auto& [name, item] : items_) done_.bytes += item.output.size_bytes();
    TensorCopy copy(done_.bytes,
                    [this](std::uint64_t bytes, std::uint64_t) { tell(bytes - copied_), copied_ = bytes; });
    for (const auto& [file, items] : files) write_file(output.path() / file, items, copy);
    const bool is_single = files.size() == 1 && files.begin()->first == "model.safetensors";
    if (!is_single) write_index(output.path());
    assets_.carry_to(output.path(), std::nullopt, untied_);
    output.commit();
    for (const Overflow& overflow : copy.overflows()) done_.overflows.push_back(overflow);
    return done_;
  }

 private:
  // A GPT-2 that was trained elsewhere without its flag would be merged the wrong way round where W is square.
  void check_orientation() const {
    const bool has_conv1d = assets_.model_type() == "gpt2";
    if (has_conv1d == adapter_.fan_in_fan_out()) return;
    config_error(
        "{}: fan_in_fan_out is {}, and the model_type of {} is '{}', whose linear weights are [{}]; they are "
        "of different models",
        adapter_.options().where, adapter_.fan_in_fan_out(), (options_.base / "config.json").string(),
        assets_.model_type(), has_conv1d ? "in, out" : "out, in");
  }

  // The two sides of a tie become two tensors where the adapter has one of them.
  void untie() {
    if (assets_.ties_embeddings() != true) return;
    std::string head, embedding;
    for (const SourceTensor& tensor : base_.tensors()) {
      if (tensor.name.ends_with("lm_head.weight")) head = tensor.name;
      if (tensor.name.ends_with("embed_tokens.weight") || tensor.name.ends_with("wte.weight")) embedding = tensor.name;
    }
    const bool touched = std::ranges::any_of(adapter_.tensors(), [&](const auto& entry) {
      const std::string path = in_base(entry.first);
      return path.find("lm_head.") != std::string::npos || path == embedding || without_first(path) == embedding;
    });
    if (!touched) return;
    untied_ = true;
    if (!head.empty() || embedding.empty()) return;
    const std::string name = in_base("lm_head.weight");
    items_[name].output = whole(*base_.find(embedding), name);
    file_of_[name] = file_of_.at(embedding);
  }

  // The name that the base has for a path of the model.
  std::string in_base(const std::string& path) const { return models::published_part(published_, path).name; }

  // What a path of the adapter means.
  Place place_of(const std::string& adapted) {
    const models::StoredPart part = models::published_part(published_, adapted);
    const std::string& path = part.name;
    auto found = items_.find(path);
    if (found == items_.end()) found = items_.find(std::string(without_first(path)));
    if (found != items_.end()) return rows_of(found->second, part);
    const std::vector<std::string> names = base_.names();
    const auto nearest = nearest_spelling(path, names);
    config_error("{}: the adapter has '{}', which is not among the {} tensors of {}{}; give the base it was trained on",
                 adapter_.weights_file(), path, names.size(), options_.base.string(),
                 nearest ? fmt::format("; the nearest is '{}'", *nearest) : "");
  }

  static Place rows_of(Item& item, const models::StoredPart& part) {
    Shape shape = item.output.shape;
    if (part.parts > 1 && shape.ndim() > 0) shape[0] /= part.parts;
    return {item, shape, part.parts > 1 && shape.ndim() > 0 ? part.part * shape[0] : 0};
  }

  void add_update(const Pair& pair) {
    const Place place = place_of(pair.path + ".weight");
    Item& item = place.item;
    const std::int64_t in = pair.a->shape[1], out = pair.b->shape[0];
    const Shape expected = adapter_.fan_in_fan_out() ? Shape{in, out} : Shape{out, in};
    if (place.shape != expected) {
      config_error("{}: the adapter of '{}' is of a weight {}, and '{}' of {} is {}; give the base it was trained on",
                   adapter_.weights_file(), pair.path, to_string(expected), item.output.name, options_.base.string(),
                   to_string(place.shape));
    }
    if (!is_floating(item.output.dtype)) {
      config_error("{}: '{}' is {}; adapters are added to fp32, bf16, fp16 and fp64", options_.base.string(),
                   item.output.name, name(item.output.dtype));
    }
    item.updates.push_back({&pair, place.row, place.shape[0]});
    ++done_.adapted;
  }

  void replace(const std::string& path, const io::StoredTensor& stored) {
    const Place place = place_of(path);
    Item& item = place.item;
    if (place.shape != item.output.shape) {
      config_error(
          "{}: '{}' replaces a part of '{}' of {}, which is not built; take it out of modules_to_save, or use a base in "
          "the layout of transformers",
          adapter_.weights_file(), path, item.output.name, options_.base.string());
    }
    if (item.output.shape != stored.shape) {
      config_error("{}: '{}' is {}, and {} in {}; give the base it was trained on", adapter_.weights_file(), path,
                   to_string(stored.shape), to_string(item.output.shape), options_.base.string());
    }
    const DType dtype = item.output.dtype;
    replacements_.push_back(std::make_unique<SourceTensor>(source_of(stored)));
    item.output = whole(*replacements_.back(), item.output.name);
    item.output.dtype = dtype;
    ++done_.replaced;
  }

  void open_output() const {
    io::OutputPlan plan;
    plan.reads("--base", options_.base);
    plan.reads("--adapter", options_.adapter);
    plan.writes_folder("--save", options_.save);
    plan.check();
    refuse_taken("--save", options_.save);
    plan.prepare();
  }

  void write_file(const std::filesystem::path& file, const std::vector<Item>& items, TensorCopy& copy) {
    std::vector<io::TensorToWrite> content;
    for (const Item& item : items) {
      io::ByteProducer producer = copy.producer(item.output);
      if (!item.updates.empty()) producer = [this, &item](const io::ByteSink& sink) { produce(item, sink); };
      content.push_back({item.output.name, item.output.dtype, item.output.shape, std::move(producer)});
    }
    io::write_safetensors(file, std::move(content));
  }

  void produce(const Item& item, const io::ByteSink& sink) {
    if (item.output.dtype == DType::kF64) return produce_as<double>(item, sink);
    produce_as<float>(item, sink);
  }

  template <class T>
  void produce_as(const Item& item, const io::ByteSink& sink) {
    const OutputTensor& w = item.output;
    const models::LoraOptions& options = adapter_.options();
    std::vector<Update<T>> updates;
    for (const Adapted& adapted : item.updates) {
      updates.emplace_back(*adapted.pair, options.scale_of(adapted.pair->path), adapter_.fan_in_fan_out());
    }
    const std::int64_t columns = w.shape[1];
    const std::int64_t most = std::max<std::int64_t>(
        1, kPieceBytes / std::max<std::int64_t>(1, columns * static_cast<std::int64_t>(sizeof(T))));
    std::vector<std::byte> stored;
    std::vector<T> values;
    std::int64_t overflowed = 0;
    for (std::int64_t row = 0; row < w.shape[0]; row += most) {
      const Shape box{std::min(most, w.shape[0] - row), columns};
      stored.resize(static_cast<std::size_t>(box.numel() * element_bytes(w.dtype)));
      values.resize(static_cast<std::size_t>(box.numel()));
      w.parts.front().from->read({row, 0}, box, stored);
      convert_elements(w.dtype, stored, dtype_of<T>, std::as_writable_bytes(std::span(values)));
      for (std::size_t i = 0; i < updates.size(); ++i) {
        const Adapted& adapted = item.updates[i];
        // The rows of the piece that are the update's.
        const std::int64_t first = std::max(row, adapted.row);
        const std::int64_t end = std::min(row + box[0], adapted.row + adapted.rows);
        if (first >= end) continue;
        const std::span part = std::span(values).subspan(static_cast<std::size_t>((first - row) * columns),
                                                         static_cast<std::size_t>((end - first) * columns));
        updates[i].add_to(part, static_cast<std::size_t>(first - adapted.row), static_cast<std::size_t>(columns));
      }
      overflowed += convert_elements(dtype_of<T>, std::as_bytes(std::span(values)), w.dtype, stored);
      sink(stored);
      tell(stored.size());
    }
    if (overflowed > 0) done_.overflows.push_back({w.name, overflowed});
  }

  void tell(std::uint64_t more) {
    written_ += more;
    if (watcher_) watcher_(written_, done_.bytes);
  }

  void write_index(const std::filesystem::path& folder) const {
    nlohmann::ordered_json index;
    index["metadata"]["total_size"] = done_.bytes;
    index["weight_map"] = file_of_;
    io::write_text(folder / "model.safetensors.index.json", index.dump(2) + "\n");
  }

  const MergeAdapter& options_;
  const CopyWatcher& watcher_;
  const Assets assets_;
  const io::HfWeights weights_;
  const TensorList base_;
  const models::PublishedNames published_;
  const models::AdapterFolder adapter_;
  std::map<std::string, Item> items_;  // by name in the base
  std::map<std::string, std::string> file_of_;
  std::vector<std::unique_ptr<SourceTensor>> replacements_;
  bool untied_ = false;
  Merged done_;
  std::uint64_t written_ = 0;
  std::uint64_t copied_ = 0;
};

}  // namespace

Merged merge(const MergeAdapter& options, const CopyWatcher& watcher) { return Merge(options, watcher).write(); }

}  // namespace loom::checkpoint
