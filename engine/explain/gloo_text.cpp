#include <algorithm>
#include <utility>

#include "engine/explain/error_text.h"
#include "engine/explain/text_scanner.h"

namespace loom::explain {
namespace {

constexpr std::size_t kTextBytes = 256;  // of a message that is kept
constexpr std::size_t kMostMissing = 4096;
constexpr std::int64_t kMostElements = std::int64_t{1} << 60;

// "[2, 16]": the product; none: several tensors, or none.
std::optional<std::int64_t> elements_of(TextScanner text) {
  std::int64_t elements = 1;
  do {
    const auto size = text.whole();
    if (!size || (*size > 0 && elements > kMostElements / *size)) return std::nullopt;
    elements *= *size;
  } while (text.take(", "));
  return text.take("], TensorDtypes=") ? std::optional(elements) : std::nullopt;
}

// "CollectiveFingerPrint(SequenceNumber=89, OpType=_ALLGATHER_BASE, TensorShape=[2668], TensorDtypes=Float, ...".
std::optional<FingerPrint> read_finger_print(TextScanner& text) {
  if (!text.take("CollectiveFingerPrint(SequenceNumber=")) return std::nullopt;
  FingerPrint print;
  const auto seq = text.whole();
  text.take(", ");  // not written where there are no tensors
  if (!seq || !text.take("OpType=")) return std::nullopt;
  print.seq = *seq;
  print.op = text.rest().substr(0, std::min<std::size_t>(text.rest().find_first_of(",)"), 64));
  text.take(print.op);
  if (text.take(", TensorShape=[")) print.numel = elements_of(text);
  return print;
}

// "1, 3" before " failed to pass monitoredBarrier in 8000 ms".
std::optional<BarrierFailure> read_missing(std::string_view line) {
  constexpr std::string_view kWords = " failed to pass monitoredBarrier in ";
  TextScanner text(line);
  if (!text.skip_past("[Rank ")) return std::nullopt;
  BarrierFailure failure{.rank = text.whole(), .missing = {}, .timeout_ms = 0, .collective = {}};
  if (!failure.rank || !text.take("]: Rank")) return std::nullopt;
  text.take("s");
  if (!text.take(" ")) return std::nullopt;
  do {
    const auto rank = text.whole();
    if (!rank) break;
    if (failure.missing.size() < kMostMissing) failure.missing.push_back(*rank);
  } while (text.take(", "));
  if (failure.missing.empty() || !text.take(kWords)) return std::nullopt;
  failure.timeout_ms = text.whole().value_or(0);
  return failure;
}

// "Rank 2 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0."
std::optional<BarrierFailure> read_reached(std::string_view line) {
  const auto at = line.find(" successfully reached monitoredBarrier");
  if (at == std::string_view::npos) return std::nullopt;
  const auto word = line.substr(0, at).rfind("Rank ");
  if (word == std::string_view::npos) return std::nullopt;
  TextScanner text(line.substr(word + 5));
  BarrierFailure failure{.rank = text.whole(), .missing = {}, .timeout_ms = 0, .collective = {}};
  return failure.rank ? std::optional(failure) : std::nullopt;
}

std::optional<BarrierFailure> read_before_collective(std::string_view line) {
  TextScanner text(line);
  if (!text.skip_past("Monitored Barrier encountered error running collective: ")) return std::nullopt;
  BarrierFailure failure{.rank = {}, .missing = {}, .timeout_ms = 0, .collective = read_finger_print(text)};
  return failure.collective ? std::optional(failure) : std::nullopt;
}

}  // namespace

std::optional<CollectiveMismatch> read_mismatch(std::string_view line) {
  constexpr std::string_view kRuns = " is running collective: ";
  TextScanner text(line);
  if (!text.skip_past("Detected mismatch between collectives on ranks. Rank ")) return std::nullopt;
  const auto rank = text.whole();
  if (!rank || !text.take(kRuns)) return std::nullopt;
  const auto own = read_finger_print(text);
  if (!own || !text.skip_past("but Rank ")) return std::nullopt;
  const auto other_rank = text.whole();
  if (!other_rank || !text.take(kRuns)) return std::nullopt;
  auto other = read_finger_print(text);
  if (other && other->seq != own->seq) other.reset();
  return CollectiveMismatch{.rank = *rank, .own = *own, .other_rank = *other_rank, .other = std::move(other)};
}

std::optional<BarrierFailure> read_barrier_failure(std::string_view line) {
  if (auto before = read_before_collective(line)) return before;
  if (line.find("monitoredBarrier") == std::string_view::npos) return std::nullopt;
  auto missing = read_missing(line);
  return missing ? missing : read_reached(line);
}

std::optional<GlooError> read_gloo_error(std::string_view line) {
  const auto at = line.find("/gloo/transport/");
  if (at == std::string_view::npos) return std::nullopt;
  TextScanner text(line.substr(at));
  if (!text.skip_past("] ")) return std::nullopt;
  GlooError error;
  error.text = text.rest().substr(0, kTextBytes);
  if (const auto waited = whole_behind(error.text, "Timed out waiting ")) {
    error.timed_out = true;
    error.timeout_ms = *waited;
    return error;
  }
  const bool closed = error.text.starts_with("Connection closed by peer") || error.text.starts_with("Read error") ||
                      error.text.starts_with("Write error");
  return closed ? std::optional(error) : std::nullopt;
}

}  // namespace loom::explain
