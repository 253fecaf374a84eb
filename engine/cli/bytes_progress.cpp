#include "engine/cli/bytes_progress.h"

#include <algorithm>
#include <array>
#include <biosoup/progress_bar.hpp>
#include <fmt/core.h>
#include <sstream>
#include <utility>

namespace loom::cli {
namespace {

constexpr std::uint32_t kTicks = 24;
constexpr std::int64_t kRedrawInterval_ns = 100'000'000;
constexpr double kSecond_ns = 1e9;

std::string bar_text(std::uint64_t done, std::uint64_t all) {
  biosoup::ProgressBar bar(kTicks, kTicks);
  for (std::uint64_t i = 0; i < kTicks * static_cast<double>(done) / static_cast<double>(all) - 1e-9; ++i) ++bar;
  std::ostringstream text;
  text << '[' << bar << ']';
  return text.str();
}

}  // namespace

std::string bytes_text(double bytes) {
  constexpr std::array kUnits{"bytes", "kB", "MB", "GB", "TB"};
  std::size_t unit = 0;
  while (bytes >= 1000 && unit + 1 < kUnits.size()) {
    bytes /= 1000;
    ++unit;
  }
  return fmt::format("{:.{}f} {}", bytes, unit == 0 ? 0 : 1, kUnits[unit]);
}

BytesProgress::BytesProgress(std::ostream& out, bool terminal, std::function<std::int64_t()> clock)
    : out_(out),
      terminal_(terminal),
      clock_(std::move(clock)),
      started_ns_(clock_()),
      drawn_ns_(started_ns_ - kRedrawInterval_ns) {}

BytesProgress::~BytesProgress() {
  if (drawn_width_ > 0) out_ << '\n' << std::flush;
}

void BytesProgress::update(std::uint64_t done_bytes, std::uint64_t all_bytes) {
  const std::int64_t now = clock_();
  if (!terminal_ || all_bytes == 0 || (done_bytes < all_bytes && now - drawn_ns_ < kRedrawInterval_ns)) return;
  const auto done = static_cast<double>(done_bytes);
  const double seconds = std::max(1e-9, static_cast<double>(now - started_ns_) / kSecond_ns);
  const auto left = static_cast<std::int64_t>((static_cast<double>(all_bytes) - done) * seconds / std::max(done, 1.0));
  std::string line =
      fmt::format("{} {} of {}  {}/s  {}:{:02} left", bar_text(done_bytes, all_bytes), bytes_text(done),
                  bytes_text(static_cast<double>(all_bytes)), bytes_text(done / seconds), left / 60, left % 60);
  const std::size_t width = line.size();
  if (width < drawn_width_) line.append(drawn_width_ - width, ' ');
  out_ << '\r' << line << std::flush;
  drawn_width_ = width;
  drawn_ns_ = now;
}

}  // namespace loom::cli
