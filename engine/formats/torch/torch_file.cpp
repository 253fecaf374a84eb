#include "engine/formats/torch/torch_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <fmt/format.h>
#include <optional>
#include <ranges>
#include <utility>

#include "engine/core/shown_text.h"
#include "engine/formats/torch/pickle_reader.h"
#include "engine/formats/torch/pickle_writer.h"
#include "engine/io/checksum.h"

namespace loom::io {
namespace {

using Kind = PickleNode::Kind;

struct TorchDtype {
  DType dtype;
  std::string_view name;
  std::string_view storage;
};

constexpr std::array<TorchDtype, 10> kDtypes{{{DType::kF32, "float32", "FloatStorage"},
                                              {DType::kBF16, "bfloat16", "BFloat16Storage"},
                                              {DType::kF16, "float16", "HalfStorage"},
                                              {DType::kF64, "float64", "DoubleStorage"},
                                              {DType::kI8, "int8", "CharStorage"},
                                              {DType::kI16, "int16", "ShortStorage"},
                                              {DType::kI32, "int32", "IntStorage"},
                                              {DType::kI64, "int64", "LongStorage"},
                                              {DType::kU8, "uint8", "ByteStorage"},
                                              {DType::kBool, "bool", "BoolStorage"}}};

constexpr std::uint64_t kMostPickle = 64 << 20;
constexpr std::size_t kMostNodes = 8'000'000;
constexpr std::size_t kMostDims = 64;         // of PyTorch
constexpr std::uint64_t kBlock = 64 << 10;    // read and summed while it is in the cache
constexpr std::int64_t kLeastRowBytes = 256;  // of a row that is read separately
constexpr int kMostLevels = 64;
constexpr std::int64_t kMostItems = 1'000'000;

const TorchDtype& row_of(DType dtype) { return *std::ranges::find(kDtypes, dtype, &TorchDtype::dtype); }

// The classes in data.pkl of a tensor or a plain value.
bool allowed(std::string_view module, std::string_view name) {
  if (module == "torch._utils") return name == "_rebuild_tensor_v2" || name == "_rebuild_parameter";
  if (module == "collections") return name == "OrderedDict";
  if (module == "argparse") return name == "Namespace";
  if (module == "_codecs") return name == "encode";  // bytes, in protocol 2
  if (module != "torch") return false;
  return name == "Size" || parse_torch_dtype(name).has_value() ||
         std::ranges::find(kDtypes, name, &TorchDtype::storage) != kDtypes.end();
}

// data.pkl with its bytes.
struct Description {
  std::vector<std::byte> bytes;
  Pickle pickle;

  explicit Description(const TorchZip& zip, const AllowClass& allow = allowed)
      : bytes(zip.content(zip.at("data.pkl"), kMostPickle)),
        pickle(bytes, zip.source().where(zip.at("data.pkl").begin) + ", data.pkl", allow, kMostNodes) {
    if (const TorchZipEntry* order = zip.find("byteorder")) check_order(zip, *order);
  }

