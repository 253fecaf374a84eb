// Row: one key of a dialect, and what it means here. A dialect is a table of rows, and a function for what several keys
// say together.
//
//   flag("training.lr", "5e-5", "--lr")                 a key of the job, with the default of the dialect's tool
//   flat("parallel.reshard_after_forward", "true", "reshard_after_forward")   a key of fsdp2_config.yaml
//   derived("training.gradient_accumulation_steps", "null", "...")            read with others
//   unused("model.trust_remote_code")                   changes nothing here; named once
//   listed("model.sampling.*")                          of a class or a data set that is not built; printed
//   refused("parallel.tensor_parallel_size", "1", "tensor parallelism is not built; write 1")  another value is refused
//
// Keys      dotted; a last part "*" stands for every key of its section that has no row.
// Fallback  the tool's default as YAML text: "null" (nothing follows from an absent key), "[a, b]", "5e-5".
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "engine/dialects/dialect.h"

namespace loom::dialects {

struct Resolved;
class Reading;

enum class Act : std::uint8_t { kFlag, kFlat, kDerived, kUnused, kListed, kRefused };

struct Row {
  std::string_view key;
  std::string_view fallback;
  Act act = Act::kUnused;
  // kFlag: "--lr"; kFlat: "param_dtype"; kDerived: what it sets, for the documentation and for writing.
  std::string_view target = {};
  // kFlag and kFlat: words there and here, "adamw=adam|muon"; a word without a counterpart ("none=") sets nothing.
  // kRefused: values beside the fallback that are taken, "1|null".
  std::string_view words = {};
  std::string_view text = {};  // kRefused: why, and what to write; else a note for the documentation
  bool inverted = false;       // of a toggle: true there means that the flag is not given
  bool required = false;       // by its tool
  // kDerived: the value as YAML that says what the job has; none: it cannot be said, or is the default.
  std::optional<std::string> (*write)(const Resolved& job) = nullptr;

  constexpr Row no() const { return changed(&Row::inverted, true); }
  constexpr Row needed() const { return changed(&Row::required, true); }
  constexpr Row as(std::string_view pairs) const { return changed(&Row::words, pairs); }
  constexpr Row also(std::string_view values) const { return changed(&Row::words, values); }
  constexpr Row note(std::string_view note) const { return changed(&Row::text, note); }
  constexpr Row written(std::optional<std::string> (*how)(const Resolved&)) const { return changed(&Row::write, how); }

 private:
  template <class T>
  constexpr Row changed(T Row::*member, T value) const {
    Row row = *this;
    row.*member = value;
    return row;
  }
};

constexpr Row flag(std::string_view key, std::string_view fallback, std::string_view target) {
  return {.key = key, .fallback = fallback, .act = Act::kFlag, .target = target};
}
constexpr Row flat(std::string_view key, std::string_view fallback, std::string_view target) {
  return {.key = key, .fallback = fallback, .act = Act::kFlat, .target = target};
}
constexpr Row derived(std::string_view key, std::string_view fallback, std::string_view target) {
  return {.key = key, .fallback = fallback, .act = Act::kDerived, .target = target};
}
constexpr Row unused(std::string_view key, std::string_view fallback = "null") {
  return {.key = key, .fallback = fallback, .act = Act::kUnused};
}
constexpr Row listed(std::string_view key, std::string_view fallback = "null") {
  return {.key = key, .fallback = fallback, .act = Act::kListed};
}
constexpr Row refused(std::string_view key, std::string_view fallback, std::string_view text) {
  return {.key = key, .fallback = fallback, .act = Act::kRefused, .text = text};
}

struct Table {
  Dialect dialect;
  std::span<const Row> rows;
  // Sections whose keys are known in part; empty: all.
  void (*derive)(Reading& reading) = nullptr;
};

// The table of a dialect; kFlat and kGptArgs have the job's keys for rows, and no table.
const Table* table_of(Dialect dialect);

const Table& native_table();
const Table& llm_table();
const Table& accelerate_table();
const Table& transformers_table();
const Table& deepspeed_table();
const Table& torchtitan_table();

// The pairs of Row::words.
std::optional<std::string_view> word_here(const Row& row, std::string_view word);
std::optional<std::string_view> word_there(const Row& row, std::string_view word);
// "adamw, adamw_swap or muon".
std::string words_there(const Row& row);

}  // namespace loom::dialects
