#include "engine/formats/safetensors/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/core/spelling.h"
#include "engine/io/atomic_file.h"
#include "engine/io/json_text.h"

namespace loom::io {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

static_assert(std::endian::native == std::endian::little, "tensors are stored little endian and mapped as they are");

constexpr std::size_t kLengthBytes = 8;
constexpr std::size_t kMostHeaderBytes = 100'000'000;  // of the official reader
constexpr std::size_t kHeaderAlignment = 8;
constexpr std::string_view kMetadataKey = "__metadata__";

// Sorted by element size, widest first, then in the order of the official writer.
constexpr std::array<std::pair<std::string_view, DType>, 10> kDtypes{{{"I64", DType::kI64},
                                                                      {"F64", DType::kF64},
                                                                      {"F32", DType::kF32},
                                                                      {"I32", DType::kI32},
                                                                      {"BF16", DType::kBF16},
                                                                      {"F16", DType::kF16},
                                                                      {"I16", DType::kI16},
                                                                      {"I8", DType::kI8},
                                                                      {"U8", DType::kU8},
                                                                      {"BOOL", DType::kBool}}};

std::optional<DType> parse_stored_dtype(std::string_view text) {
  for (const auto& [name, dtype] : kDtypes) {
    if (name == text) return dtype;
  }
  return std::nullopt;
}

std::size_t layout_rank(DType dtype) {
  const auto* const found = std::ranges::find(kDtypes, dtype, &std::pair<std::string_view, DType>::second);
  return static_cast<std::size_t>(found - kDtypes.begin());
}

// The product of sizes and element bytes. Nothing when the sizes that are not 0 leave 63 bits: then a row would too.
std::optional<std::uint64_t> checked_size_bytes(const std::vector<std::int64_t>& sizes, DType dtype) {
  auto total = element_bytes(dtype);
  for (const std::int64_t size : sizes) {
    if (size != 0 && __builtin_mul_overflow(total, size, &total)) return std::nullopt;
  }
  return std::ranges::find(sizes, 0) == sizes.end() ? static_cast<std::uint64_t>(total) : 0;
}

// One tensor of the header, its place counted from the start of the data.
struct Entry {
  StoredTensor tensor;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

// Reads and checks one file's header; messages start with the path.
class HeaderReader {
 public:
  explicit HeaderReader(const MappedFile& file) : path_(file.path().string()), bytes_(file.bytes()) {}

  std::map<std::string, std::string> metadata;
  std::vector<StoredTensor> tensors;

  void read() {
    const Json header = parse(header_text());
    std::vector<Entry> entries;
    for (const auto& [name, value] : header.items()) {
      if (name == kMetadataKey) {
        read_metadata(value);
      } else {
        entries.push_back(read_entry(name, value));
      }
    }
    std::ranges::sort(entries, {}, [](const Entry& e) { return std::tie(e.begin, e.end, e.tensor.name); });
    place(entries);
  }

 private:
  std::string_view header_text() {
    if (bytes_.size() < kLengthBytes) {
      config_error("{}: not a safetensors file: {} bytes, but the header's length alone takes 8", path_, bytes_.size());
    }
    std::uint64_t length = 0;
    std::memcpy(&length, bytes_.data(), kLengthBytes);
    const std::span<const std::byte> rest = bytes_.subspan(kLengthBytes);
    if (length > rest.size()) {
      config_error(
          "{}: the header should take {} bytes, but {} follow its length; the file is truncated or not safetensors",
          path_, length, rest.size());
    }
    if (length > kMostHeaderBytes) {
      config_error("{}: the header should take {} bytes, above the {} that safetensors allows; fetch the file again",
                   path_, length, kMostHeaderBytes);
    }
    data_ = rest.subspan(length);
    const std::string_view text(reinterpret_cast<const char*>(rest.data()), length);
    if (!text.starts_with('{')) config_error("{}: not a safetensors file: the header does not start with '{{'", path_);
    return text;
  }

  Json parse(std::string_view text) const {
    return parse_json(
        text, path_,
        {.invalid = "the header is not valid JSON", .repeated = "tensor '{key}': named twice in the header"});
  }

  void read_metadata(const Json& value) {
    if (!value.is_object()) config_error("{}: \"__metadata__\" is not an object of texts", path_);
    for (const auto& [key, text] : value.items()) {
      if (!text.is_string()) config_error("{}: \"__metadata__\": the value of '{}' is not a text", path_, key);
      metadata[key] = text.get<std::string>();
    }
  }