 private:
  static void check_order(const TorchZip& zip, const TorchZipEntry& entry) {
    const auto content = zip.content(entry, 16);
    const std::string_view text(reinterpret_cast<const char*>(content.data()), content.size());
    if (text == "little") return;
    throw FileDamage(fmt::format("{}: the byte order is '{}'; only little-endian archives are read",
                                 zip.source().where(entry.begin), shown_text(text)));
  }
};

std::vector<std::int64_t> wholes(const Pickle& pickle, const PickleNode& node, std::string_view what) {
  const PickleNode* tuple = &node;
  if (node.is_object_of("torch", "Size") && node.items.size() == 1) tuple = node.items[0];
  if (!tuple->is(Kind::kTuple)) pickle.fail(node, fmt::format("the tensor's {} is not a tuple", what));
  if (tuple->items.size() > kMostDims) {
    pickle.fail(node, fmt::format("a tensor of {} dims; {} is the most", tuple->items.size(), kMostDims));
  }
  std::vector<std::int64_t> found;
  for (const PickleNode* item : tuple->items) {
    if (!item->is(Kind::kWhole) || item->whole < 0) pickle.fail(*item, fmt::format("a {} that is not a size", what));
    found.push_back(item->whole);
  }
  return found;
}

// The arguments of _rebuild_tensor_v2, also behind _rebuild_parameter.
const PickleNode& tensor_arguments(const Pickle& pickle, const PickleNode& of) {
  const PickleNode* node = &of;
  if (node->is_object_of("torch._utils", "_rebuild_parameter") && !node->items.empty()) node = node->items[0];
  if (!node->is_object_of("torch._utils", "_rebuild_tensor_v2") || node->items.size() < 4) {
    pickle.fail(*node, "expected a tensor here");
  }
  return *node;
}

struct StorageName {
  DType dtype = DType::kF32;
  std::string_view key;
};

StorageName storage_name(const Pickle& pickle, const PickleNode& node) {
  const PickleNode* id = node.is(Kind::kPersistent) ? node.state : nullptr;
  const bool whole = id != nullptr && id->is(Kind::kTuple) && id->items.size() >= 3 && id->items[0]->is(Kind::kText) &&
                     id->items[0]->text == "storage" && id->items[1]->is(Kind::kClass) && id->items[2]->is(Kind::kText);
  if (!whole) pickle.fail(node, "expected a tensor's storage here");
  const auto* const row = std::ranges::find(kDtypes, id->items[1]->name, &TorchDtype::storage);
  if (row == kDtypes.end()) pickle.fail(*id->items[1], "a storage of another dtype");
  return {row->dtype, id->items[2]->text};
}

// Nothing where sizes are more than 63 bits count, zeros among them or not.
std::optional<std::int64_t> numel_of(const Shape& shape) {
  std::int64_t nonzero = 1;
  for (const std::int64_t size : shape.sizes()) {
    if (size != 0 && __builtin_mul_overflow(nonzero, size, &nonzero)) return std::nullopt;
  }
  return shape.numel();
}

// The last element's place and one more; nothing where the product leaves 63 bits.
std::optional<std::int64_t> elements_spanned(const Shape& shape, const std::vector<std::int64_t>& strides,
                                             std::int64_t begin) {
  std::int64_t last = begin;
  for (int d = 0; d < shape.ndim(); ++d) {
    std::int64_t step = 0;
    if (shape[d] == 0) return begin;
    if (__builtin_mul_overflow(shape[d] - 1, strides[static_cast<std::size_t>(d)], &step)) return std::nullopt;
    if (__builtin_add_overflow(last, step, &last)) return std::nullopt;
  }
  return last == INT64_MAX ? std::nullopt : std::optional(last + 1);
}

}  // namespace

std::string_view torch_name(DType dtype) { return row_of(dtype).name; }

std::optional<DType> parse_torch_dtype(std::string_view name) {
  const auto* const row = std::ranges::find(kDtypes, name, &TorchDtype::name);
  return row == kDtypes.end() ? std::nullopt : std::optional(row->dtype);
}

TorchTensor::TorchTensor(const ByteSource& source) : zip_(std::make_shared<const TorchZip>(source)) {
  const Description description(*zip_);
  *this = TorchTensor(zip_, description.pickle, description.pickle.root());
}

TorchTensor::TorchTensor(std::shared_ptr<const TorchZip> zip, const Pickle& pickle, const PickleNode& node)
    : zip_(std::move(zip)) {
  const PickleNode& tensor = tensor_arguments(pickle, node);
  const StorageName storage = storage_name(pickle, *tensor.items[0]);
  dtype_ = storage.dtype;
  const PickleNode& begin = *tensor.items[1];
  if (!begin.is(Kind::kWhole) || begin.whole < 0) pickle.fail(begin, "a place in the storage that is not a number");
  begin_ = begin.whole;
  shape_ = Shape(wholes(pickle, *tensor.items[2], "size"));
  strides_ = wholes(pickle, *tensor.items[3], "stride");
  if (strides_.size() != shape_.sizes().size()) pickle.fail(tensor, "a tensor with as many strides as sizes is needed");
  storage_ = &zip_->at(fmt::format("data/{}", storage.key));
  const auto spanned = elements_spanned(shape_, strides_, begin_);
  const auto held = static_cast<std::int64_t>(storage_->size / static_cast<std::uint64_t>(element_bytes(dtype_)));
  const auto numel = numel_of(shape_);
  if (!spanned || *spanned > held || !numel || *numel > held) {
    pickle.fail(tensor, fmt::format("a tensor {} that needs more than the {} elements of its storage",
                                    shown_text(to_string(shape_)), held));
  }
}

bool TorchTensor::is_contiguous() const {
  std::int64_t stride = 1;
  for (int d = shape_.ndim() - 1; d >= 0; --d) {
    if (shape_[d] != 1 && strides_[static_cast<std::size_t>(d)] != stride) return false;
    stride *= shape_[d];
  }
  return true;
}

std::vector<std::byte> TorchTensor::storage() const {
  std::vector<std::byte> bytes = zip_->source().bytes(storage_->begin, storage_->size);
  zip_->check_crc(*storage_, crc32(bytes));
  return bytes;
}

void TorchTensor::verify_storage() const {
  std::vector<std::byte> block(std::min(kBlock, storage_->size));
  std::uint32_t crc = 0;
  for (std::uint64_t at = 0; at < storage_->size; at += block.size()) {
    const auto piece = std::span(block).first(std::min<std::uint64_t>(block.size(), storage_->size - at));
    zip_->source().read(storage_->begin + at, piece);
    crc = crc32(piece, crc);
  }
  zip_->check_crc(*storage_, crc);
}

// The storage is the tensor: every block is summed right behind its reading.
void TorchTensor::read_whole(std::span<std::byte> to) const {
  std::uint32_t crc = 0;
  for (std::uint64_t at = 0; at < to.size(); at += kBlock) {
    const auto piece = to.subspan(at, std::min<std::uint64_t>(kBlock, to.size() - at));
    zip_->source().read(storage_->begin + at, piece);
    crc = crc32(piece, crc);
  }
  zip_->check_crc(*storage_, crc);
}

void TorchTensor::read_box(const Offset& offset, const Shape& box, std::span<std::byte> to, bool verify) const {
  const auto element = static_cast<std::uint64_t>(element_bytes(dtype_));
  require(box_fits(shape_, offset, box) && to.size() == static_cast<std::uint64_t>(box.numel()) * element,
          "{} bytes for {} of a tensor {}", to.size(), describe_box(offset, box), to_string(shape_));
  if (is_contiguous() && begin_ == 0 && box == shape_ && to.size() == storage_->size) return read_whole(to);
  if (is_contiguous()) {
    if (verify) verify_storage();
    const BoxRuns runs(shape_, offset, box);
    const std::uint64_t run_bytes = static_cast<std::uint64_t>(runs.elems()) * element;
    for (std::int64_t i = 0; i < runs.count(); ++i) {
      const auto at = static_cast<std::uint64_t>(begin_ + runs.begin(i)) * element;
      zip_->source().read(storage_->begin + at, to.subspan(static_cast<std::uint64_t>(i) * run_bytes, run_bytes));
    }
    return;
  }
  const std::int64_t row_elems = box.ndim() == 0 ? 1 : box[box.ndim() - 1];
  if (box.ndim() > 0 && strides_.back() == 1 && row_elems * static_cast<std::int64_t>(element) >= kLeastRowBytes) {
    if (verify) verify_storage();
    return read_rows(offset, box, to);
  }
  const std::vector<std::byte> held = storage();
  std::vector<std::int64_t> index(static_cast<std::size_t>(box.ndim()), 0);
  for (std::int64_t i = 0; i < box.numel(); ++i) {
    std::int64_t at = begin_;
    for (std::size_t d = 0; d < index.size(); ++d) at += (offset[d] + index[d]) * strides_[d];
    std::memcpy(to.data() + static_cast<std::uint64_t>(i) * element,
                held.data() + static_cast<std::uint64_t>(at) * element, element);
    for (std::size_t d = index.size(); d > 0 && ++index[d - 1] == box[static_cast<int>(d) - 1]; --d) index[d - 1] = 0;
  }
}

// The last dim's elements lie side by side.
void TorchTensor::read_rows(const Offset& offset, const Shape& box, std::span<std::byte> to) const {
  const auto element = static_cast<std::uint64_t>(element_bytes(dtype_));
  const auto inner = static_cast<std::size_t>(box.ndim() - 1);
  const std::uint64_t row_bytes = static_cast<std::uint64_t>(box[box.ndim() - 1]) * element;
  std::vector<std::int64_t> index(inner, 0);
  for (std::uint64_t done = 0; done < to.size(); done += row_bytes) {
    std::int64_t at = begin_ + offset[inner];
    for (std::size_t d = 0; d < inner; ++d) at += (offset[d] + index[d]) * strides_[d];
    zip_->source().read(storage_->begin + static_cast<std::uint64_t>(at) * element, to.subspan(done, row_bytes));
    for (std::size_t d = inner; d > 0 && ++index[d - 1] == box[static_cast<int>(d) - 1]; --d) index[d - 1] = 0;
  }
}

std::optional<TorchTensor> TorchTensor::reshaped(const Shape& shape) const {
  if (!is_contiguous() || shape.numel() != shape_.numel()) return std::nullopt;
  TorchTensor tensor = *this;
  tensor.shape_ = shape;
  tensor.strides_.assign(shape.sizes().size(), 1);
  for (std::size_t d = tensor.strides_.size(); d > 1; --d) {
    tensor.strides_[d - 2] = tensor.strides_[d - 1] * shape.sizes()[d - 1];
  }
  return tensor;
}

namespace {

// A class that only a file meant to run code in another program's reader names: by the first part of its module, or by
// its name among the functions of Python itself.
bool means_to_run(std::string_view module, std::string_view name) {
  static constexpr std::array<std::string_view, 17> kModules{
      "asyncio", "code", "commands", "ctypes", "importlib", "multiprocessing", "nt",  "os",        "platform",
      "posix",   "pty",  "runpy",    "shutil", "socket",    "subprocess",      "sys", "webbrowser"};
  static constexpr std::array<std::string_view, 8> kFunctions{"__import__", "apply", "breakpoint", "compile",
                                                              "eval",       "exec",  "execfile",   "open"};
  const std::string_view first = module.substr(0, module.find('.'));
  if (first == "builtins" || first == "__builtin__") return std::ranges::find(kFunctions, name) != kFunctions.end();
  return std::ranges::find(kModules, first) != kModules.end();
}

bool is_mapping(const PickleNode& node) {
  return node.is(Kind::kDict) || node.is_object_of("collections", "OrderedDict") ||
         node.is_object_of("collections", "defaultdict");
}

bool is_tensor(const PickleNode& node) {
  return node.is_object_of("torch._utils", "_rebuild_tensor_v2") ||
         node.is_object_of("torch._utils", "_rebuild_parameter");
}

}  // namespace

TorchMapping::TorchMapping(const ByteSource& source) : where_(source.where(0)) {
  const auto zip = std::make_shared<const TorchZip>(source);
  const Description description(
      *zip, [](std::string_view module, std::string_view name) { return !means_to_run(module, name); });
  const Pickle& pickle = description.pickle;
  if (!is_mapping(pickle.root())) pickle.fail(pickle.root(), "expected a mapping of names here");
  const auto& items = pickle.root().items;
  std::int64_t count = 0;
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
    if (!items[i]->is(Kind::kText)) continue;
    const std::string key(items[i]->text);
    keys_.push_back(key);
    if (!is_mapping(*items[i + 1])) continue;
    auto& tensors = tensors_[key];
    const auto& entries = items[i + 1]->items;
    for (std::size_t e = 0; e + 1 < entries.size(); e += 2) {
      if (!entries[e]->is(Kind::kText) || !is_tensor(*entries[e + 1])) continue;
      if (entries[e]->text.ends_with("_extra_state")) continue;
      const bool is_new =
          tensors.emplace(std::string(entries[e]->text), TorchTensor(zip, pickle, *entries[e + 1])).second;
      if (++count > kMostItems) pickle.fail(*entries[e], fmt::format("more than {} tensors", kMostItems));
      if (!is_new) pickle.fail(*entries[e], fmt::format("'{}' occurs twice", shown_text(entries[e]->text)));
    }
  }
}

