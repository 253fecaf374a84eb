#include "engine/images/processor_config.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <system_error>

#include "engine/config/document.h"
#include "engine/config/section.h"
#include "engine/core/error.h"
#include "engine/core/shown_text.h"

namespace loom::images {
namespace {

using config::Section;

constexpr std::string_view kWanted = "a preprocessor_config.json";
// What changes no pixel here: how the result is packed, and who made the file.
constexpr std::string_view kWithoutEffect[] = {
    "processor_class",   "_valid_processor_keys", "auto_map",  "data_format",
    "input_data_format", "return_tensors",        "device",    "disable_grouping",
    "default_to_square", "image_processor_type",  "crop_size", "pad_size",
    "do_center_crop",    "feature_extractor_type"};

enum class Family : std::uint8_t { kQwen, kGotOcr2, kClip };

struct Type {
  std::string_view name;
  Family family;
};

constexpr Type kTypes[] = {{"Qwen2VLImageProcessor", Family::kQwen},
                           {"GotOcr2ImageProcessor", Family::kGotOcr2},
                           {"CLIPImageProcessor", Family::kClip},
                           {"CLIPFeatureExtractor", Family::kClip}};

std::string type_of(const Section& file) {
  if (file.has("image_processor_type")) return file.text("image_processor_type");
  if (file.has("feature_extractor_type")) return file.text("feature_extractor_type");
  config_error(
      "{}: image_processor_type is missing; use Qwen2VLImageProcessor, GotOcr2ImageProcessor or "
      "CLIPImageProcessor",
      file.where("image_processor_type"));
}

Family family_of(const Section& file, std::string_view type) {
  std::string_view stem = type;
  for (const std::string_view ending : {"Fast", "Pil"}) {
    if (stem.ends_with(ending)) stem.remove_suffix(ending.size());
  }
  for (const Type& known : kTypes) {
    if (stem == known.name) return known.family;
  }
  file.reject(file.has("image_processor_type") ? "image_processor_type" : "feature_extractor_type",
              "use Qwen2VLImageProcessor, GotOcr2ImageProcessor or CLIPImageProcessor");
}

Filter filter_of(const Section& file) {
  switch (file.integer("resample").value_or(3)) {
    case 0:
      return Filter::kNearest;
    case 2:
      return Filter::kBilinear;
    case 3:
      return Filter::kBicubic;
    default:
      file.reject("resample", "use 0 (nearest), 2 (bilinear) or 3 (bicubic)");
  }
}

Channels channels_of(const Section& file, std::string_view key, const Channels& fallback) {
  if (!file.has(key)) return fallback;
  const config::Value& list = *file.given(key);
  Channels channels{};
  if (!list.is_list() || list.items().size() != channels.size()) file.reject(key, "use a list of three numbers");
  for (std::size_t c = 0; c < channels.size(); ++c) {
    const auto number = list.items()[c].number();
    if (!number || !std::isfinite(*number)) file.reject(key, "use a list of three numbers");
    channels[c] = static_cast<float>(*number);
  }
  return channels;
}

void check_steps(const Section& file) {
  if (!file.flag("do_resize", true)) file.reject("do_resize", "pictures are always resized; use true");
  if (!file.flag("do_rescale", true)) file.reject("do_rescale", "bytes are always divided by 255; use true");
  if (!file.flag("do_convert_rgb", true)) file.reject("do_convert_rgb", "pictures are always RGB; use true");
  if (file.flag("do_pad", false)) file.reject("do_pad", "pictures are never padded; use false");
  constexpr double kFactor = 1.0 / 255;
  if (std::fabs(file.number("rescale_factor").value_or(kFactor) - kFactor) > 1e-9) {
    file.reject("rescale_factor", "bytes are always divided by 255; use 0.00392156862745098");
  }
}

void read_values(const Section& file, ImageProcessor& processor) {
  processor.mean = channels_of(file, "image_mean", kClipMean);
  processor.std = channels_of(file, "image_std", kClipStd);
  if (!file.flag("do_normalize", true)) {
    processor.mean = {0, 0, 0};
    processor.std = {1, 1, 1};
  }
  const bool positive = std::ranges::all_of(processor.std, [](float std) { return std > 0; });
  if (!positive) file.reject("image_std", "all three must be above 0");
}

// A limit under its own name, else under one of the names in `size`.
std::int64_t limit_of(const Section& file, const std::optional<Section>& size, std::string_view key,
                      std::string_view edge, std::int64_t fallback) {
  std::int64_t limit = fallback;
  for (const std::string_view name : {key, edge}) {
    if (size && size->has(name)) limit = *size->integer(name);
  }
  limit = file.integer(key).value_or(limit);
  if (limit < 0 || limit > kMostPixels) file.reject(file.has(key) ? key : "size", "use 0 to {} pixels", kMostPixels);
  return limit;
}

PatchOptions patch_options(const Section& file, const ImageProcessor& processor) {
  PatchOptions options{.mean = processor.mean, .std = processor.std, .filter = filter_of(file)};
  if (file.flag("do_center_crop", false)) file.reject("do_center_crop", "this processor does not crop; use false");
  options.patch_size = file.count("patch_size", options.patch_size);
  options.merge_size = file.count("merge_size", options.merge_size);
  options.temporal_patch_size = file.count("temporal_patch_size", options.temporal_patch_size);
  const auto size = file.mapping("size");
  options.min_pixels = limit_of(file, size, "min_pixels", "shortest_edge", options.min_pixels);
  options.max_pixels = limit_of(file, size, "max_pixels", "longest_edge", options.max_pixels);
  if (size) size->refuse_unread();
  if (options.max_pixels < options.min_pixels) {
    if (file.has("max_pixels"))
      file.reject("max_pixels", "it must be at least the least pixels, {}", options.min_pixels);
    file.reject(file.has("min_pixels") ? "min_pixels" : "size", "the least must be at most the most pixels, {}",
                options.max_pixels);
  }
  return options;
}

// The side of a square, however it is written.
std::int64_t side_of(const Section& file, std::string_view key, std::int64_t fallback) {
  if (!file.has(key)) return fallback;
  if (!file.given(key)->is_mapping()) return file.count(key);
  const Section size = *file.mapping(key);
  const std::int64_t side = size.has("shortest_edge") ? size.count("shortest_edge") : size.count("height");
  const std::int64_t width = size.has("shortest_edge") ? side : size.count("width");
  size.refuse_unread();
  if (width != side) file.reject(key, "tiles are squares; use equal sides");
  return side;
}

TileOptions tile_options(const Section& file, Family family) {
  const bool is_clip = family == Family::kClip;
  TileOptions options{.filter = filter_of(file)};
  options.image_size = side_of(file, "size", is_clip ? 224 : 384);
  options.min_tiles = file.count("min_patches", options.min_tiles);
  options.max_tiles = file.count("max_patches", options.max_tiles);
  if (options.max_tiles < options.min_tiles)
    file.reject("max_patches", "use at least min_patches, {}", options.min_tiles);
  options.use_thumbnail = file.flag("use_thumbnail", options.use_thumbnail);
  const bool is_internvl = file.text("processor_class", "") == "InternVLProcessor";
  // InternVLProcessor asks for tiles whatever the file has.
  const bool is_cut = file.flag("crop_to_patches", is_clip) || (is_internvl && !is_clip);
  if (!is_cut) options.min_tiles = options.max_tiles = 1;
  if (file.flag("do_center_crop", false)) {
    if (!is_clip) file.reject("do_center_crop", "this processor does not crop; use false");
    if (side_of(file, "crop_size", options.image_size) != options.image_size) {
      file.reject("crop_size", "tiles are not cropped; use size, which is {}", options.image_size);
    }
  }
  return options;
}

ImageProcessor processor_of(const Section& file) {
  ImageProcessor processor;
  processor.type = type_of(file);
  const Family family = family_of(file, processor.type);
  check_steps(file);
  read_values(file, processor);
  if (family == Family::kQwen) {
    processor.options = patch_options(file, processor);
  } else {
    processor.options = tile_options(file, family);
  }
  for (const std::string_view key : kWithoutEffect) file.has(key);
  file.refuse_unread();
  return processor;
}

std::filesystem::path file_in(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) return path;
  for (const char* name : {"preprocessor_config.json", "processor_config.json"}) {
    if (std::filesystem::exists(path / name, ignored)) return path / name;
  }
  config_error(
      "{}: no preprocessor_config.json and no processor_config.json; give the folder of a model that reads "
      "pictures",
      escaped(path.string()));
}

[[noreturn]] void refuse_type(const std::filesystem::path& path, const ImageProcessor& processor,
                              std::string_view otherwise) {
  config_error("{}: image_processor_type is {}, and {}", escaped(path.string()), shown_text(processor.type), otherwise);
}

}  // namespace

ImageProcessor parse_image_processor(std::string_view text, const std::string& name) {
  const Section file(config::parse_json(text, name), config::UnknownKeys::kRefused);
  // processor_config.json has those of texts and videos too.
  if (const auto nested = file.mapping("image_processor")) return processor_of(*nested);
  return processor_of(file);
}

ImageProcessor read_image_processor(const std::filesystem::path& path) {
  const auto file = file_in(path);
  return parse_image_processor(config::read_text(file, kWanted), file.string());
}

PatchOptions read_patch_options(const std::filesystem::path& folder, std::string_view otherwise) {
  const std::filesystem::path file = folder / "preprocessor_config.json";
  const ImageProcessor processor = read_image_processor(file);
  if (processor.patches() != nullptr) return *processor.patches();
  refuse_type(file, processor, otherwise);
}

ImageProcessor read_tile_processor(const std::filesystem::path& folder, std::string_view otherwise) {
  ImageProcessor processor = read_image_processor(folder);
  if (processor.tiles() != nullptr) return processor;
  refuse_type(file_in(folder), processor, otherwise);
}

}  // namespace loom::images
