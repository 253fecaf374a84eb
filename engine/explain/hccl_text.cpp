#include <algorithm>

#include "engine/explain/error_text.h"
#include "engine/explain/text_scanner.h"

namespace loom::explain {
namespace {

constexpr std::size_t kTextBytes = 512;  // of a message that is kept
constexpr std::size_t kCodeDigits = 4;   // of EI0002

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::string in_brackets(std::string_view line, std::string_view before) {
  TextScanner text(line);
  if (!text.skip_past(before)) return {};
  return std::string(text.until("]").value_or(""));
}

// Whether a code of so many digits begins there.
bool has_digits(std::string_view text, std::size_t digits) {
  return text.size() >= digits && std::ranges::all_of(text.substr(0, digits), is_digit);
}

// "EI0002: [PID: 2969] 2025-10-11-15:09:34.713.335 The wait execution ...".
std::optional<HcclError> read_ei(std::string_view line) {
  for (auto at = line.find("EI"); at != std::string_view::npos; at = line.find("EI", at + 2)) {
    const std::string_view code = line.substr(at, 2 + kCodeDigits);
    TextScanner text(line.substr(at + code.size()));
    if (!has_digits(code.substr(2), kCodeDigits) || !text.take(": ")) continue;
    HcclError error;
    error.code = code;
    if (text.take("[PID: ")) {
      error.pid = text.whole();
      text.take("] ");
    }
    if (has_digits(text.rest(), kCodeDigits)) text.until(" ", 40);  // the time
    error.text = text.rest().substr(0, kTextBytes);
    error.remote_rank = in_brackets(text.rest(), "remote rank: [");
    if (error.remote_rank.empty()) error.remote_rank = in_brackets(text.rest(), "remote rank:[");
    error.tag = in_brackets(text.rest(), "tag[");
    error.rank_size = whole_behind(text.rest(), "rankSize[");
    return error;
  }
  return std::nullopt;
}

// "[ERROR] 2024-05-21-11:57:54 (PID:927000, Device:3, RankID:3) ERR02200 DIST call hccl api failed."
std::optional<HcclError> read_err(std::string_view line) {
  constexpr std::size_t kDigits = 5;
  const auto at = line.find(" ERR0");
  if (at == std::string_view::npos || !has_digits(line.substr(at + 4), kDigits)) return std::nullopt;
  const std::string_view before = line.substr(0, at);
  const auto pid = whole_behind(before, "(PID:");
  if (!pid) return std::nullopt;
  HcclError error;
  error.code = line.substr(at + 1, 3 + kDigits);
  error.pid = pid;
  error.rank = whole_behind(before, "RankID:");
  std::string_view text = line.substr(at + 4 + kDigits, kTextBytes);
  error.text = text.substr(std::min(text.find_first_not_of(' '), text.size()));
  return error;
}

}  // namespace

std::optional<HcclError> read_hccl_error(std::string_view line) {
  auto error = read_ei(line);
  return error ? error : read_err(line);
}

}  // namespace loom::explain