bool TorchMapping::has(std::string_view key) const { return tensors_.contains(key); }

const std::map<std::string, TorchTensor, std::less<>>& TorchMapping::tensors(std::string_view key) const {
  const auto found = tensors_.find(key);
  if (found != tensors_.end()) return found->second;
  throw FileDamage(
      fmt::format("{}: no mapping of names to tensors under '{}'; there are: {}", where_, key,
                  fmt::join(keys_ | std::views::transform([](const auto& k) { return shown_text(k); }), ", ")));
}

namespace {

// The bytes whose characters, U+0000 to U+00FF, a text in UTF-8 holds; nothing where it holds others.
std::optional<std::string> from_latin1(std::string_view text) {
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto first = static_cast<unsigned char>(text[i]);
    if (first < 0x80) {
      bytes.push_back(text[i]);
    } else if ((first == 0xc2 || first == 0xc3) && i + 1 < text.size()) {
      bytes.push_back(static_cast<char>((first & 3u) << 6 | (static_cast<unsigned char>(text[++i]) & 0x3fu)));
    } else {
      return std::nullopt;
    }
  }
  return bytes;
}

class ValueReader {
 public:
  explicit ValueReader(const Pickle& pickle) : pickle_(pickle), text_left_(pickle.size_bytes() + kMostRepeatedText) {}

