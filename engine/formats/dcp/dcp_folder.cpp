#include "engine/formats/dcp/dcp_folder.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <system_error>
#include <utility>

#include "engine/core/shown_text.h"
#include "engine/formats/torch/torch_file.h"
#include "engine/io/json_text.h"

namespace loom::io {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kShardingInfo = "DCP_SHARDING_INFO";
constexpr std::uint64_t kMostMetadata = std::uint64_t{2} << 30;

struct Box {
  Offset offset;
  Shape shape;
};

// The common part of two boxes of one tensor; nothing if it has no element.
std::optional<Box> common(const DcpPiece& piece, const Offset& offset, const Shape& shape) {
  Box box{offset, shape};
  for (int d = 0; d < shape.ndim(); ++d) {
    const auto i = static_cast<std::size_t>(d);
    const std::int64_t begin = std::max(offset[i], piece.offset[i]);
    const std::int64_t end = std::min(offset[i] + shape[d], piece.offset[i] + piece.shape[d]);
    if (begin >= end) return std::nullopt;
    box.offset[i] = begin;
    box.shape[d] = end - begin;
  }
  return box;
}

Offset minus(Offset a, const Offset& b) {
  for (std::size_t d = 0; d < a.size(); ++d) a[d] -= b[d];
  return a;
}

// Puts a box's elements into their places of the larger box `whole`.
void scatter(std::span<const std::byte> from, const Offset& at, const Shape& box, const Shape& whole,
             std::int64_t element_bytes, std::span<std::byte> to) {
  const BoxRuns runs(whole, at, box);
  const auto run_bytes = static_cast<std::size_t>(runs.elems() * element_bytes);
  for (std::int64_t i = 0; i < runs.count(); ++i) {
    std::memcpy(to.data() + runs.begin(i) * element_bytes, from.data() + static_cast<std::size_t>(i) * run_bytes,
                run_bytes);
  }
}

// The path of a file of the folder, which may be a link within it only.
fs::path inside(const fs::path& folder, const std::string& name) {
  const fs::path path = folder / name;
  std::error_code error;
  if (!fs::is_symlink(fs::symlink_status(path, error))) return path;
  const fs::path target = fs::weakly_canonical(path, error);
  const fs::path root = fs::weakly_canonical(folder, error);
  if (!error && target.parent_path() == root) return path;
  throw FileDamage(fmt::format("{}: a symbolic link out of the checkpoint's folder, to {}; put the file itself there",
                               escaped(path.string()), shown_text(target.string())));
}

MappedFile open_inside(const fs::path& folder, const std::string& name) {
  const fs::path path = inside(folder, name);
  std::error_code error;
  if (!fs::exists(path, error)) {
    throw FileDamage(fmt::format("{}: missing, but the checkpoint's .metadata names it", escaped(path.string())));
  }
  return MappedFile(path);
}

std::vector<std::string> safetensors_names(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".safetensors") names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

// The sharding information in the header of a safetensors file; without it, its tensors are whole.
class ShardingInfo {
 public:
  explicit ShardingInfo(const SafetensorsFile& file) : where_(file.path().string() + ": DCP_SHARDING_INFO") {
    const auto found = file.metadata().find(std::string(kShardingInfo));
    if (found == file.metadata().end()) return;
    info_ = parse_json(found->second, where_);
    if (!info_->is_object()) throw FileDamage(fmt::format("{}: no object of JSON", where_));
  }

  // "saved_offsets" of a tensor.
  Offset offset_of(const StoredTensor& tensor) const {
    Offset offset(static_cast<std::size_t>(tensor.shape.ndim()), 0);
    if (!info_) return offset;
    const auto entry = info_->find(tensor.name);
    const bool has = entry != info_->end() && entry->is_object() && entry->contains("saved_offsets") &&
                     (*entry)["saved_offsets"].is_array() && (*entry)["saved_offsets"].size() == offset.size();
    if (!has) throw FileDamage(fmt::format("{}: no saved_offsets of '{}'", where_, shown_text(tensor.name)));
    for (std::size_t d = 0; d < offset.size(); ++d) {
      const auto& number = (*entry)["saved_offsets"][d];
      const auto most = static_cast<std::uint64_t>(INT64_MAX - tensor.shape[static_cast<int>(d)]);
      if (!number.is_number_unsigned() || number.get<std::uint64_t>() > most) {
        throw FileDamage(
            fmt::format("{}: saved_offsets of '{}' is not a list of places", where_, shown_text(tensor.name)));
      }
      offset[d] = number.get<std::int64_t>();
    }
    return offset;
  }