  Entry read_entry(const std::string& name, const Json& value) const {
    if (!value.is_object()) fail(name, "its entry is not an object");
    for (const auto& [key, _] : value.items()) {
      if (key != "dtype" && key != "shape" && key != "data_offsets") fail(name, fmt::format("unknown key '{}'", key));
    }
    Entry entry;
    entry.tensor.name = name;
    entry.tensor.dtype = read_dtype(name, value);
    entry.tensor.shape = Shape(read_sizes(name, value));
    std::tie(entry.begin, entry.end) = read_offsets(name, value);
    const auto size_bytes = checked_size_bytes(entry.tensor.shape.sizes(), entry.tensor.dtype);
    if (!size_bytes) fail(name, fmt::format("shape {} has too many elements", to_string(entry.tensor.shape)));
    if (entry.end - entry.begin != *size_bytes) {
      fail(name, fmt::format("shape {} of {} takes {} bytes, but its data_offsets [{}, {}] hold {}",
                             to_string(entry.tensor.shape), value["dtype"].get<std::string>(), *size_bytes, entry.begin,
                             entry.end, entry.end - entry.begin));
    }
    return entry;
  }

  DType read_dtype(const std::string& name, const Json& value) const {
    const auto found = value.find("dtype");
    if (found == value.end() || !found->is_string()) fail(name, "\"dtype\" is missing or not a text");
    const auto dtype = parse_stored_dtype(found->get<std::string>());
    if (!dtype) {
      fail(name, fmt::format("dtype '{}' is not supported; use F32, BF16, F16, F64, I64, I32, I16, I8, U8 or BOOL",
                             found->get<std::string>()));
    }
    return *dtype;
  }

  // A list of single values unchanged, else the type of its first other entry.
  static std::string shown_sizes(const Json& sizes) {
    const auto nested = std::ranges::find_if(sizes, [](const Json& size) { return size.is_structured(); });
    return nested == sizes.end() ? shown_text(sizes.dump()) : fmt::format("[..., {}, ...]", nested->type_name());
  }

  std::vector<std::int64_t> read_sizes(const std::string& name, const Json& value) const {
    const auto found = value.find("shape");
    if (found == value.end() || !found->is_array()) fail(name, "\"shape\" is missing or not a list");
    std::vector<std::int64_t> sizes;
    for (const Json& size : *found) {
      if (!size.is_number_unsigned() ||
          size.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        fail(name, fmt::format("shape {} is not a list of sizes", shown_sizes(*found)));
      }
      sizes.push_back(size.get<std::int64_t>());
    }
    return sizes;
  }

  std::pair<std::uint64_t, std::uint64_t> read_offsets(const std::string& name, const Json& value) const {
    const auto found = value.find("data_offsets");
    if (found == value.end() || !found->is_array() || found->size() != 2 || !(*found)[0].is_number_unsigned() ||
        !(*found)[1].is_number_unsigned()) {
      fail(name, "\"data_offsets\" is missing or not [begin, end]");
    }
    const auto begin = (*found)[0].get<std::uint64_t>();
    const auto end = (*found)[1].get<std::uint64_t>();
    if (begin > end) fail(name, fmt::format("data_offsets [{}, {}] end before they begin", begin, end));
    return {begin, end};
  }

  // Checks that the entries, in the order of their bytes, tile the data; then points them at it.
  void place(std::vector<Entry>& entries) {
    const std::uint64_t promised_bytes = entries.empty() ? 0 : entries.back().end;
    std::uint64_t expected_begin = 0;
    for (Entry& entry : entries) {
      const std::string& name = entry.tensor.name;
      if (entry.begin < expected_begin) {
        fail(name, fmt::format("data_offsets [{}, {}] overlap the offsets of tensor '{}', which end at {}", entry.begin,
                               entry.end, tensors.back().name, expected_begin));
      }
      if (entry.begin > expected_begin) {
        fail(name, fmt::format("data_offsets [{}, {}] leave a hole of {} bytes before them", entry.begin, entry.end,
                               entry.begin - expected_begin));
      }
      if (entry.end > data_.size()) {
        fail(name,
             fmt::format("data_offsets [{}, {}] leave the file: {} bytes of data are promised, {} are present; the "
                         "file is truncated, fetch it again",
                         entry.begin, entry.end, promised_bytes, data_.size()));
      }
      entry.tensor.bytes = data_.subspan(entry.begin, entry.end - entry.begin);
      expected_begin = entry.end;
      tensors.push_back(std::move(entry.tensor));
    }
    if (promised_bytes < data_.size()) {
      config_error("{}: {} bytes of data are promised, {} are present; the rest belongs to no tensor", path_,
                   promised_bytes, data_.size());
    }
  }

  [[noreturn]] void fail(const std::string& name, const std::string& reason) const {
    config_error("{}: tensor '{}': {}", path_, shown_text(name), reason);
  }

