#include "engine/io/json_text.h"

#include <set>
#include <vector>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"

namespace loom::io {
namespace {

using Json = nlohmann::json;

constexpr int kMostLevels = 64;

// Looks at what the parser comes to.
class Watch {
 public:
  Watch(const std::string& file, const JsonWords& words) : file_(file), words_(words), keys_(kMostLevels + 1) {}

  // `depth` counts the objects and lists around the event.
  void see(int depth, Json::parse_event_t event, const Json& value) {
    if (event == Json::parse_event_t::object_start || event == Json::parse_event_t::array_start) {
      if (depth >= kMostLevels) config_error("{}: nested deeper than {} levels", file_, kMostLevels);
      keys_[static_cast<std::size_t>(depth + 1)].clear();
    }
    if (event == Json::parse_event_t::key) see_key(depth, value.get_ref<const std::string&>());
  }

 private:
  void see_key(int depth, const std::string& key) {
    if (keys_[static_cast<std::size_t>(depth)].insert(key).second) return;
    const std::string_view words = depth == 1 ? words_.repeated : JsonWords{}.repeated;
    config_error("{}: {}", file_, fmt::format(fmt::runtime(words), fmt::arg("key", shown_text(key))));
  }

  const std::string& file_;
  const JsonWords& words_;
  std::vector<std::set<std::string>> keys_;  // of the objects that are open, by depth
};

}  // namespace

Json parse_json(std::string_view text, const std::string& file, const JsonWords& words) {
  Watch watch(file, words);
  const auto see = [&](int depth, Json::parse_event_t event, const Json& value) {
    watch.see(depth, event, value);
    return true;
  };
  try {
    return Json::parse(text, see);
  } catch (const Json::parse_error& error) {
    config_error("{}: {} (at byte {} of {})", file, words.invalid, error.byte, text.size());
  } catch (const Json::exception&) {
    config_error("{}: {} (a number is out of range)", file, words.invalid);
  }
}

}  // namespace loom::io
