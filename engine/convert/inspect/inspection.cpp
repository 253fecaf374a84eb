#include "engine/convert/inspect/inspection.h"

#include <fnmatch.h>

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <map>
#include <set>
#include <system_error>

#include "engine/checkpoint/checkpoint_folder.h"
#include "engine/checkpoint/manifest_check.h"
#include "engine/checkpoint/verify.h"
#include "engine/config/document.h"
#include "engine/core/error.h"
#include "engine/core/shown_text.h"

namespace loom::checkpoint {
namespace {

namespace fs = std::filesystem;
using io::PlainValue;

std::uint64_t size_on_disk(const fs::path& path) {
  std::error_code error;
  const std::uintmax_t size = fs::file_size(path, error);
  return error ? 0 : size;
}

// --- contents

std::vector<InspectedBox> boxes_of(const OpenedCheckpoint& opened, const SourceTensor& tensor) {
  if (opened.dcp() == nullptr) {
    return {{Offset(static_cast<std::size_t>(tensor.shape.ndim()), 0), tensor.shape, tensor.file}};
  }
  std::vector<InspectedBox> boxes;
  for (const io::DcpPiece& piece : opened.dcp()->find(tensor.name)->pieces) {
    boxes.push_back({piece.offset, piece.shape, opened.dcp()->metadata().files[piece.file]});
  }
  return boxes;
}

// A dict's entries one by one, as far as their keys are text.
void add_value(const std::string& name, const PlainValue& value, std::vector<std::pair<std::string, PlainValue>>& to) {
  const std::vector<PlainValue> none;
  const auto& items = value.is(PlainValue::Kind::kDict) ? value.items() : none;
  bool named = !items.empty();
  for (std::size_t i = 0; i < items.size(); i += 2) named = named && items[i].is(PlainValue::Kind::kText);
  if (!named) {
    to.emplace_back(name, value);
    return;
  }
  for (std::size_t i = 0; i < items.size(); i += 2) add_value(name + "." + items[i].as_text(), items[i + 1], to);
}

// --- verdicts

class Verdicts {
 public:
  explicit Verdicts(fs::path folder) : folder_(std::move(folder)) {}

  // Of every file that the manifest names; nothing where there is none, or it is damaged itself.
  std::optional<Manifest> by_manifest(Inspection& inspection) {
    std::error_code error;
    const fs::path path = folder_ / kManifestName;
    if (!fs::exists(fs::symlink_status(path, error))) return std::nullopt;
    try {
      Manifest manifest = parse_manifest(config::read_text(path, "a manifest"), path);
      for (const ManifestFile& file : manifest.files) inspection.files.push_back(held_to(file));
      return manifest;
    } catch (const ConfigError& damage) {
      inspection.problems.push_back(damage.what());
    }
    return std::nullopt;
  }

  // Files that .metadata names and the manifest does not.
  static void of_unlisted(const io::DcpFolder& folder, Inspection& inspection) {
    for (const std::string& name : folder.metadata().files) {
      if (std::ranges::find(inspection.files, name, &InspectedFile::name) != inspection.files.end()) continue;
      inspection.files.push_back({name, size_on_disk(folder.folder() / name), true,
                                  fmt::format("DAMAGED: .metadata names it, but {} does not", kManifestName)});
    }
  }

  // Of the iteration, which manifest, folder and files say.
  static void of_iteration(const io::DcpFolder& folder, const std::optional<Manifest>& manifest,
                           Inspection& inspection) {
    try {
      if (manifest) check_number(folder.folder(), *manifest);
      check_iteration(folder, manifest);
    } catch (const io::FileDamage& damage) {
      const bool is_known = std::ranges::find(inspection.problems, damage.what()) != inspection.problems.end();
      if (!is_known) inspection.problems.push_back(damage.what());
    }
  }

  // Of every file of the checkpoint, by the checksums within.
  static void by_archives(const io::DcpFolder& folder, Inspection& inspection) {
    std::vector<std::int64_t> parts(folder.metadata().files.size(), 0);
    std::vector<std::vector<std::string>> damages(parts.size());
    std::set<std::pair<std::size_t, std::uint64_t>> seen;  // a tied tensor has its parts under several names
    for (const io::DcpItem& item : folder.metadata().items) {
      for (const io::DcpPiece& piece : item.pieces) {
        if (piece.length > 0 && !seen.emplace(piece.file, piece.begin).second) continue;
        ++parts[piece.file];
        if (auto damage = damage_of(folder, item, piece)) damages[piece.file].push_back(std::move(*damage));
      }
    }
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const std::string& name = folder.metadata().files[i];
      const bool has_checksums = !name.ends_with(".safetensors");
      InspectedFile file{name, size_on_disk(folder.folder() / name), !damages[i].empty(), {}};
      file.verdict = fmt::format("whole, checksums of {} parts", parts[i]);
      if (!has_checksums) file.verdict = "header and sizes agree; the format has no checksums";
      if (file.damaged) {
        file.verdict = fmt::format("DAMAGED, {} of {} parts: {}", damages[i].size(), parts[i], damages[i].front());
      }
      inspection.files.push_back(std::move(file));
    }
  }

