#include "engine/formats/dcp/dcp_metadata.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/formats/torch/pickle_reader.h"
#include "engine/formats/torch/pickle_writer.h"
#include "engine/formats/torch/torch_file.h"
#include "engine/io/byte_source.h"

namespace loom::io {
namespace {

using Kind = PickleNode::Kind;

constexpr std::string_view kModule = "torch.distributed.checkpoint.metadata";
constexpr std::string_view kOlderModule = "torch.distributed._shard.sharded_tensor.metadata";
constexpr std::string_view kFileModule = "torch.distributed.checkpoint.filesystem";

constexpr std::array<std::pair<std::string_view, std::string_view>, 17> kClasses{{
    {kModule, "Metadata"},
    {kModule, "TensorStorageMetadata"},
    {kModule, "BytesStorageMetadata"},
    {kModule, "ChunkStorageMetadata"},
    {kModule, "TensorProperties"},
    {kModule, "_MEM_FORMAT_ENCODING"},
    {kModule, "MetadataIndex"},
    {kModule, "StorageMeta"},
    {kOlderModule, "TensorProperties"},
    {kOlderModule, "MEM_FORMAT_ENCODING"},
    {kFileModule, "_StorageInfo"},
    {"torch.serialization", "_get_layout"},
    {"torch", "Size"},
    {"pathlib", "PosixPath"},
    {"pathlib", "PurePosixPath"},
    {"pathlib._local", "PosixPath"},
    {"collections", "OrderedDict"},
}};

bool allowed(std::string_view module, std::string_view name) {
  if (module == "torch" && parse_torch_dtype(name)) return true;
  return std::ranges::find(kClasses, std::pair(module, name)) != kClasses.end();
}

// A plain name, which cannot refer to a file outside the checkpoint's own folder.
bool is_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos && name.size() <= 255;
}

class Reader {
 public:
  Reader(std::span<const std::byte> bytes, const std::string& file)
      : file_(file), pickle_(bytes, file, allowed), most_numbers_(bytes.size()) {}

  DcpMetadata read() {
    const PickleNode& root = state_of(pickle_.root(), "Metadata");
    const PickleNode& planner = member(root, "planner_data");
    const PickleNode& places = dict(member(root, "storage_data"));
    most_pieces_ = places.items.size() / 2;
    read_items(dict(member(root, "state_dict_metadata")), planner);
    read_places(places);
    for (const DcpItem& item : made_.items) {
      check_places(item);
      if (item.is_tensor) check_pieces(item, file_);
    }
    made_.index();
    return std::move(made_);
  }

 private:
  [[noreturn]] void fail(const PickleNode& node, const std::string& what) const { pickle_.fail(node, what); }

  const PickleNode& state_of(const PickleNode& node, std::string_view class_name) const {
    const bool is_it = node.is(Kind::kObject) && node.of_class->name == class_name && node.state != nullptr;
    if (!is_it) fail(node, fmt::format("expected a {} here", class_name));
    return *node.state;
  }
  const PickleNode& member(const PickleNode& state, std::string_view name) const {
    const PickleNode* found = state.find(name);
    if (found == nullptr) fail(state, fmt::format("'{}' is missing", name));
    return *found;
  }
  const PickleNode& dict(const PickleNode& node) const {
    if (!node.is(Kind::kDict)) fail(node, "expected a dict here");
    return node;
  }
  std::string text(const PickleNode& node) const {
    if (!node.is(Kind::kText)) fail(node, "expected a text here");
    return std::string(node.text);
  }
  std::uint64_t size(const PickleNode& node) const {
    if (!node.is(Kind::kWhole) || node.whole < 0) fail(node, "expected a size here");
    return static_cast<std::uint64_t>(node.whole);
  }
  std::vector<std::int64_t> sizes(const PickleNode& node) {
    const bool is_size = node.is_object_of("torch", "Size") && node.items.size() == 1;
    const PickleNode& tuple = is_size ? *node.items[0] : node;
    if (!tuple.is(Kind::kTuple) && !tuple.is(Kind::kList)) fail(node, "expected a torch.Size here");
    if (tuple.items.size() > kMostDims) {
      fail(node, fmt::format("a tensor of {} dims; {} is the most", tuple.items.size(), kMostDims));
    }
    numbers_ += tuple.items.size();
    if (numbers_ > most_numbers_) fail(node, "more sizes than the file has bytes: they refer to one another");
    std::vector<std::int64_t> found;
    for (const PickleNode* item : tuple.items) found.push_back(static_cast<std::int64_t>(size(*item)));
    return found;
  }

