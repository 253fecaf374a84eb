#include "engine/objective/reference_log_probs.h"

#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <span>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/formats/safetensors/safetensors.h"

namespace loom::objective {
namespace {

constexpr const char* kFormatKey = "shardloom";
constexpr const char* kFormat = "reference log-probabilities, 1";

// What a file has to agree in: its key, what a message calls it, its value here, and where that is from.
struct Fact {
  const char* key;
  const char* shown;
  std::string value;
  const char* place_key = nullptr;
  std::string place{};
};

std::vector<Fact> facts_of(const ReferenceFacts& f) {
  return {{"reference_weights", "the reference weights", f.weights, "reference_weights_at", f.weights_at},
          {"data", "the data", f.data, "data_at", f.data_at},
          {"pairs", "the number of pairs", fmt::to_string(f.pairs)},
          {"seq_length", "--seq-length", fmt::to_string(f.seq_length)},
          {"cut", "the cut of longer answers", f.cut},
          {"dtype", "the type of the computation", f.dtype}};
}

std::string text_of(const io::SafetensorsFile& file, const char* key) {
  const auto found = file.metadata().find(key);
  return found == file.metadata().end() ? "none" : found->second;
}

std::string with_place(const std::string& value, const std::string& place) {
  return place.empty() ? shown_text(value) : fmt::format("{} of {}", shown_text(value), shown_text(place));
}

void check_facts(const io::SafetensorsFile& file, const ReferenceFacts& facts) {
  std::vector<std::string> differences;
  for (const Fact& fact : facts_of(facts)) {
    const std::string there = text_of(file, fact.key);
    if (there == fact.value) continue;
    const std::string place = fact.place_key == nullptr ? "" : text_of(file, fact.place_key);
    differences.push_back(
        fmt::format("{}: {} there, {} here", fact.shown, with_place(there, place), with_place(fact.value, fact.place)));
  }
  if (differences.empty()) return;
  config_error(
      "--ref-logps-cache {}: its log-probabilities were computed from something else: {}; give another name, or "
      "remove the file so that it is computed anew",
      escaped(file.path().string()), fmt::join(differences, "; "));
}

std::vector<double> numbers_of(const io::SafetensorsFile& file, const char* name, std::int64_t pairs) {
  const std::string where = escaped(file.path().string());
  const io::StoredTensor* tensor = file.find(name);
  if (tensor == nullptr || tensor->dtype != DType::kF64 || tensor->shape != Shape{pairs}) {
    config_error(
        "--ref-logps-cache {}: '{}' is {}, and fp64 {} is needed; remove the file so that it is computed anew", where,
        name, tensor == nullptr ? "missing" : fmt::format("{} {}", loom::name(tensor->dtype), to_string(tensor->shape)),
        to_string(Shape{pairs}));
  }
  std::vector<double> numbers(static_cast<std::size_t>(pairs));
  if (!numbers.empty()) std::memcpy(numbers.data(), tensor->bytes.data(), tensor->bytes.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (std::isfinite(numbers[i])) continue;
    config_error("--ref-logps-cache {}: '{}' of pair {} is {}; remove the file so that it is computed anew", where,
                 name, i, numbers[i]);
  }
  return numbers;
}

io::TensorToWrite to_write(const char* name, const std::vector<double>& numbers) {
  return {name, DType::kF64, Shape{static_cast<std::int64_t>(numbers.size())}, std::as_bytes(std::span(numbers))};
}

}  // namespace

void write_reference_log_probs(const std::filesystem::path& file, const ReferenceFacts& facts,
                               const ReferenceLogProbs& values) {
  require(std::cmp_equal(values.chosen.size(), facts.pairs) && std::cmp_equal(values.rejected.size(), facts.pairs),
          "{} and {} log-probabilities of {} pairs", values.chosen.size(), values.rejected.size(), facts.pairs);
  std::map<std::string, std::string> metadata{{kFormatKey, kFormat}};
  for (const Fact& fact : facts_of(facts)) {
    metadata[fact.key] = fact.value;
    if (fact.place_key != nullptr) metadata[fact.place_key] = fact.place;
  }
  io::write_safetensors(file, {to_write("chosen", values.chosen), to_write("rejected", values.rejected)}, metadata);
}

ReferenceLogProbs read_reference_log_probs(const std::filesystem::path& file, const ReferenceFacts& facts) {
  const io::SafetensorsFile stored(file);
  if (const std::string format = text_of(stored, kFormatKey); format != kFormat) {
    config_error(
        "--ref-logps-cache {}: the file is none of reference log-probabilities; give a name of its own, or one that "
        "is not there yet",
        escaped(file.string()));
  }
  check_facts(stored, facts);
  return {numbers_of(stored, "chosen", facts.pairs), numbers_of(stored, "rejected", facts.pairs)};
}

}  // namespace loom::objective
