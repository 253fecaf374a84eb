// What parity programs share whose references are exact: the first difference ends a case.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>

namespace loom::test {

// What differs.
struct Differs : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <class... Args>
void check(bool equal, fmt::format_string<Args...> format, Args&&... args) {
  if (!equal) throw Differs(fmt::format(format, std::forward<Args>(args)...));
}

inline std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  check(stream.good(), "{} cannot be read", path.string());
  return {std::istreambuf_iterator<char>(stream), {}};
}

inline nlohmann::json read_json(const std::filesystem::path& path) { return nlohmann::json::parse(bytes_of(path)); }

// A folder of this process, removed at the end.
class Scratch {
 public:
  explicit Scratch(std::string_view program)
      : path_(std::filesystem::temp_directory_path() / fmt::format("{}_{}", program, ::getpid())) {
    std::filesystem::create_directories(path_);
  }
  ~Scratch() { std::filesystem::remove_all(path_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace loom::test