  PlainValue read(const PickleNode& node, int level = 0) {
    if (level > kMostLevels) pickle_.fail(node, fmt::format("a value of more than {} levels", kMostLevels));
    if (++items_ > kMostItems) pickle_.fail(node, fmt::format("a value of more than {} items", kMostItems));
    switch (node.kind) {
      case Kind::kNone:
        return {};
      case Kind::kBool:
        return PlainValue::boolean(node.whole != 0);
      case Kind::kWhole:
        return PlainValue::whole(node.whole);
      case Kind::kReal:
        return PlainValue::real(node.real);
      case Kind::kText:
        return PlainValue::text(text(node));
      case Kind::kBytes:
        return PlainValue::bytes(text(node));
      case Kind::kTuple:
        return PlainValue::tuple(list(node, level));
      case Kind::kList:
      case Kind::kSet:
        return PlainValue::list(list(node, level));
      case Kind::kDict:
        return dict(node, level);
      case Kind::kClass:
        return PlainValue::text(fmt::format("{}.{}", node.text, node.name));
      case Kind::kObject:
        return object(node, level);
      case Kind::kPersistent:
        break;
    }
    pickle_.fail(node, "a tensor is inside a value that must not have any");
  }

 private:
  // A text may be referred to any number of times, and is copied each time.
  std::string text(const PickleNode& node) {
    if (node.text.size() > text_left_) {
      pickle_.fail(
          node, fmt::format("a value whose texts have more than {} bytes", pickle_.size_bytes() + kMostRepeatedText));
    }
    text_left_ -= node.text.size();
    return std::string(node.text);
  }
  // Protocol 2's form of bytes: a text whose characters are the bytes.
  PlainValue bytes(const PickleNode& node) {
    const bool latin = node.items.size() == 2 && node.items[0]->is(Kind::kText) && node.items[1]->is(Kind::kText) &&
                       (node.items[1]->text == "latin1" || node.items[1]->text == "latin-1");
    if (!latin) pickle_.fail(node, "bytes that are not text in latin1");
    const auto found = from_latin1(text(*node.items[0]));
    if (!found) pickle_.fail(*node.items[0], "bytes that are not text in latin1");
    return PlainValue::bytes(*found);
  }
  std::vector<PlainValue> list(const PickleNode& node, int level) {
    std::vector<PlainValue> values;
    for (const PickleNode* item : node.items) values.push_back(read(*item, level + 1));
    return values;
  }
  PlainValue dict(const PickleNode& node, int level) {
    std::vector<std::pair<PlainValue, PlainValue>> entries;
    for (std::size_t i = 0; i + 1 < node.items.size(); i += 2) {
      entries.emplace_back(read(*node.items[i], level + 1), read(*node.items[i + 1], level + 1));
    }
    return PlainValue::dict(std::move(entries));
  }
  PlainValue object(const PickleNode& node, int level) {
    if (node.of_class->is_class("collections", "OrderedDict")) return dict(node, level);
    if (node.of_class->is_class("_codecs", "encode")) return bytes(node);
    if (node.of_class->is_class("torch", "Size") && node.items.size() == 1) return read(*node.items[0], level + 1);
    if (node.of_class->is_class("argparse", "Namespace") && node.state != nullptr && node.state->is(Kind::kDict)) {
      return dict(*node.state, level);
    }
    pickle_.fail(node, fmt::format("an object of {}.{}, instead of a plain value", shown_text(node.of_class->text),
                                   shown_text(node.of_class->name)));
  }

