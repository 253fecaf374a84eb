// CaseJson: the JSON of a reference case, which notes what a program reads of it. A key that was never read asks for
// something that the program does not do: check_all_read() fails the case and names the key.
//
//   const CaseJson file = read_case("curve.json");
//   const double lr = file.at("optimizer").at("lr");
//   file.check_all_read({"rows"});   // keys that are commentary, at any depth; kHowItWasMade always is
//
// Read       a value that was converted or compared, and a null found by is_null(). contains(), size() and elements()
//            read nothing; {} and [] hold nothing that could be missed.
// Threads    any.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fstream>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_set>
#include <utility>
#include <vector>

namespace loom::test {

// Commentary in any file: it says how the reference was made.
inline constexpr std::string_view kHowItWasMade[] = {"what",          "note",  "noise",   "torch", "transformers",
                                                     "megatron_core", "numpy", "seconds", "source"};
using Commentary = std::vector<std::string_view>;

template <class Json>
class BasicCaseJson {
 public:
  BasicCaseJson() : BasicCaseJson(Json(), "") {}
  // `name` is what an error calls the file.
  BasicCaseJson(Json document, std::string name)
      : file_(std::make_shared<File>(std::move(document), std::move(name))), value_(&file_->document) {}

  BasicCaseJson at(const std::string& key) const { return {file_, &value_->at(key)}; }
  BasicCaseJson at(std::size_t index) const { return {file_, &value_->at(index)}; }
  BasicCaseJson back() const { return {file_, &value_->back()}; }
  template <class T>
  T value(const std::string& key, T absent) const {
    return value_->contains(key) ? at(key).template get<T>() : std::move(absent);
  }

  template <class T>
  T get() const {
    return raw().template get<T>();
  }
  template <class T>
  requires(!std::is_pointer_v<T> && !std::is_same_v<T, Json> && !std::is_same_v<T, typename Json::value_type> &&
           !std::is_same_v<T, std::initializer_list<char>>)
  operator T() const {  // NOLINT: as nlohmann's
    return get<T>();
  }
  template <class T>
  bool operator==(const T& other) const {
    return raw() == other;
  }
  // All of it is read.
  const Json& raw() const {
    const std::lock_guard lock(file_->mutex);
    file_->read.insert(value_);
    return *value_;
  }
  bool is_null() const { return value_->is_null() && raw().is_null(); }

  // --- what reads nothing ---
  bool contains(const std::string& key) const { return value_->contains(key); }
  std::size_t size() const { return value_->size(); }
  bool empty() const { return value_->empty(); }
  bool is_array() const { return value_->is_array(); }
  bool is_boolean() const { return value_->is_boolean(); }
  bool is_string() const { return value_->is_string(); }
  bool is_number() const { return value_->is_number(); }
  std::string dump() const { return value_->dump(); }
  std::vector<BasicCaseJson> elements() const {
    std::vector<BasicCaseJson> all;
    for (const Json& element : *value_) all.push_back({file_, &element});
    return all;
  }
  std::vector<std::pair<std::string, BasicCaseJson>> items() const {
    std::vector<std::pair<std::string, BasicCaseJson>> all;
    for (const auto& [key, element] : value_->items()) all.emplace_back(key, BasicCaseJson{file_, &element});
    return all;
  }

  // File and keys of what was not read, here or below, outside of `commentary`; empty when all was.
  std::string unread(Commentary commentary = {}) const {
    commentary.insert(commentary.end(), std::begin(kHowItWasMade), std::end(kHowItWasMade));
    std::vector<std::string> keys;
    const std::lock_guard lock(file_->mutex);
    collect_unread(*value_, "", commentary, keys);
    return keys.empty() ? "" : fmt::format("{}: this program does not use {}", file_->name, fmt::join(keys, ", "));
  }
  // Throws std::runtime_error with that text.
  void check_all_read(Commentary commentary = {}) const {
    if (const std::string text = unread(std::move(commentary)); !text.empty()) throw std::runtime_error(text);
  }

 private:
  struct File {
    File(Json document, std::string name) : document(std::move(document)), name(std::move(name)) {}
    const Json document;
    const std::string name;
    std::mutex mutex;
    std::unordered_set<const Json*> read;
  };
  BasicCaseJson(std::shared_ptr<File> file, const Json* value) : file_(std::move(file)), value_(value) {}

  // Each pattern of a path once: "curve[].step".
  void collect_unread(const Json& value, const std::string& path, const Commentary& commentary,
                      std::vector<std::string>& unread) const {
    if (file_->read.contains(&value)) return;
    if (value.is_array()) {
      for (const Json& element : value) collect_unread(element, path + "[]", commentary, unread);
      return;
    }
    if (value.is_object()) {
      for (const auto& [key, element] : value.items()) {
        if (std::ranges::find(commentary, key) != commentary.end()) continue;
        collect_unread(element, path.empty() ? key : path + "." + key, commentary, unread);
      }
      return;
    }
    const std::string named = fmt::format("'{}'", path);
    if (std::ranges::find(unread, named) == unread.end()) unread.push_back(named);
  }

  std::shared_ptr<File> file_;
  const Json* value_;
};

using CaseJson = BasicCaseJson<nlohmann::json>;

template <class Json = nlohmann::json>
BasicCaseJson<Json> read_case(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) throw std::runtime_error(file.string() + " cannot be read");
  return {Json::parse(stream), file.filename().string()};
}

// Of a curve: one entry a step, from the first step on.
inline void check_steps(const CaseJson& curve) {
  for (std::size_t i = 0; i < curve.size(); ++i) {
    if (curve.at(i).at("step") == i + 1) continue;
    throw std::runtime_error(fmt::format("entry {} of the curve is of step {}; it has to have every step from 1 on",
                                         i + 1, curve.at(i).at("step").dump()));
  }
}

}  // namespace loom::test
