#include "engine/launch/failure_text.h"

#include <filesystem>
#include <new>
#include <stdexcept>
#include <system_error>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"

namespace loom::launch {
namespace {

std::string of_files(const std::filesystem::filesystem_error& error) {
  return fmt::format("{}: {}; check the path, and that it can be read and written", shown_text(error.path1().string()),
                     error.code().message());
}

std::string of_system(const std::system_error& error) {
  const bool threads = error.code() == std::errc::resource_unavailable_try_again;
  if (!threads) return fmt::format("the system refuses: {}", shown_text(error.what()));
  return fmt::format(
      "the system starts no further thread ({}); use fewer ranks (--nproc-per-node) or --compute-threads, or allow "
      "more threads (ulimit -u)",
      error.code().message());
}

}  // namespace

std::string failure_text(const std::exception& error) {
  if (const auto* files = dynamic_cast<const std::filesystem::filesystem_error*>(&error)) return of_files(*files);
  if (const auto* system = dynamic_cast<const std::system_error*>(&error)) return of_system(*system);
  if (is_out_of_memory(error)) {
    return out_of_memory_text(
        "use fewer ranks (--nproc-per-node), a smaller --micro-batch-size or --seq-length, or a smaller model");
  }
  return error.what();
}

bool is_out_of_memory(const std::exception& error) {
  return dynamic_cast<const std::bad_alloc*>(&error) != nullptr ||
         dynamic_cast<const std::length_error*>(&error) != nullptr;
}

std::string out_of_memory_text(std::string_view advice) {
  return fmt::format("{}the machine has no memory left for the request; {}", rank_prefix(), advice);
}

}  // namespace loom::launch