  DType dtype(const PickleNode& properties) const {
    if (!properties.is(Kind::kObject) || properties.state == nullptr) fail(properties, "no TensorProperties");
    const PickleNode& state = *properties.state;
    const PickleNode* found = state.is(Kind::kTuple) && !state.items.empty() ? state.items[0] : state.find("dtype");
    const auto dtype = found != nullptr && found->is(Kind::kClass) ? parse_torch_dtype(found->name) : std::nullopt;
    if (!dtype) fail(state, "expected a dtype of torch here");
    return *dtype;
  }

  void read_items(const PickleNode& items, const PickleNode& planner) {
    for (std::size_t i = 0; i + 1 < items.items.size(); i += 2) {
      DcpItem item;
      item.name = text(*items.items[i]);
      item.path = path_of(item.name, planner);
      const PickleNode& about = *items.items[i + 1];
      item.is_tensor = about.is(Kind::kObject) && about.of_class->name == "TensorStorageMetadata";
      if (item.is_tensor) {
        read_tensor(state_of(about, "TensorStorageMetadata"), item);
      } else if (!about.is(Kind::kObject) || about.of_class->name != "BytesStorageMetadata") {
        fail(about, "expected a tensor or a value here");
      }
      if (!places_.emplace(item.name, made_.items.size()).second) {
        fail(*items.items[i], fmt::format("'{}' occurs twice", shown_text(item.name)));
      }
      made_.items.push_back(std::move(item));
    }
  }

  void read_tensor(const PickleNode& state, DcpItem& item) {
    item.dtype = dtype(member(state, "properties"));
    item.shape = Shape(sizes(member(state, "size")));
    const PickleNode& chunks = member(state, "chunks");
    if (!chunks.is(Kind::kList)) fail(chunks, "expected a list of chunks here");
    pieces_ += chunks.items.size();
    if (pieces_ > most_pieces_) {
      fail(chunks, fmt::format("{} pieces up to here, but storage_data has places of {}", pieces_, most_pieces_));
    }
    for (const PickleNode* chunk : chunks.items) {
      const PickleNode& box = state_of(*chunk, "ChunkStorageMetadata");
      item.pieces.push_back({.offset = sizes(member(box, "offsets")), .shape = Shape(sizes(member(box, "sizes")))});
      item.pieces.back().length = kNowhere;
    }
  }

  // The default planner keeps for every flat name its place in the nested state.
  std::vector<DcpKey> path_of(const std::string& name, const PickleNode& planner) const {
    if (planner.is(Kind::kDict) && planned_.empty()) index_planner(planner);
    const auto place = planned_.find(name);
    if (place == planned_.end()) return {name};  // another planner's
    const PickleNode& found = *place->second;
    const bool is_path = (found.is(Kind::kTuple) || found.is(Kind::kList)) && !found.items.empty();
    if (!is_path) fail(found, fmt::format("expected the path of '{}' here", shown_text(name)));
    std::vector<DcpKey> path;
    std::size_t length = found.items.size() - 1;  // of the keys with a dot between them: that is the name
    for (const PickleNode* key : found.items) {
      if (!key->is(Kind::kText) && !key->is(Kind::kWhole)) fail(*key, "a key of a path is neither a text nor a number");
      length += key->is(Kind::kText) ? key->text.size() : 1;
      if (length > name.size()) fail(*key, fmt::format("a path that is longer than its name '{}'", shown_text(name)));
      if (key->is(Kind::kText)) path.emplace_back(std::string(key->text));
      if (key->is(Kind::kWhole)) path.emplace_back(key->whole);
    }
    return path;
  }
  void index_planner(const PickleNode& planner) const {
    for (std::size_t i = 0; i + 1 < planner.items.size(); i += 2) {
      if (planner.items[i]->is(Kind::kText)) planned_[planner.items[i]->text] = planner.items[i + 1];
    }
  }

