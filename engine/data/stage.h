// Stage: what a job trains beside the next token, by --stage; it decides which samples the data has and which loss.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

namespace loom::data {

enum class Stage : std::uint8_t {
  kSft,    // supervised fine-tuning
  kDpo,    // direct preference optimization
  kSimpo,  // simple preference optimization, without a reference model
  kOrm,    // a reward model of outcomes
  kPrm,    // a reward model of processes
};

// Words of --stage, in the order of the help.
inline constexpr std::array<std::pair<std::string_view, Stage>, 5> kStages{
    {{"sft", Stage::kSft}, {"dpo", Stage::kDpo}, {"simpo", Stage::kSimpo}, {"orm", Stage::kOrm}, {"prm", Stage::kPrm}}};

constexpr std::string_view word_of(Stage stage) { return kStages[static_cast<std::size_t>(stage)].first; }

// Samples are pairs of answers, of which one is preferred.
constexpr bool has_pairs(Stage stage) { return stage == Stage::kDpo || stage == Stage::kSimpo || stage == Stage::kOrm; }

}  // namespace loom::data
