#include "engine/io/json_text.h"

#include <algorithm>
#include <fmt/format.h>
#include <set>
#include <vector>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"

namespace loom::io {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::size_t kMostLevels = 64;

using Keys = std::set<std::string>;

// The place of a new key's value; nothing where the object has the key.
json* place_of(json& object, std::string& key, Keys&) {
  const auto [at, is_new] = object.get_ref<json::object_t&>().try_emplace(std::move(key));
  return is_new ? &at->second : nullptr;
}

bool has_key(const ordered_json::object_t& pairs, const std::string& key, Keys& keys) {
  constexpr std::size_t kFew = 16;
  if (pairs.size() < kFew) {
    return std::any_of(pairs.begin(), pairs.end(), [&](const auto& pair) { return pair.first == key; });
  }
  if (keys.empty()) {
    for (const auto& pair : pairs) keys.insert(pair.first);
  }
  return !keys.insert(key).second;
}

ordered_json* place_of(ordered_json& object, std::string& key, Keys& keys) {
  auto& pairs = object.get_ref<ordered_json::object_t&>();
  if (has_key(pairs, key, keys)) return nullptr;
  append_pair(object, std::move(key), nullptr);
  return &pairs.back().second;
}

// Growing copies what the pairs hold; a reserve that is not used makes many small objects large.
void reserve_pairs(ordered_json& json, bool is_whole_document) {
  if (json.is_object()) json.get_ref<ordered_json::object_t&>().reserve(is_whole_document ? 8 : 2);
}
void reserve_pairs(json&, bool) {}

// Makes the tree of what the parser comes to.
template <class Json>
class Builder final : public nlohmann::json_sax<Json> {
 public:
  Builder(std::string_view text, const std::string& file, const JsonWords& words)
      : text_(text), file_(file), words_(words) {}

  Json result() { return std::move(result_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(typename Json::number_integer_t value) override { return add(value); }
  bool number_unsigned(typename Json::number_unsigned_t value) override { return add(value); }
  bool number_float(typename Json::number_float_t value, const std::string&) override { return add(value); }
  bool string(std::string& value) override { return add(std::move(value)); }
  bool binary(typename Json::binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(std::string& key) override {
    place_ = place_of(*levels_.back().value, key, levels_.back().keys);
    if (place_ != nullptr) return true;
    const std::string_view words = levels_.size() == 1 ? words_.repeated : JsonWords{}.repeated;
    config_error("{}: {}", file_, fmt::format(fmt::runtime(words), fmt::arg("key", shown_text(key))));
  }

  bool parse_error(std::size_t byte, const std::string&, const nlohmann::detail::exception& error) override {
    constexpr int kOutOfRange = 406;
    if (error.id == kOutOfRange) config_error("{}: {} (a number is out of range)", file_, words_.invalid);
    config_error("{}: {} (at byte {} of {})", file_, words_.invalid, byte, text_.size());
  }

 private:
  struct Level {
    Json* value;
    Keys keys = {};
  };

  Json& put(Json value) {
    if (levels_.empty()) return result_ = std::move(value);
    Json& container = *levels_.back().value;
    if (container.is_object()) return *place_ = std::move(value);
    container.push_back(std::move(value));
    return container.back();
  }

  bool add(Json value) {
    put(std::move(value));
    return true;
  }

  bool open(Json value) {
    if (levels_.size() >= kMostLevels) config_error("{}: nested deeper than {} levels", file_, kMostLevels);
    Json& opened = put(std::move(value));
    reserve_pairs(opened, levels_.empty());
    levels_.push_back({&opened});
    return true;
  }

  bool close() {
    levels_.pop_back();
    return true;
  }

  const std::string_view text_;
  const std::string& file_;
  const JsonWords& words_;
  Json result_;
  std::vector<Level> levels_;  // what is open
  Json* place_ = nullptr;      // of the next value, in an object
};

template <class Json>
Json parse(std::string_view text, const std::string& file, const JsonWords& words) {
  Builder<Json> builder(text, file, words);
  Json::sax_parse(text, &builder);
  return builder.result();
}

}  // namespace

json parse_json(std::string_view text, const std::string& file, const JsonWords& words) {
  return parse<json>(text, file, words);
}

ordered_json parse_ordered_json(std::string_view text, const std::string& file, const JsonWords& words) {
  return parse<ordered_json>(text, file, words);
}

}  // namespace loom::io