  void read_places(const PickleNode& places) {
    for (std::size_t i = 0; i + 1 < places.items.size(); i += 2) {
      const PickleNode& index = state_of(*places.items[i], "MetadataIndex");
      const PickleNode& info = state_of(*places.items[i + 1], "_StorageInfo");
      const std::string name = text(member(index, "fqn"));
      const auto found = places_.find(name);
      if (found == places_.end()) fail(index, fmt::format("a place of '{}', which is not an item", shown_text(name)));
      DcpPiece& piece = piece_at(found->second, index);
      if (piece.length != kNowhere) fail(index, fmt::format("a second place of a piece of '{}'", shown_text(name)));
      if (const PickleNode* transforms = info.find("transform_descriptors");
          transforms != nullptr && !transforms->is(Kind::kNone) && !transforms->items.empty()) {
        fail(*transforms, "the file was written through an extension (compression); write it without");
      }
      piece.file = file_number(info);
      piece.begin = size(member(info, "offset"));
      piece.length = size(member(info, "length"));
    }
  }

  DcpPiece& piece_at(std::size_t number, const PickleNode& index) {
    DcpItem& item = made_.items[number];
    if (!item.is_tensor) {
      if (item.pieces.empty()) item.pieces.emplace_back().length = kNowhere;
      return item.pieces[0];
    }
    const PickleNode& offset_node = member(index, "offset");
    const Offset offset = sizes(offset_node);
    if (const PickleNode* hint = index.find("index"); hint != nullptr && hint->is(Kind::kWhole) && hint->whole >= 0) {
      const auto place = static_cast<std::size_t>(hint->whole);
      if (place < item.pieces.size() && item.pieces[place].offset == offset) return item.pieces[place];
    }
    auto& by_offset = pieces_by_offset_[number];
    for (std::size_t i = 0; by_offset.empty() && i < item.pieces.size(); ++i)
      by_offset.emplace(item.pieces[i].offset, i);
    const auto found = by_offset.find(offset);
    if (found == by_offset.end()) {
      fail(index, fmt::format("a place of a piece that '{}' has not", shown_text(item.name)));
    }
    return item.pieces[found->second];
  }

  std::size_t file_number(const PickleNode& info) {
    const PickleNode& node = member(info, "relative_path");
    const std::string name = text(node);
    if (!is_file_name(name)) {
      fail(node, fmt::format("'{}' should be the name of a file in the checkpoint's folder", shown_text(name)));
    }
    const auto [found, is_new] = files_.emplace(name, made_.files.size());
    if (is_new) made_.files.push_back(name);
    return found->second;
  }

  void check_places(const DcpItem& item) const {
    const bool whole = std::ranges::none_of(item.pieces, [](const DcpPiece& p) { return p.length == kNowhere; });
    if (whole && (item.is_tensor || !item.pieces.empty())) return;
    throw FileDamage(fmt::format("{}: '{}' has a piece without a place in a file", file_, shown_text(item.name)));
  }

  static constexpr std::uint64_t kNowhere = ~std::uint64_t{0};
  static constexpr std::size_t kMostDims = 64;  // of PyTorch

