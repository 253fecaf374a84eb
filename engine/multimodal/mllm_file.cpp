#include "engine/multimodal/mllm_file.h"

#include <algorithm>
#include <fmt/format.h>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/is_there.h"
#include "engine/core/shown_text.h"
#include "engine/text/records/record.h"

namespace loom::multimodal {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Name = DatasetAttr::Name;

std::int64_t occurrences(std::string_view text, std::string_view word) {
  std::int64_t count = 0;
  for (std::size_t at = text.find(word); at != text.npos; at = text.find(word, at + word.size())) ++count;
  return count;
}

// One row of a file.
class RowReader {
 public:
  RowReader(const ConversationFiles& options, Conversations& result, const data::Record& record, Conversation& sample)
      : options_(options), attr_(options.attr), result_(result), record_(record), sample_(sample) {}

  // The reason where the row gives no sample.
  std::optional<DropReason> read() {
    refuse_unbuilt();
    if (const auto reason = read_messages()) return reason;
    read_images();
    read_videos();
    add_missing_image();
    check_placeholders();
    return std::nullopt;
  }

 private:
  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    config_error("{}: sample {}: {}", escaped(record_.where), sample_.number,
                 fmt::format(format, std::forward<Args>(args)...));
  }
  [[noreturn]] void refuse_value(const std::string& place, const Json& value, std::string_view allowed) const {
    refuse("{} is {}; use {}", place, shown_text(value.dump(-1, ' ', false, Json::error_handler_t::replace)), allowed);
  }

  // Nothing for a column that is switched off or missing, and for null.
  const Json* column(const Name& name) const {
    if (!name) return nullptr;
    const auto found = record_.columns.find(*name);
    return found == record_.columns.end() || found->is_null() ? nullptr : &*found;
  }
  static bool has_content(const Json* value) {
    return value != nullptr && !(value->is_string() && value->get_ref<const std::string&>().empty()) &&
           !((value->is_array() || value->is_object()) && value->empty());
  }

  void refuse_unbuilt() const {
    if (has_content(column(attr_.audios))) {
      refuse("column '{}' names audio, which is not built; leave such samples out", shown_text(*attr_.audios));
    }
    if (has_content(column(attr_.tools))) {
      refuse("column '{}' names tools, and calls of functions are not built; leave such samples out",
             shown_text(*attr_.tools));
    }
  }

  const std::string& text_in(const Json& message, const std::string& tag, std::size_t number) const {
    const std::string place = fmt::format("{}[{}]", shown_text(attr_.messages), number);
    if (!message.is_object()) refuse_value(place, message, "an object");
    const auto found = message.find(tag);
    if (found == message.end()) refuse("{} has no '{}'; write it, or name its tag in attr", place, shown_text(tag));
    if (!found->is_string()) refuse_value(place + "." + shown_text(tag), *found, "a text");
    return found->get_ref<const std::string&>();
  }

  // A role that no tag names has none.
  std::optional<Role> role_of(const std::string& text, std::size_t number) const {
    if (text == attr_.function_tag) {
      refuse("{}[{}] calls a function, which is not built; leave such samples out", shown_text(attr_.messages), number);
    }
    if (text == attr_.user_tag) return Role::kUser;
    if (text == attr_.assistant_tag) return Role::kAssistant;
    if (text == attr_.observation_tag) return Role::kObservation;
    return std::nullopt;
  }

  std::optional<DropReason> read_messages() {
    const Json* messages = column(attr_.messages);
    if (messages == nullptr) {
      refuse("no column '{}', which has the conversation; name it in attr: messages", shown_text(attr_.messages));
    }
    if (!messages->is_array()) refuse_value(shown_text(attr_.messages), *messages, "a list of messages");
    std::size_t first = 0;
    if (!messages->empty() && attr_.system_tag && text_in((*messages)[0], attr_.role_tag, 0) == *attr_.system_tag) {
      sample_.system = text_in((*messages)[0], attr_.content_tag, 0);
      first = 1;
    } else if (const Json* system = column(attr_.system)) {
      if (!system->is_string()) refuse_value(shown_text(*attr_.system), *system, "a text");
      sample_.system = system->get<std::string>();
    }
    for (std::size_t i = first; i < messages->size(); ++i) {
      const auto role = role_of(text_in((*messages)[i], attr_.role_tag, i), i);
      const bool answers = (i - first) % 2 == 1;
      if (!role || (*role == Role::kAssistant) != answers) return DropReason::kTurnOrder;
      sample_.messages.push_back({*role, text_in((*messages)[i], attr_.content_tag, i)});
    }
    if (sample_.messages.empty() || sample_.messages.size() % 2 != 0) return DropReason::kOddCount;
    return std::nullopt;
  }

  // The path of a file or folder that is there.
  std::string found(const Json& name, const std::string& place) {
    if (!name.is_string() || name.get_ref<const std::string&>().empty()) refuse_value(place, name, "a path");
    const auto& text = name.get_ref<const std::string&>();
    if (text.find('\0') != text.npos) refuse_value(place, name, "a path without a zero byte");
    const fs::path joined = options_.picture_folder / text;
    if (is_there(joined)) return joined.string();
    if (!is_there(text)) {
      refuse("{} is {}, and there is neither {} nor {}; put the file there, or leave the sample out", place,
             shown_text(text), shown_text(joined.string()), shown_text(text));
    }
    if (result_.outside++ == 0) result_.first_outside = text;
    return text;
  }

