// What the fuzz targets share: an input is answered, or refused by a ConfigError whose text is fit for a terminal.
// Anything else (another exception, a sanitizer's finding, 5 seconds, 2 GiB) is a defect.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <string>
#include <string_view>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"

namespace loom::fuzz {

// What libFuzzer calls with an input. NAME_fuzz is a link to the program of all targets, which runs that of its name.
using Target = int (*)(const std::uint8_t* data, std::size_t size);
struct RegisteredTarget {
  RegisteredTarget(const char* name, Target target);
};
#define LOOM_FUZZ_TARGET(name)                                                       \
  static int name##_target(const std::uint8_t* data, std::size_t size);              \
  static const loom::fuzz::RegisteredTarget name##_registered(#name, name##_target); \
  static int name##_target(const std::uint8_t* data, std::size_t size)

constexpr std::size_t kLongestMessage = 8192;

[[noreturn]] inline void found(std::string_view what, std::string_view message) {
  fmt::print(stderr, "{}: {}\n", what, message);
  std::abort();
}

// As the program prints it: no control character but the ends of lines of its own, whose next line is indented.
inline void check_message(std::string_view text) {
  if (text.empty()) found("empty message", text);
  const std::string message = shown_message(text);
  if (message.size() > kLongestMessage) found("message of more than 8192 bytes", message.substr(0, 200));
  for (std::size_t i = 0; i < message.size(); ++i) {
    const auto byte = static_cast<unsigned char>(message[i]);
    const bool own_line = message[i] == '\n' && std::string_view(message).substr(i + 1).starts_with("  ");
    if ((byte < 0x20 && !own_line) || byte == 0x7f) found("control character in a message", message);
  }
}

template <class Parse>
int answered_or_refused(Parse&& parse) {
  try {
    parse();
  } catch (const ConfigError& error) {
    check_message(error.what());
  } catch (const std::exception& error) {
    found("neither an answer nor a ConfigError", error.what());
  }
  return 0;
}

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// A folder of this process in memory, for parsers that read files.
inline const std::filesystem::path& scratch_folder() {
  static const std::filesystem::path folder = [] {
    auto made = std::filesystem::path("/dev/shm") / fmt::format("shardloom_fuzz_{}", ::getpid());
    std::filesystem::create_directories(made);
    std::atexit([] { std::filesystem::remove_all(scratch_folder()); });
    return made;
  }();
  return folder;
}

inline std::filesystem::path written(std::string_view name, std::string_view bytes) {
  const std::filesystem::path path = scratch_folder() / name;
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return path;
}

}  // namespace loom::fuzz