  static constexpr std::size_t kMostRepeatedText = 64 << 20;

  const Pickle& pickle_;
  std::int64_t items_ = 0;
  std::size_t text_left_;
};

void write_rest(TorchZipWriter& zip, const std::string& pickle) {
  zip.entry("data.pkl", pickle);
  zip.entry(".format_version", "1");
  zip.entry(".storage_alignment", "64");
  zip.entry("byteorder", "little");
}

std::vector<std::int64_t> row_major_strides(const Shape& shape) {
  std::vector<std::int64_t> strides(shape.sizes().size());
  std::int64_t stride = 1;
  for (std::size_t d = strides.size(); d > 0; --d) {
    strides[d - 1] = stride;
    stride *= std::max<std::int64_t>(1, shape.sizes()[d - 1]);
  }
  return strides;
}

void write_tensor(PickleWriter& out, DType dtype, const Shape& shape, const std::string& storage) {
  out.global("torch._utils", "_rebuild_tensor_v2");
  out.begin_tuple();
  out.begin_tuple();
  out.text("storage");
  out.global("torch", row_of(dtype).storage);
  out.text(storage);
  out.text("cpu");
  out.whole(shape.numel());
  out.end_tuple();
  out.persistent();
  out.whole(0);
  out.wholes(shape.sizes());
  out.wholes(row_major_strides(shape));
  out.boolean(false);
  out.global("collections", "OrderedDict");
  out.begin_tuple();
  out.end_tuple();
  out.reduce();
  out.end_tuple();
  out.reduce();
}