  std::string found_picture(const Json& name, const std::string& place) {
    std::string path = found(name, place);
    std::error_code ignored;
    if (!fs::is_regular_file(path, ignored)) refuse_value(place, name, "the path of a file");
    return path;
  }

  // The entries of a column: of a list, or the value itself. An empty text is nothing.
  template <class Take>
  void for_each_file(const Name& name, Take&& take) {
    const Json* files = column(name);
    if (!has_content(files)) return;
    if (!files->is_array()) return take(*files, shown_text(*name));
    for (std::size_t i = 0; i < files->size(); ++i) take((*files)[i], fmt::format("{}[{}]", shown_text(*name), i));
  }

  void read_images() {
    for_each_file(attr_.images, [&](const Json& file, const std::string& place) {
      sample_.images.push_back(found_picture(file, place));
    });
  }

  void read_videos() {
    for_each_file(attr_.videos, [&](const Json& file, const std::string& place) {
      Video video;
      if (file.is_array()) {
        if (file.empty()) refuse_value(place, file, "a folder of frames, or a list with at least one picture");
        for (const Json& frame : file) video.frames.push_back(found_picture(frame, place));
      } else {
        video.folder = found(file, place);
      }
      sample_.videos.push_back(std::move(video));
    });
  }

  std::int64_t placeholders(std::string_view word) const {
    std::int64_t count = 0;
    for (const Message& message : sample_.messages) count += occurrences(message.content, word);
    return count;
  }

  void add_missing_image() {
    if (!options_.adds_image || sample_.images.size() != 1 || placeholders(kImagePlaceholder) > 0) return;
    sample_.messages.front().content.insert(0, std::string(kImagePlaceholder) + "\n");
  }

  void check_count(std::string_view word, const Name& name, std::size_t files) const {
    const std::int64_t count = placeholders(word);
    if (std::cmp_equal(count, files)) return;
    refuse("{} {} in its messages, and {} file{} in {}; write one for each file", count, word, files,
           files == 1 ? "" : "s", name ? fmt::format("'{}'", shown_text(*name)) : "a column that attr does not name");
  }

  void check_placeholders() const {
    check_count(kImagePlaceholder, attr_.images, sample_.images.size());
    check_count(kVideoPlaceholder, attr_.videos, sample_.videos.size());
    check_count(kAudioPlaceholder, attr_.audios, 0);
  }

  const ConversationFiles& options_;
  const DatasetAttr& attr_;
  Conversations& result_;
  const data::Record& record_;
  Conversation& sample_;
};

void check_extension(const fs::path& file) {
  const std::string extension = file.extension().string();
  if (extension == ".json" || extension == ".jsonl" || extension == ".parquet") return;
  config_error("{}: conversations are read from .json, .jsonl and .parquet; convert the file", escaped(file.string()));
}

// False where no more samples are wanted.
bool add_file(const ConversationFiles& options, const fs::path& file, Conversations& result) {
  check_extension(file);
  const auto name = std::make_shared<const std::string>(file.string());
  const auto reader = data::open_records(file);
  std::int64_t number = 0;
  while (const auto batch = reader->next()) {
    for (const data::Record& record : batch->records()) {
      if (options.max_samples && result.rows >= *options.max_samples) return false;
      ++result.rows;
      Conversation sample;
      sample.file = name;
      sample.number = number++;
      if (const auto reason = RowReader(options, result, record, sample).read()) {
        result.drops.add(*reason, sample);
      } else {
        result.samples.push_back(std::move(sample));
      }
    }
  }
  return true;
}

}  // namespace

DatasetAttr mllm_demo_attr() {
  return {.images = "images",
          .videos = "videos",
          .messages = "messages",
          .role_tag = "role",
          .content_tag = "content",
          .user_tag = "user",
          .assistant_tag = "assistant",
          .observation_tag = {},
          .function_tag = {},
          .system_tag = "system"};
}

std::vector<fs::path> data_files(const std::string& names, const fs::path& dir, const std::string& where) {
  std::vector<fs::path> files;
  for (std::size_t begin = 0; begin <= names.size();) {
    const std::size_t end = std::min(names.find(',', begin), names.size());
    const std::string name = names.substr(begin, end - begin);
    begin = end + 1;
    if (name.empty()) {
      config_error("{} is '{}', with an empty name; write paths, separated by commas", where, shown_text(names));
    }
    if (is_there(dir / name)) {
      files.push_back(dir / name);
    } else if (is_there(name)) {
      files.emplace_back(name);
    } else {
      config_error("{} names {}, and there is neither {} nor {}; give the path of a file, or correct dataset_dir",
                   where, shown_text(name), shown_text((dir / name).string()), shown_text(name));
    }
  }
  return files;
}

Conversations read_conversations(const ConversationFiles& options) {
  Conversations result;
  for (const fs::path& file : options.files) {
    if (!add_file(options, file, result)) break;
  }
  return result;
}

}  // namespace loom::multimodal