 private:
  InspectedFile held_to(const ManifestFile& file) const {
    InspectedFile held{file.name, size_on_disk(folder_ / file.name), false, {}};
    const auto problem = file_problem(folder_, file);
    held.damaged = problem.has_value();
    held.verdict = problem ? "DAMAGED: " + *problem : fmt::format("whole, crc32c {}", hex_digits(file.crc32c));
    return held;
  }

  // A piece is verified where its first element is read.
  static std::optional<std::string> damage_of(const io::DcpFolder& folder, const io::DcpItem& item,
                                              const io::DcpPiece& piece) {
    try {
      if (!item.is_tensor) {
        folder.value(item);
      } else if (piece.shape.numel() > 0) {
        std::vector<std::byte> element(static_cast<std::size_t>(element_bytes(item.dtype)));
        folder.read_box(item, piece.offset,
                        Shape(std::vector<std::int64_t>(static_cast<std::size_t>(item.shape.ndim()), 1)), element);
      }
    } catch (const Error& damage) {
      return damage.what();
    }
    return std::nullopt;
  }

  const fs::path folder_;
};

void add_weight_files(const OpenedCheckpoint& opened, Inspection& inspection) {
  std::set<std::string> names;
  for (const SourceTensor& tensor : opened.tensors().tensors()) names.insert(tensor.file);
  const bool is_file = opened.place().kind == CheckpointPlace::Kind::kSafetensors;
  if (is_file) names = {opened.place().path.filename().string()};
  const fs::path folder = is_file ? opened.place().path.parent_path() : opened.place().path;
  for (const std::string& name : names) {
    inspection.files.push_back(
        {name, size_on_disk(folder / name), false, "header and sizes agree; the format has no checksums"});
  }
}

// --- text

// Rows of cells with a title each, in columns; empty without rows.
std::string table(const std::vector<std::string>& titles, const std::vector<std::vector<std::string>>& rows) {
  if (rows.empty()) return {};
  std::vector<std::size_t> widths;
  for (const std::string& title : titles) widths.push_back(title.size());
  for (const auto& row : rows) {
    for (std::size_t i = 0; i + 1 < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  const auto add = [&](const std::vector<std::string>& row) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      text += i + 1 == row.size() ? row[i] + "\n" : fmt::format("{:<{}}  ", row[i], widths[i]);
    }
  };
  add(titles);
  for (const auto& row : rows) add(row);
  return text + "\n";
}

std::string boxes_text(const InspectedTensor& tensor) {
  if (tensor.boxes.empty()) return "no boxes";
  const InspectedBox& first = tensor.boxes.front();
  if (tensor.boxes.size() == 1) return shown_text(first.file);
  const std::string& last = tensor.boxes.back().file;
  return fmt::format(
      "{} boxes, {} in {}{}", tensor.boxes.size(), to_string(first.shape), shown_text(first.file),
      last == first.file ? "" : fmt::format("{}{}", tensor.boxes.size() == 2 ? ", " : " ... ", shown_text(last)));
}

std::string totals(const Inspection& inspection) {
  std::map<std::string, int> dtypes;
  std::int64_t elements = 0;
  std::uint64_t bytes = 0;
  std::uint64_t on_disk = 0;
  for (const InspectedTensor& tensor : inspection.tensors) {
    ++dtypes[std::string(name(tensor.dtype))];
    elements += tensor.shape.numel();
    bytes += tensor.size_bytes();
  }
  for (const InspectedFile& file : inspection.files) on_disk += file.size_bytes;
  std::vector<std::string> kinds;
  for (const auto& [dtype, count] : dtypes) kinds.push_back(fmt::format("{} {}", count, dtype));
  return fmt::format("{} tensors{}: {} elements, {} bytes; {} values; {} files: {} bytes\n", inspection.tensors.size(),
                     kinds.empty() ? "" : fmt::format(" ({})", fmt::join(kinds, ", ")), elements, bytes,
                     inspection.values.size(), inspection.files.size(), on_disk);
}

nlohmann::ordered_json json_of(const PlainValue& value) {
  switch (value.kind()) {
    case PlainValue::Kind::kNone:
      return nullptr;
    case PlainValue::Kind::kBool:
      return value.as_bool();
    case PlainValue::Kind::kWhole:
      return value.as_whole();
    case PlainValue::Kind::kReal:
      return value.as_real();
    case PlainValue::Kind::kText:
      return escaped(value.as_text());
    case PlainValue::Kind::kTuple:
    case PlainValue::Kind::kList: {
      auto list = nlohmann::ordered_json::array();
      for (const PlainValue& item : value.items()) list.push_back(json_of(item));
      return list;
    }
    default:
      return value.repr();
  }
}

}  // namespace

std::uint64_t InspectedTensor::size_bytes() const {
  return static_cast<std::uint64_t>(shape.numel()) * static_cast<std::uint64_t>(element_bytes(dtype));
}

bool Inspection::damaged() const { return !problems.empty() || std::ranges::any_of(files, &InspectedFile::damaged); }

