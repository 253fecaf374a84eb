#include "engine/train/metrics.h"

#include <cerrno>
#include <cmath>
#include <nlohmann/json.hpp>
#include <system_error>

#include "engine/core/error.h"
#include "engine/core/log.h"

namespace loom::train {
namespace {

using Json = nlohmann::ordered_json;

Json number(const StepMetrics& metrics, const char* name, double value) {
  if (std::isfinite(value)) return value;
  logger().warn("step {}: {} is {}; written as null", metrics.step, name, value);
  return nullptr;
}

Json line_of(const StepMetrics& metrics) {
  Json line;
  line["step"] = metrics.step;
  line["loss"] = number(metrics, "loss", metrics.loss);
  line["grad_norm"] = number(metrics, "grad_norm", metrics.grad_norm);
  line["lr"] = number(metrics, "lr", metrics.lr);
  line["tokens_per_second"] = number(metrics, "tokens_per_second", metrics.tokens_per_second);
  line["peak_memory_bytes"] = Json::object();
  for (const auto& [category, bytes] : metrics.peak_memory_bytes) line["peak_memory_bytes"][category] = bytes;
  if (metrics.held_out_loss) line["held_out_loss"] = number(metrics, "held_out_loss", *metrics.held_out_loss);
  for (const auto& [name, value] : metrics.reports) line["reports"][name] = number(metrics, name.c_str(), value);
  return line;
}

}  // namespace

MetricsWriter::MetricsWriter(std::filesystem::path path, MetricsMode mode) : path_(std::move(path)) {
  std::error_code error;
  if (path_.has_parent_path()) std::filesystem::create_directories(path_.parent_path(), error);
  errno = 0;
  if (!error) file_.open(path_, mode == MetricsMode::kNew ? std::ios::trunc : std::ios::app);
  if (!error && !file_) error.assign(errno, std::generic_category());
  if (error) config_error("{}: cannot write metrics: {}", path_.string(), error.message());
}

void MetricsWriter::write(const StepMetrics& metrics) { write_line(line_of(metrics).dump(), metrics.step); }

void MetricsWriter::evaluated(std::int64_t step, double held_out_loss) {
  const StepMetrics metrics{.step = step, .held_out_loss = held_out_loss};
  write_line(Json{{"step", step}, {"held_out_loss", number(metrics, "held_out_loss", held_out_loss)}}.dump(), step);
}

void MetricsWriter::write_line(const std::string& line, std::int64_t step) {
  errno = 0;
  file_ << line << '\n' << std::flush;
  if (!file_) {
    raise<Error>("{}: cannot write the metrics of step {}: {}", path_.string(), step,
                 std::generic_category().message(errno));
  }
}

}  // namespace loom::train