std::string tensor_pickle(DType dtype, const Shape& shape) {
  PickleWriter out(2);
  write_tensor(out, dtype, shape, "0");
  return out.finish();
}

void begin_ordered(PickleWriter& out) {
  out.global("collections", "OrderedDict");
  out.begin_tuple();
  out.end_tuple();
  out.reduce();
  out.begin_items();
}

void write_attributes(PickleWriter& out, const PlainValue& value) {
  begin_ordered(out);
  for (const PlainValue& item : value.items()) out.value(item);
  out.end_dict();
  out.value(value);
  out.build();
}

std::string mapping_pickle(const std::vector<TorchEntry>& entries) {
  PickleWriter out(2);
  std::size_t storage = 0;
  out.begin_dict();
  for (const TorchEntry& entry : entries) {
    out.text(entry.key);
    if (!entry.tensors) {
      entry.as_attributes ? write_attributes(out, entry.value) : out.value(entry.value);
      continue;
    }
    begin_ordered(out);
    for (const TensorToWrite& tensor : *entry.tensors) {
      out.text(tensor.name);
      write_tensor(out, tensor.dtype, tensor.shape, fmt::to_string(storage++));
    }
    out.end_dict();
  }
  out.end_dict();
  return out.finish();
}

}  // namespace

PlainValue read_torch_value(const ByteSource& source) {
  const TorchZip zip(source);
  const Description description(zip);
  return ValueReader(description.pickle).read(description.pickle.root());
}

std::uint64_t write_torch_tensor(const ByteSink& sink, DType dtype, const Shape& shape, const ByteProducer& content) {
  TorchZipWriter zip(sink);
  write_rest(zip, tensor_pickle(dtype, shape));
  zip.begin("data/0", static_cast<std::uint64_t>(shape.numel() * element_bytes(dtype)));
  content([&](std::span<const std::byte> piece) { zip.append(piece); });
  zip.end();
  zip.entry("version", "3\n");
  zip.finish();
  return zip.written();
}

std::uint64_t torch_tensor_bytes(DType dtype, const Shape& shape) {
  TorchZipWriter zip([](std::span<const std::byte>) {});
  write_rest(zip, tensor_pickle(dtype, shape));
  zip.begin("data/0", static_cast<std::uint64_t>(shape.numel() * element_bytes(dtype)));
  zip.skip();
  zip.end();
  zip.entry("version", "3\n");
  zip.finish();
  return zip.written();
}

std::uint64_t write_torch_mapping(const ByteSink& sink, const std::vector<TorchEntry>& entries) {
  TorchZipWriter zip(sink);
  write_rest(zip, mapping_pickle(entries));
  std::size_t storage = 0;
  const ByteSink to_zip = [&zip](std::span<const std::byte> piece) { zip.append(piece); };
  for (const TorchEntry& entry : entries) {
    if (!entry.tensors) continue;
    for (const TensorToWrite& tensor : *entry.tensors) {
      zip.begin(fmt::format("data/{}", storage++),
                static_cast<std::uint64_t>(tensor.shape.numel() * element_bytes(tensor.dtype)));
      if (const auto* bytes = std::get_if<std::span<const std::byte>>(&tensor.content)) zip.append(*bytes);
      if (const auto* content = std::get_if<ByteProducer>(&tensor.content)) (*content)(to_zip);
      zip.end();
    }
  }
  zip.entry("version", "3\n");
  zip.finish();
  return zip.written();
}

std::uint64_t write_torch_value(const ByteSink& sink, const PlainValue& value) {
  PickleWriter pickle(2);
  pickle.value(value);
  TorchZipWriter zip(sink);
  write_rest(zip, pickle.finish());
  zip.entry("version", "3\n");
  zip.finish();
  return zip.written();
}

}  // namespace loom::io
