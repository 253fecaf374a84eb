#include "engine/log/progress.h"

#include <unistd.h>

#include <algorithm>
#include <biosoup/progress_bar.hpp>
#include <fmt/core.h>
#include <sstream>
#include <sys/ioctl.h>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"

namespace loom::log {
namespace {

constexpr std::uint32_t kTicks = 24;
constexpr std::int64_t kRedrawInterval_ns = 100'000'000;
constexpr std::int64_t kSecond_ns = 1'000'000'000;

std::string clock_text(std::int64_t seconds) {
  const std::int64_t hours = seconds / 3600;
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, seconds / 60 % 60, seconds % 60);
  return fmt::format("{}:{:02}", seconds / 60, seconds % 60);
}

}  // namespace

struct Progress::Bar {
  biosoup::ProgressBar bar;

  void advance_to(std::int64_t steps) {
    while (bar.event_counter() < steps) ++bar;
  }
  std::string text() const {
    std::ostringstream text;
    text << '[' << bar << ']';
    return text.str();
  }
};

bool is_terminal(int fd) { return ::isatty(fd) == 1; }

std::size_t terminal_columns(int fd) {
  winsize size{};
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : ProgressOptions{}.columns;
}

Progress::Progress(const ProgressOptions& options, std::ostream& out, MonotonicClock clock)
    : options_(options),
      out_(out),
      clock_(std::move(clock)),
      started_ns_(clock_()),
      bar_(new Bar{biosoup::ProgressBar(static_cast<std::uint32_t>(options.total_steps), kTicks)}),
      drawn_ns_(started_ns_ - kRedrawInterval_ns) {
  require(options.total_steps >= 1 && options.total_steps <= UINT32_MAX, "progress over {} steps", options.total_steps);
  require(options.log_interval >= 1, "a line every {} steps", options.log_interval);
  bar_->advance_to(options.first_step);
}

Progress::~Progress() {
  if (drawn_width_ > 0) out_ << '\n' << std::flush;
}

void Progress::update(std::int64_t steps_done, double loss, double tokens_per_second, const train::Reports& reports) {
  if (!options_.shown) return;
  bar_->advance_to(std::min(steps_done, options_.total_steps));
  if (!due(steps_done)) return;
  if (!options_.terminal) {
    out_ << "step " << line(steps_done, loss, tokens_per_second, reports) << '\n' << std::flush;
    return;
  }
  const std::string bar = bar_->text() + ' ';
  train::Reports shown = reports;
  std::string text = line(steps_done, loss, tokens_per_second, shown);
  for (; !shown.empty() && bar.size() + text.size() >= options_.columns;
       text = line(steps_done, loss, tokens_per_second, shown)) {
    shown.pop_back();
  }
  draw(bar + text);
}

std::string Progress::line(std::int64_t steps_done, double loss, double tokens_per_second,
                           const train::Reports& reports) const {
  std::string text = fmt::format("{}/{}  loss {:.4f}", steps_done, options_.total_steps, loss);
  for (const auto& [name, value] : reports) text += fmt::format("  {} {:.4f}", escaped(name), value);
  return text + fmt::format("  {:.0f} tokens/s  {} left", tokens_per_second, time_left(steps_done));
}

void Progress::note(std::string_view line) {
  if (!options_.shown) return;
  erase();
  out_ << line << '\n' << std::flush;
}

bool Progress::due(std::int64_t steps_done) const {
  if (steps_done == options_.total_steps) return true;
  if (options_.terminal) return clock_() - drawn_ns_ >= kRedrawInterval_ns;
  return steps_done % options_.log_interval == 0;
}

std::string Progress::time_left(std::int64_t steps_done) const {
  const std::int64_t steps_here = std::max<std::int64_t>(1, steps_done - options_.first_step);
  const double ns_per_step = static_cast<double>(clock_() - started_ns_) / static_cast<double>(steps_here);
  const auto to_come = static_cast<double>(std::max<std::int64_t>(0, options_.total_steps - steps_done));
  return clock_text(static_cast<std::int64_t>(ns_per_step * to_come / kSecond_ns + 0.5));
}

void Progress::draw(const std::string& line) {
  const std::size_t padding = drawn_width_ > line.size() ? drawn_width_ - line.size() : 0;
  out_ << '\r' << line << std::string(padding, ' ') << std::flush;
  drawn_width_ = line.size();
  drawn_ns_ = clock_();
}

void Progress::erase() {
  if (drawn_width_ == 0) return;
  out_ << '\r' << std::string(drawn_width_, ' ') << '\r';
  drawn_width_ = 0;
  drawn_ns_ -= kRedrawInterval_ns;  // the next update draws at once
}

std::string Progress::evaluation(const std::string& what, double loss, const train::Reports& reports) const {
  std::string text =
      fmt::format("{} {:.4f}{}{}", what, loss, options_.loss_unit.empty() ? "" : " ", options_.loss_unit);
  for (const auto& [name, value] : reports) text += fmt::format(", {} {:.4f}", escaped(name), value);
  return text;
}

void Progress::step_done(const train::StepMetrics& metrics) {
  update(metrics.step, metrics.loss, metrics.tokens_per_second, metrics.reports);
  if (!metrics.held_out_loss) return;
  note(evaluation(fmt::format("step {}: held-out loss", metrics.step), *metrics.held_out_loss,
                  metrics.held_out_reports));
}

void Progress::skipped(std::int64_t step) {
  note(fmt::format("step {}: skipped (--iterations-to-skip); its data is consumed, nothing is trained", step));
}

void Progress::evaluated(std::int64_t, const train::Evaluation& held_out) {
  note(evaluation("held-out loss", held_out.loss, held_out.reports));
}

void Progress::run_done(const std::optional<train::Evaluation>& test) {
  if (test) note(evaluation("test loss", test->loss, test->reports));
}

}  // namespace loom::log