  const std::string file_;
  const Pickle pickle_;
  DcpMetadata made_;
  std::size_t pieces_ = 0;  // of all tensors
  std::size_t most_pieces_ = 0;
  std::size_t numbers_ = 0;  // in all sizes and offsets
  const std::size_t most_numbers_;
  std::map<std::string, std::size_t> places_;                              // of items, by name
  std::map<std::size_t, std::map<Offset, std::size_t>> pieces_by_offset_;  // of items whose hints do not hold
  std::map<std::string, std::size_t> files_;
  mutable std::unordered_map<std::string_view, const PickleNode*> planned_;
};

// --- the pieces of a tensor

constexpr std::int64_t kMostComparisons = 50'000'000;

bool overlap(const DcpPiece& a, const DcpPiece& b) {
  for (int d = 0; d < a.shape.ndim(); ++d) {
    const auto i = static_cast<std::size_t>(d);
    if (a.offset[i] >= b.offset[i] + b.shape[d] || b.offset[i] >= a.offset[i] + a.shape[d]) return false;
  }
  return true;
}

[[noreturn]] void fail_item(const DcpItem& item, const std::string& file, const std::string& what) {
  throw FileDamage(
      fmt::format("{}: '{}' {}: {}", file, shown_text(item.name), shown_text(to_string(item.shape)), what));
}

std::int64_t checked_numel(const Shape& shape, const DcpItem& item, const std::string& file) {
  std::int64_t total = element_bytes(item.dtype);
  for (const std::int64_t size : shape.sizes()) {
    if (size != 0 && __builtin_mul_overflow(total, size, &total)) fail_item(item, file, "too many elements");
  }
  return shape.numel();
}

// Pieces that begin before others end, in dim 0, are compared with each other.
void check_overlap(const DcpItem& item, const std::string& file) {
  std::vector<const DcpPiece*> sorted;
  for (const DcpPiece& piece : item.pieces) {
    if (piece.shape.numel() > 0) sorted.push_back(&piece);
  }
  std::ranges::sort(sorted, {}, [](const DcpPiece* piece) -> const Offset& { return piece->offset; });
  std::int64_t comparisons = 0;
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    for (std::size_t j = i + 1; j < sorted.size(); ++j) {
      const bool behind =
          !item.shape.sizes().empty() && sorted[j]->offset[0] >= sorted[i]->offset[0] + sorted[i]->shape[0];
      if (behind) break;
      if (++comparisons > kMostComparisons) fail_item(item, file, "too many pieces beside one another");
      if (overlap(*sorted[i], *sorted[j])) {
        fail_item(item, file,
                  fmt::format("the pieces {} and {} overlap", describe_box(sorted[i]->offset, sorted[i]->shape),
                              describe_box(sorted[j]->offset, sorted[j]->shape)));
      }
    }
  }
}

// --- writing

void write_size(PickleWriter& out, const std::vector<std::int64_t>& sizes) {
  out.global("torch", "Size");
  out.begin_tuple();
  out.wholes(sizes);
  out.end_tuple();
  out.reduce();
}

// An object whose state follows; build() closes it.
void begin_object(PickleWriter& out, std::string_view module, std::string_view name) {
  out.global(module, name);
  out.begin_tuple();
  out.end_tuple();
  out.new_object();
}

void write_properties(PickleWriter& out, DType dtype) {
  begin_object(out, kModule, "TensorProperties");
  out.begin_tuple();
  out.global("torch", torch_name(dtype));
  out.global("torch.serialization", "_get_layout");
  out.begin_tuple();
  out.text("torch.strided");
  out.end_tuple();
  out.reduce();
  out.boolean(false);  // requires_grad
  out.global(kModule, "_MEM_FORMAT_ENCODING");
  out.wholes(std::array<std::int64_t, 1>{0});  // contiguous
  out.reduce();
  out.boolean(false);  // pin_memory
  out.end_tuple();
  out.build();
}

void write_tensor(PickleWriter& out, const DcpItem& item) {
  begin_object(out, kModule, "TensorStorageMetadata");
  out.begin_dict();
  out.text("properties");
  write_properties(out, item.dtype);
  out.text("size");
  write_size(out, item.shape.sizes());
  out.text("chunks");
  out.begin_list();
  for (const DcpPiece& piece : item.pieces) {
    begin_object(out, kModule, "ChunkStorageMetadata");
    out.begin_dict();
    out.text("offsets");
    write_size(out, piece.offset);
    out.text("sizes");
    write_size(out, piece.shape.sizes());
    out.end_dict();
    out.build();
  }
  out.end_list();
  out.end_dict();
  out.build();
}

