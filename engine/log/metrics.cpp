#include "engine/log/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <sys/stat.h>
#include <system_error>
#include <utility>
#include <vector>

#include "engine/core/error.h"
#include "engine/core/log.h"
#include "engine/io/output_target.h"
#include "engine/io/write_all.h"
#include "engine/log/metrics_keys.h"

namespace loom::log {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// A line, and which of its numbers are not finite ("loss is nan").
class Line {
 public:
  Line(const train::StepMetrics& metrics, const StepFigures& figures) {
    json_[keys::kStep] = metrics.step;
    json_[keys::kLoss] = number(keys::kLoss, metrics.loss);
    json_[keys::kGradNorm] = metrics.skipped ? Json(nullptr) : number(keys::kGradNorm, metrics.grad_norm);
    json_[keys::kLr] = number(keys::kLr, metrics.lr);
    if (metrics.loss_is_scaled) json_[keys::kLossScale] = metrics.loss_scale;
    if (metrics.skipped) json_[keys::kSkipped] = true;
    json_[keys::kTokensPerSecond] = number(keys::kTokensPerSecond, metrics.tokens_per_second);
    json_[keys::kPeakMemoryBytes] = Json::object();
    for (const auto& [category, bytes] : metrics.peak_memory_bytes) json_[keys::kPeakMemoryBytes][category] = bytes;
    json_[keys::kPeakHostMemoryBytes] = metrics.peak_host_memory_bytes;
    if (!metrics.expert_tokens.empty()) json_[keys::kExpertTokens] = metrics.expert_tokens;
    if (metrics.held_out_loss) add({*metrics.held_out_loss, metrics.held_out_reports});
    for (const auto& [name, value] : metrics.reports) json_[keys::kReports][name] = number(name, value);
    if (figures.zeros_in_grad) json_[keys::kNumZerosInGrad] = zeros(figures.zeros_in_grad(), metrics.skipped);
    if (figures.norms_by_layer) add(figures.norms_by_layer(), metrics.skipped);
  }

  // An evaluation without training.
  Line(std::int64_t step, const train::Evaluation& held_out) {
    json_[keys::kStep] = step;
    add(held_out);
  }

  std::string text() const { return json_.dump() + '\n'; }
  const std::vector<std::string>& not_finite() const { return not_finite_; }

 private:
  void add(const train::Evaluation& held_out) {
    json_[keys::kHeldOutLoss] = number(keys::kHeldOutLoss, held_out.loss);
    for (const auto& [name, value] : held_out.reports) json_[keys::kHeldOutReports][name] = number(name, value);
  }
  static Json zeros(double count, bool skipped) {
    return skipped ? Json(nullptr) : Json(static_cast<std::int64_t>(count));
  }
  void add(const std::vector<train::LayerNorms>& layers, bool skipped) {
    for (const train::LayerNorms& norms : layers) {
      Json& layer = json_[keys::kNormsByLayer][norms.layer];
      layer[keys::kNormOfGrad] = skipped ? Json(nullptr) : number("grad norm of " + norms.layer, norms.grad);
      layer[keys::kNormOfParams] = number("params norm of " + norms.layer, norms.params);
    }
  }
  Json number(std::string_view name, double value) {
    if (std::isfinite(value)) return value;
    not_finite_.push_back(fmt::format("{} is {}", name, value));
    return nullptr;
  }

  Json json_;
  std::vector<std::string> not_finite_;
};

[[noreturn]] void cannot_open(const fs::path& path, const std::string& reason) {
  config_error("{}: cannot write metrics: {}", path.string(), reason);
}

// Renames without ever replacing; false where `to` is taken.
bool renamed(const fs::path& from, const fs::path& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return true;
  if (errno == EEXIST) return false;
  if (errno != EINVAL) cannot_open(from, io::reason_of(errno));
  std::error_code error;  // a file system without that rename
  if (fs::exists(fs::symlink_status(to, error))) return false;
  fs::rename(from, to, error);
  if (error) cannot_open(from, error.message());
  return true;
}

// metrics.jsonl -> metrics.1.jsonl, or the first number that is free.
fs::path move_aside(const fs::path& path) {
  for (std::int64_t number = 1;; ++number) {
    const std::string name = fmt::format("{}.{}{}", path.stem().string(), number, path.extension().string());
    if (renamed(path, path.parent_path() / name)) return path.parent_path() / name;
  }
}

// The text behind the last end of a line.
std::string last_line(int fd, off_t size) {
  constexpr off_t kPiece = 4096;
  std::string line;
  for (off_t end = size; end > 0;) {
    const off_t begin = std::max<off_t>(0, end - kPiece);
    std::string piece(static_cast<std::size_t>(end - begin), '\0');
    if (::pread(fd, piece.data(), piece.size(), begin) != end - begin) return {};
    const std::size_t newline = piece.rfind('\n');
    if (newline != std::string::npos) return piece.substr(newline + 1) + line;
    line.insert(0, piece);
    end = begin;
  }
  return line;
}

}  // namespace