 private:
  const std::string where_;
  std::optional<nlohmann::json> info_;
};

}  // namespace

struct DcpFolder::OpenFile {
  explicit OpenFile(MappedFile opened) : file(std::move(opened)) {}
  explicit OpenFile(SafetensorsFile opened) : file(MappedFile(opened.path())), tensors(std::move(opened)) {}

  MappedFile file;
  std::optional<SafetensorsFile> tensors;
  std::optional<FileReader> reader;
};

DcpFolder::DcpFolder(fs::path folder) : folder_(std::move(folder)) {
  std::error_code error;
  const fs::path file = folder_ / kDcpMetadataFile;
  if (fs::exists(file, error)) {
    const MappedFile mapped = open_inside(folder_, std::string(kDcpMetadataFile));
    if (mapped.bytes().size() > kMostMetadata) {
      throw FileDamage(fmt::format("{}: {} bytes; at most {} are read", escaped(file.string()), mapped.bytes().size(),
                                   kMostMetadata));
    }
    std::vector<std::byte> bytes(mapped.bytes().size());
    FileReader(mapped).read(0, bytes);
    metadata_ = read_dcp_metadata(bytes, file.string());
    open_files();
    return;
  }
  read_safetensors();
}

DcpFolder::~DcpFolder() = default;

void DcpFolder::open_files() {
  for (const std::string& name : metadata_.files) {
    files_.push_back(std::make_unique<OpenFile>(open_inside(folder_, name)));
  }
  for (const DcpItem& item : metadata_.items) {
    for (const DcpPiece& piece : item.pieces) check_part(item, piece);
  }
  check_parts_differ();
}

void DcpFolder::check_part(const DcpItem& item, const DcpPiece& piece) const {
  const MappedFile& file = files_[piece.file]->file;
  const std::uint64_t size = file.bytes().size();
  if (piece.begin > size || piece.length > size - piece.begin) {
    throw FileDamage(fmt::format("{}: '{}' should take {} bytes at offset {}, but the file has {}; it is cut short",
                                 file.path().string(), shown_text(item.name), piece.length, piece.begin, size));
  }
  const auto needed = static_cast<std::uint64_t>(piece.shape.numel() * element_bytes(item.dtype));
  if (!item.is_tensor || needed <= piece.length) return;
  throw FileDamage(fmt::format("{}: offset {}: '{}' has a piece {} of {} bytes, but {} bytes for it",
                               file.path().string(), piece.begin, shown_text(item.name), to_string(piece.shape), needed,
                               piece.length));
}

// Each piece has bytes of its own, or is the same box of a tensor under another name.
void DcpFolder::check_parts_differ() const {
  std::vector<std::pair<const DcpPiece*, const DcpItem*>> parts;
  for (const DcpItem& item : metadata_.items) {
    for (const DcpPiece& piece : item.pieces) parts.emplace_back(&piece, &item);
  }
  std::ranges::sort(parts, {}, [](const auto& part) { return std::pair(part.first->file, part.first->begin); });
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const auto& [before, item] = parts[i - 1];
    const auto& [piece, other] = parts[i];
    if (before->file != piece->file || before->begin + before->length <= piece->begin) continue;
    if (are_tied(*item, *other) && *before == *piece) continue;
    throw FileDamage(fmt::format("{}: offset {}: the bytes of '{}' and '{}' overlap",
                                 files_[piece->file]->file.path().string(), piece->begin, shown_text(item->name),
                                 shown_text(other->name)));
  }
}

void DcpFolder::read_safetensors() {
  std::map<std::string, DcpItem> items;
  for (const std::string& name : safetensors_names(folder_)) {
    inside(folder_, name);
    SafetensorsFile file(folder_ / name);
    const ShardingInfo sharding(file);
    for (const StoredTensor& tensor : file.tensors()) {
      DcpItem& item = items[tensor.name];
      const bool first = item.pieces.empty();
      if (first) {
        item = {tensor.name, {tensor.name}, true, tensor.dtype, tensor.shape, {}};
      }
      DcpPiece piece{.offset = sharding.offset_of(tensor), .shape = tensor.shape, .file = files_.size()};
      if (item.dtype != tensor.dtype || item.shape.ndim() != tensor.shape.ndim()) {
        throw FileDamage(fmt::format("{}: '{}' is {} {}, and {} {} in another file", file.path().string(),
                                     shown_text(tensor.name), loom::name(tensor.dtype), to_string(tensor.shape),
                                     loom::name(item.dtype), to_string(item.shape)));
      }
      for (int d = 0; d < item.shape.ndim(); ++d) {
        item.shape[d] = std::max(item.shape[d], piece.offset[static_cast<std::size_t>(d)] + tensor.shape[d]);
      }
      item.pieces.push_back(std::move(piece));
    }
    metadata_.files.push_back(name);
    files_.push_back(std::make_unique<OpenFile>(std::move(file)));
  }
  if (files_.empty()) {
    config_error("{}: no checkpoint of torch.distributed.checkpoint: neither .metadata nor a .safetensors file is here",
                 folder_.string());
  }
  for (auto& [name, item] : items) {
    check_pieces(item, folder_.string());
    metadata_.items.push_back(std::move(item));
  }
  metadata_.index();
}