void write_place(PickleWriter& out, const DcpMetadata& metadata, const DcpItem& item, std::size_t number) {
  const DcpPiece& piece = item.pieces[number];
  begin_object(out, kModule, "MetadataIndex");
  out.begin_dict();
  out.text("fqn");
  out.text(item.name);
  out.text("index");
  if (item.is_tensor) {
    out.whole(static_cast<std::int64_t>(number));
    out.text("offset");
    write_size(out, piece.offset);
  } else {
    out.none();
  }
  out.end_dict();
  out.build();
  begin_object(out, kFileModule, "_StorageInfo");
  out.begin_dict();
  out.text("relative_path");
  out.text(metadata.files[piece.file]);
  out.text("offset");
  out.whole(static_cast<std::int64_t>(piece.begin));
  out.text("length");
  out.whole(static_cast<std::int64_t>(piece.length));
  out.end_dict();
  out.build();
}

void write_path(PickleWriter& out, const DcpItem& item) {
  out.begin_tuple();
  for (const DcpKey& key : item.path) {
    if (const auto* name = std::get_if<std::string>(&key)) {
      out.text(*name);
    } else {
      out.whole(std::get<std::int64_t>(key));
    }
  }
  out.end_tuple();
}

}  // namespace

bool are_tied(const DcpItem& item, const DcpItem& other) {
  return item.is_tensor && other.is_tensor && item.dtype == other.dtype && item.shape == other.shape &&
         !item.pieces.empty() && item.pieces.front().length > 0 && item.pieces == other.pieces;
}

const DcpItem* DcpMetadata::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &items[found->second];
}

void DcpMetadata::index() {
  by_name_.clear();
  for (std::size_t i = 0; i < items.size(); ++i) by_name_.emplace(items[i].name, i);
}

DcpMetadata read_dcp_metadata(std::span<const std::byte> bytes, const std::string& file) {
  return Reader(bytes, file).read();
}

void check_pieces(const DcpItem& item, const std::string& file) {
  const std::int64_t numel = checked_numel(item.shape, item, file);
  std::int64_t covered = 0;
  for (const DcpPiece& piece : item.pieces) {
    if (!box_fits(item.shape, piece.offset, piece.shape)) {
      fail_item(item, file,
                fmt::format("the piece {} is not a part of it", shown_text(describe_box(piece.offset, piece.shape))));
    }
    if (__builtin_add_overflow(covered, piece.shape.numel(), &covered) || covered > numel) {
      fail_item(item, file, "its pieces overlap");
    }
  }
  if (covered < numel) {
    fail_item(item, file, fmt::format("its pieces hold {} of {} elements", covered, numel));
  }
  check_overlap(item, file);
}

std::string write_dcp_metadata(const DcpMetadata& metadata) {
  PickleWriter out(4);
  begin_object(out, kModule, "Metadata");
  out.begin_dict();
  out.text("state_dict_metadata");
  out.begin_dict();
  for (const DcpItem& item : metadata.items) {
    out.text(item.name);
    if (item.is_tensor) {
      write_tensor(out, item);
    } else {
      begin_object(out, kModule, "BytesStorageMetadata");
    }
  }
  out.end_dict();
  out.text("planner_data");
  out.begin_dict();
  for (const DcpItem& item : metadata.items) {
    out.text(item.name);
    write_path(out, item);
  }
  out.end_dict();
  out.text("storage_data");
  out.begin_dict();
  for (const DcpItem& item : metadata.items) {
    for (std::size_t i = 0; i < item.pieces.size(); ++i) write_place(out, metadata, item, i);
  }
  out.end_dict();
  out.text("storage_meta");
  out.none();
  out.text("version");
  out.text("1.0.0");
  out.end_dict();
  out.build();
  return out.finish();
}

}  // namespace loom::io