MetricsWriter::MetricsWriter(fs::path path, MetricsMode mode, StepFigures figures)
    : path_(std::move(path)), figures_(std::move(figures)) {
  std::error_code error;
  if (path_.has_parent_path()) fs::create_directories(path_.parent_path(), error);
  if (error) cannot_open(path_, error.message());
  const io::OutputTarget target = io::resolve_output(path_);
  is_file_ = target.kind == io::OutputTarget::Kind::kFile;
  if (is_file_) {
    open_file(target.path, mode);
  } else {
    fd_ = io::open_straight(target, path_);
  }
}

MetricsWriter::~MetricsWriter() {
  if (fd_ >= 0) ::close(fd_);
}

void MetricsWriter::open_file(const fs::path& target, MetricsMode mode) {
  struct stat earlier {};
  if (mode == MetricsMode::kNew && ::stat(target.c_str(), &earlier) == 0 && earlier.st_size > 0) {
    if (::access(target.c_str(), W_OK) != 0) cannot_open(path_, io::reason_of(errno));
    const fs::path kept = move_aside(target);
    log_info("{}: the metrics of an earlier run are kept in {}", path_.string(),
             (path_.parent_path() / kept.filename()).string());
  }
  const int access = mode == MetricsMode::kAppend ? O_RDWR : O_WRONLY;
  fd_ = ::open(target.c_str(), access | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (fd_ < 0) cannot_open(path_, io::reason_of(errno));
  if (mode == MetricsMode::kAppend) mend_last_line();
}

void MetricsWriter::mend_last_line() {
  const off_t size = ::lseek(fd_, 0, SEEK_END);
  const std::string last = last_line(fd_, size);
  if (last.empty()) return;
  const bool whole = Json::accept(last);
  const auto kept = size - static_cast<off_t>(last.size());
  const bool mended = whole ? ::write(fd_, "\n", 1) == 1 : ::ftruncate(fd_, kept) == 0;
  if (!mended) cannot_open(path_, io::reason_of(errno));
  if (whole) return;
  log_warning("{}: the last line was cut off after {} bytes, as by a run that was killed; it is removed",
              path_.string(), last.size());
}

void MetricsWriter::write(const train::StepMetrics& metrics) {
  const Line line(metrics, figures_);
  warn_of_values(metrics.step, line.not_finite());
  append(metrics.step, line.text());
}

void MetricsWriter::evaluated(std::int64_t step, const train::Evaluation& held_out) {
  const Line line(step, held_out);
  warn_of_values(step, line.not_finite());
  append(step, line.text());
}

void MetricsWriter::warn_of_values(std::int64_t step, const std::vector<std::string>& not_finite) {
  if (not_finite.empty() || std::exchange(warned_of_values_, true)) return;
  log_warning("step {}: {}; written as null, here and in the steps to come", step, fmt::join(not_finite, ", "));
}

void MetricsWriter::append(std::int64_t step, const std::string& text) {
  const off_t end = is_file_ ? ::lseek(fd_, 0, SEEK_END) : 0;
  const io::Written written = io::write_all(fd_, std::as_bytes(std::span(text)));
  if (written.error == 0) return;
  if (is_file_ && written.bytes > 0 && ::ftruncate(fd_, end) != 0) {
    log_warning("{}: the line of step {} is not whole", path_.string(), step);
  }
  missed(step, written.error);
}

void MetricsWriter::missed(std::int64_t step, int error_number) {
  if (missing_++ > 0) return;
  first_missing_ = fmt::format("step {}: {}", step, io::reason_of(error_number));
  log_warning("{}: cannot write the metrics of {}; training goes on without them", path_.string(), first_missing_);
}

std::optional<std::string> MetricsWriter::problem() const {
  if (missing_ == 0) return std::nullopt;
  return fmt::format("{}: the metrics of {} step{} are missing ({})", path_.string(), missing_,
                     missing_ == 1 ? "" : "s", first_missing_);
}

}  // namespace loom::log