bool matches(const std::string& name, const std::string& filter) {
  if (filter.find_first_of("*?") == std::string::npos) return name.find(filter) != std::string::npos;
  return ::fnmatch(filter.c_str(), name.c_str(), 0) == 0;
}

namespace {

Inspection inspect_place(const CheckpointPlace& place, const std::string& filter) {
  Inspection inspection{place.path, kind_text(place.kind), {}, {}, {}, {}};
  std::optional<Manifest> manifest;
  if (place.kind == CheckpointPlace::Kind::kDcp) manifest = Verdicts(place.path).by_manifest(inspection);
  try {
    const OpenedCheckpoint opened(place);
    for (const SourceTensor& tensor : opened.tensors().tensors()) {
      if (!matches(tensor.name, filter)) continue;
      inspection.tensors.push_back({tensor.name, tensor.dtype, tensor.shape, boxes_of(opened, tensor)});
    }
    if (opened.dcp() == nullptr) {
      add_weight_files(opened, inspection);
      return inspection;
    }
    if (manifest) {
      Verdicts::of_unlisted(*opened.dcp(), inspection);
    } else {
      Verdicts::by_archives(*opened.dcp(), inspection);
    }
    for (const io::DcpItem& item : opened.dcp()->metadata().items) {
      if (item.is_tensor) continue;
      try {
        std::vector<std::pair<std::string, PlainValue>> entries;
        add_value(item.name, opened.dcp()->value(item), entries);
        for (auto& entry : entries) {
          if (matches(entry.first, filter)) inspection.values.push_back(std::move(entry));
        }
      } catch (const io::FileDamage& damage) {
        if (manifest) inspection.problems.push_back(damage.what());  // else the verdict of its file has it
      }
    }
    Verdicts::of_iteration(*opened.dcp(), manifest, inspection);
  } catch (const ConfigError& damage) {
    inspection.problems.push_back(damage.what());
  }
  return inspection;
}

}  // namespace

Inspection inspect(const fs::path& given, const std::string& filter) {
  for (int looks = 1;; ++looks) {
    const CheckpointPlace place = place_of(given);
    Inspection inspection = inspect_place(place, filter);
    if (!inspection.damaged() || looks == kMostLooks || place_of(given).path == place.path) return inspection;
  }
}

std::string to_text(const Inspection& inspection, bool boxes) {
  std::string text = fmt::format("{}: {}\n\n", escaped(inspection.path.string()), inspection.kind);
  std::vector<std::vector<std::string>> rows;
  for (const InspectedTensor& tensor : inspection.tensors) {
    rows.push_back({shown_text(tensor.name), std::string(name(tensor.dtype)), to_string(tensor.shape),
                    fmt::to_string(tensor.size_bytes()), boxes_text(tensor)});
    if (!boxes) continue;
    for (const InspectedBox& box : tensor.boxes) {
      rows.push_back({"", "", "", "", fmt::format("{} {}", shown_text(box.file), describe_box(box.offset, box.shape))});
    }
  }
  text += table({"tensor", "dtype", "shape", "bytes", "where"}, rows);
  rows.clear();
  for (const auto& [name, value] : inspection.values) rows.push_back({shown_text(name), value.repr()});
  text += table({"value", "content"}, rows);
  rows.clear();
  for (const InspectedFile& file : inspection.files) {
    rows.push_back({shown_text(file.name), fmt::to_string(file.size_bytes), escaped(file.verdict)});
  }
  text += table({"file", "bytes", "verdict"}, rows);
  for (const std::string& problem : inspection.problems) text += fmt::format("DAMAGED: {}\n", escaped(problem));
  return text + totals(inspection);
}

nlohmann::ordered_json to_json(const Inspection& inspection) {
  nlohmann::ordered_json json;
  json["path"] = escaped(inspection.path.string());
  json["kind"] = inspection.kind;
  json["damaged"] = inspection.damaged();
  json["problems"] = nlohmann::ordered_json::array();
  for (const std::string& problem : inspection.problems) json["problems"].push_back(escaped(problem));
  json["tensors"] = nlohmann::ordered_json::array();
  for (const InspectedTensor& tensor : inspection.tensors) {
    nlohmann::ordered_json boxes = nlohmann::ordered_json::array();
    for (const InspectedBox& box : tensor.boxes) {
      boxes.push_back({{"offset", box.offset}, {"shape", box.shape.sizes()}, {"file", escaped(box.file)}});
    }
    json["tensors"].push_back({{"name", escaped(tensor.name)},
                               {"dtype", name(tensor.dtype)},
                               {"shape", tensor.shape.sizes()},
                               {"size_bytes", tensor.size_bytes()},
                               {"boxes", std::move(boxes)}});
  }
  json["values"] = nlohmann::ordered_json::object();
  for (const auto& [name, value] : inspection.values) json["values"][escaped(name)] = json_of(value);
  json["files"] = nlohmann::ordered_json::array();
  for (const InspectedFile& file : inspection.files) {
    json["files"].push_back({{"name", escaped(file.name)},
                             {"size_bytes", file.size_bytes},
                             {"damaged", file.damaged},
                             {"verdict", escaped(file.verdict)}});
  }
  return json;
}

}  // namespace loom::checkpoint