DcpFolder::OpenFile& DcpFolder::file_of(const DcpPiece& piece) const {
  OpenFile& file = *files_[piece.file];
  if (reading_ != &file) {
    for (const auto& other : files_) {
      if (other.get() == reading_) other->reader.reset();
    }
    file.reader.emplace(file.file);
    reading_ = &file;
  }
  return file;
}

void DcpFolder::check_kind(const DcpItem& item, const DcpPiece& piece, DType dtype, const Shape& shape) const {
  if (dtype == item.dtype && shape == piece.shape) return;
  throw FileDamage(fmt::format("{}: offset {}: '{}' is {} {} here, but .metadata says {} {}",
                               files_[piece.file]->file.path().string(), piece.begin, shown_text(item.name),
                               loom::name(dtype), to_string(shape), loom::name(item.dtype), to_string(piece.shape)));
}

void DcpFolder::read_piece(const DcpItem& item, const DcpPiece& piece, const Offset& offset, const Shape& shape,
                           std::span<std::byte> to) const {
  OpenFile& file = file_of(piece);
  const Offset at = minus(offset, piece.offset);
  if (file.tensors) return file.tensors->at(item.name).read_box(at, shape, to);
  const FileSlice source(*file.reader, file.file, piece.begin, piece.length);
  const TorchTensor tensor(source);
  check_kind(item, piece, tensor.dtype(), tensor.shape());
  const bool verify = !verified_ && std::ranges::all_of(at, [](std::int64_t begin) { return begin == 0; });
  tensor.read_box(at, shape, to, verify);
}

void DcpFolder::read_box(const DcpItem& item, const Offset& offset, const Shape& shape, std::span<std::byte> to) const {
  const std::int64_t element = element_bytes(item.dtype);
  require(item.is_tensor && box_fits(item.shape, offset, shape) &&
              static_cast<std::int64_t>(to.size()) == shape.numel() * element,
          "{} bytes for {} of '{}' {}", to.size(), describe_box(offset, shape), item.name, to_string(item.shape));
  for (const DcpPiece& piece : item.pieces) {
    const auto box = common(piece, offset, shape);
    if (!box) continue;
    if (box->shape == shape) return read_piece(item, piece, offset, shape, to);
    const auto part_bytes = static_cast<std::size_t>(box->shape.numel() * element);
    const Offset at = minus(box->offset, offset);
    const BoxRuns runs(shape, at, box->shape);
    if (runs.count() == 1) {  // rows: they lie in the result as they do in the piece
      const auto begin = static_cast<std::size_t>(runs.begin(0) * element);
      read_piece(item, piece, box->offset, box->shape, to.subspan(begin, part_bytes));
      continue;
    }
    std::vector<std::byte> part(part_bytes);
    read_piece(item, piece, box->offset, box->shape, part);
    scatter(part, at, box->shape, shape, element, to);
  }
}

void DcpFolder::check_headers() const {
  for (const DcpItem& item : metadata_.items) {
    for (const DcpPiece& piece : item.pieces) {
      OpenFile& file = file_of(piece);
      if (file.tensors) continue;  // its header was read when it was opened
      const FileSlice source(*file.reader, file.file, piece.begin, piece.length);
      if (!item.is_tensor) {
        read_torch_value(source);
        continue;
      }
      const TorchTensor tensor(source);
      check_kind(item, piece, tensor.dtype(), tensor.shape());
    }
  }
}

PlainValue DcpFolder::value(const DcpItem& item) const {
  require(!item.is_tensor, "'{}' is a tensor", item.name);
  const DcpPiece& piece = item.pieces.front();
  OpenFile& file = file_of(piece);
  const FileSlice source(*file.reader, file.file, piece.begin, piece.length);
  return read_torch_value(source);
}

}  // namespace loom::io
