#include "engine/multimodal/llava_converter.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/io/atomic_file.h"
#include "engine/io/output_plan.h"
#include "engine/text/records/record.h"

namespace loom::multimodal {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::size_t kMostSkippedShown = 3;

std::string dumped(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

const std::string& text_in(const data::Record& record, const Json& object, const char* key, const std::string& place) {
  if (!object.is_object()) {
    config_error("{}: {} is {}; use an object", escaped(record.where), place, shown_text(dumped(object)));
  }
  const auto found = object.find(key);
  if (found != object.end() && found->is_string()) return found->get_ref<const std::string&>();
  config_error("{}: {} has no text '{}'; write it", escaped(record.where), place, key);
}

// Empty without one.
std::string image_of(const data::Record& record) {
  const auto image = record.columns.find("image");
  if (image == record.columns.end() || image->is_null()) return "";
  if (image->is_string() && image->get_ref<const std::string&>().find('\0') == std::string::npos) {
    return image->get<std::string>();
  }
  config_error("{}: image is {}; use the name of a file", escaped(record.where), shown_text(dumped(*image)));
}

Json messages_of(const data::Record& record) {
  const auto turns = record.columns.find("conversations");
  if (turns == record.columns.end() || !turns->is_array()) {
    config_error("{}: the sample has no list 'conversations'; is this LLaVA's instruction file?",
                 escaped(record.where));
  }
  Json messages = Json::array();
  for (std::size_t i = 0; i < turns->size(); ++i) {
    const std::string place = fmt::format("conversations[{}]", i);
    const std::string& from = text_in(record, (*turns)[i], "from", place);
    if (from != "human" && from != "gpt") {
      config_error("{}: {}.from is {}; use human or gpt", escaped(record.where), place, shown_text(from));
    }
    messages.push_back(
        {{"role", from == "human" ? "user" : "assistant"}, {"content", text_in(record, (*turns)[i], "value", place)}});
  }
  return messages;
}

class Converter {
 public:
  Converter(const LlavaConversion& options, io::AtomicFile& file) : options_(options), file_(file) {}

  void add(const data::Record& record) {
    Json images = Json::array();
    Json messages = messages_of(record);
    const std::string image = image_of(record);
    if (!image.empty()) {
      const std::string path = "./train2017/" + image;
      std::error_code ignored;
      if (!fs::exists(options_.coco_path / path, ignored)) return skip((options_.coco_path / path).string());
      images.push_back(path);
    }
    if (image.empty()) ++summary_.without_image;
    write((summary_.written++ == 0 ? "[\n" : ",\n") +
          dumped(Json{{"images", std::move(images)}, {"messages", std::move(messages)}}));
  }

  LlavaSummary finish() {
    write(summary_.written == 0 ? "[]\n" : "\n]\n");
    return std::move(summary_);
  }

 private:
  void write(std::string_view text) { file_.write(std::as_bytes(std::span(text))); }

  void skip(std::string path) {
    ++summary_.skipped;
    if (summary_.first_skipped.size() < kMostSkippedShown) summary_.first_skipped.push_back(std::move(path));
  }

  const LlavaConversion& options_;
  io::AtomicFile& file_;
  LlavaSummary summary_;
};

void refuse_existing(const fs::path& output) {
  std::error_code ignored;
  if (fs::symlink_status(output, ignored).type() == fs::file_type::not_found) return;
  config_error("--output_json_path: {} exists; remove it, or give another path", escaped(output.string()));
}

}  // namespace

LlavaSummary convert_llava(const LlavaConversion& options, const std::function<void()>& between) {
  const fs::path& output = options.output_json_path;
  refuse_existing(output);
  data::record_files("--llava_json_path", options.llava_json_path);
  io::OutputPlan plan;
  plan.reads("--llava_json_path", options.llava_json_path);
  plan.writes_file("--output_json_path", output);
  plan.check();
  plan.prepare();
  io::AtomicFile file(output);
  Converter converter(options, file);
  const auto reader = data::open_records(options.llava_json_path);
  while (const auto batch = reader->next()) {
    if (between) between();
    for (const data::Record& record : batch->records()) converter.add(record);
  }
  LlavaSummary summary = converter.finish();
  refuse_existing(output);
  file.commit();
  fs::permissions(output, fs::perms::owner_read | fs::perms::owner_write);
  return summary;
}

}  // namespace loom::multimodal