  const std::string path_;
  const std::span<const std::byte> bytes_;
  std::span<const std::byte> data_;
};

std::uint64_t size_bytes_of(const TensorToWrite& tensor) {
  const auto size_bytes = checked_size_bytes(tensor.shape.sizes(), tensor.dtype);
  require(size_bytes.has_value(), "tensor '{}': shape {} has too many elements", tensor.name, to_string(tensor.shape));
  return *size_bytes;
}

// Length and text of the header; tensors are in file order.
std::string header_of(const std::vector<TensorToWrite>& tensors, const std::map<std::string, std::string>& metadata) {
  OrderedJson header = OrderedJson::object();
  if (!metadata.empty()) header[std::string(kMetadataKey)] = metadata;
  std::uint64_t offset = 0;
  for (const TensorToWrite& tensor : tensors) {
    require(tensor.name != kMetadataKey, "a tensor cannot be named '{}'", kMetadataKey);
    require(!header.contains(tensor.name), "tensor '{}' is written twice", tensor.name);
    const std::uint64_t end = offset + size_bytes_of(tensor);
    header[tensor.name] = OrderedJson::object({{"dtype", kDtypes[layout_rank(tensor.dtype)].first},
                                               {"shape", tensor.shape.sizes()},
                                               {"data_offsets", {offset, end}}});
    offset = end;
  }
  std::string text = header.dump();
  text.append((kHeaderAlignment - text.size() % kHeaderAlignment) % kHeaderAlignment, ' ');
  return text;
}

void write_content(AtomicFile& file, const TensorToWrite& tensor) {
  std::uint64_t written_bytes = 0;
  const ByteSink sink = [&](std::span<const std::byte> bytes) {
    written_bytes += bytes.size();
    file.write(bytes);
  };
  if (const auto* bytes = std::get_if<std::span<const std::byte>>(&tensor.content)) {
    sink(*bytes);
  } else {
    std::get<ByteProducer>(tensor.content)(sink);
  }
  require(written_bytes == size_bytes_of(tensor), "tensor '{}': shape {} of {} takes {} bytes, but {} were given",
          tensor.name, to_string(tensor.shape), name(tensor.dtype), size_bytes_of(tensor), written_bytes);
}

}  // namespace

std::int64_t StoredTensor::row_count() const { return shape.ndim() == 0 ? 1 : shape[0]; }

std::span<const std::byte> StoredTensor::rows(std::int64_t begin, std::int64_t end) const {
  require(0 <= begin && begin <= end && end <= row_count(), "rows [{}, {}) of tensor '{}', which has {}", begin, end,
          name, row_count());
  const std::size_t row_bytes = shape.row_elems() * element_bytes(dtype);
  return bytes.subspan(static_cast<std::size_t>(begin) * row_bytes, static_cast<std::size_t>(end - begin) * row_bytes);
}

void StoredTensor::read_box(const Offset& offset, const Shape& box, std::span<std::byte> to) const {
  require(box_fits(shape, offset, box), "a box {} of tensor '{}' {}", describe_box(offset, box), name,
          to_string(shape));
  const std::int64_t element = element_bytes(dtype);
  require(to.size() == static_cast<std::size_t>(box.numel()) * element, "{} bytes for a box {} of tensor '{}'",
          to.size(), to_string(box), name);
  const BoxRuns runs(shape, offset, box);
  const std::size_t run_bytes = static_cast<std::size_t>(runs.elems()) * element;
  std::optional<FileReader> reader;
  if (file) reader.emplace(*file);
  for (std::int64_t i = 0; i < runs.count(); ++i) {
    const auto run = bytes.subspan(static_cast<std::size_t>(runs.begin(i)) * element, run_bytes);
    const auto part = to.subspan(static_cast<std::size_t>(i) * run_bytes, run_bytes);
    if (reader) {
      reader->read(static_cast<std::size_t>(run.data() - file->bytes().data()), part);
    } else {
      std::ranges::copy(run, part.begin());
    }
  }
}

SafetensorsFile::SafetensorsFile(std::filesystem::path path)
    : file_(std::make_shared<const MappedFile>(std::move(path))) {
  HeaderReader reader(*file_);
  reader.read();
  tensors_ = std::move(reader.tensors);
  for (StoredTensor& tensor : tensors_) tensor.file = file_;
  metadata_ = std::move(reader.metadata);
  for (std::size_t i = 0; i < tensors_.size(); ++i) index_.emplace(tensors_[i].name, i);
}

const StoredTensor* SafetensorsFile::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

const StoredTensor& SafetensorsFile::at(std::string_view name) const {
  if (const StoredTensor* tensor = find(name)) return *tensor;
  std::vector<std::string> names;
  for (const StoredTensor& tensor : tensors_) names.push_back(tensor.name);
  const auto nearest = nearest_spelling(name, names);
  config_error("{}: no tensor '{}'{}", path().string(), name,
               nearest ? fmt::format("; did you mean '{}'?", *nearest) : fmt::format(" among its {}", names.size()));
}

void write_safetensors(const std::filesystem::path& path, std::vector<TensorToWrite> tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::ranges::sort(tensors, {}, [](const TensorToWrite& t) {
    return std::pair<std::size_t, std::string_view>(layout_rank(t.dtype), t.name);
  });
  const std::string header = header_of(tensors, metadata);
  const std::uint64_t length = header.size();
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(&length, 1)));
  file.write(std::as_bytes(std::span(header)));
  for (const TensorToWrite& tensor : tensors) write_content(file, tensor);
  file.commit();
}

}  // namespace loom::io
