// Rotary frequencies, plain and scaled: how a model handles positions beyond its original training length.
//
// Letters  d head_dim, b theta, M max_position_embeddings, P original_max_position_embeddings, s factor,
//          f_i = b^(-2 i / d) for i = 0, 1, ..., d / 2 - 1.
// Types    default   f
//          linear    f / s
//          dynamic   f with the base b (s n / M - (s - 1))^(d / (d - 2)); n is M, or the longest length seen above it
//          llama3    long wavelengths (above P / low_freq_factor) f / s, short ones (below P / high_freq_factor) f,
//                    between them a blend
//          yarn      a blend of f and f / s that follows the number of rotations within P positions
//          longrope  f divided by long_factor for lengths above P, otherwise by short_factor
// Factor   cosines and sines are multiplied by attention_factor(): not 1 for yarn and longrope.
// Bits     exponents, frequencies and blends are fp32, as in transformers.
// Source   transformers, modeling_rope_utils.py.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace loom::models {

enum class RopeType : std::uint8_t { kDefault, kLinear, kDynamic, kLlama3, kYarn, kLongRope };
// The spelling of rope_type in config.json: "llama3".
std::string_view name(RopeType type);

// The keys of config.json's block for its type. Factors that follow from other keys are filled in.
struct RotaryScaling {
  RopeType type = RopeType::kDefault;
  double factor = 1;                                  // s, at least 1 where a type scales by it
  std::int64_t original_max_position_embeddings = 0;  // P, of llama3, yarn and longrope
  double low_freq_factor = 0;                         // llama3
  double high_freq_factor = 0;
  double beta_fast = 32;  // yarn
  double beta_slow = 1;
  double mscale = 0;  // 0: absent
  double mscale_all_dim = 0;
  bool truncate = true;
  std::optional<double> attention_factor{};  // yarn and longrope; absent: it follows from the other keys
  std::vector<double> short_factor{};        // longrope: head_dim / 2 each
  std::vector<double> long_factor{};
  // Default type, with a position for each of time, height and width (rotary_embedding.h): how many of the head_dim / 2
  // frequencies follow each of them. Empty: tokens have one position.
  std::vector<std::int64_t> mrope_section{};
  bool mrope_interleaved = false;  // the axes take turns instead of having frequencies that are neighbours

  bool operator==(const RotaryScaling&) const = default;
};

struct Rotary {
  std::int64_t head_dim = 0;
  std::int64_t max_position_embeddings = 0;
  double theta = 10000;
  RotaryScaling scaling{};
};

// Whether the frequencies of a call depend on its longest position (dynamic and longrope).
bool depends_on_length(const RotaryScaling& scaling);

// The n that the frequencies of a call follow, whose longest position is length - 1; `before` is the n of the previous
// call, 0 for the first. Calls with the same n have the same frequencies. dynamic: n grows and stays, until a length
// below M takes it back to M.
std::int64_t frequency_length(const Rotary& rotary, std::int64_t before, std::int64_t length);

// The axis of each frequency: 0 time, 1 height, 2 width. Precondition: there is an mrope_section.
std::vector<int> mrope_axes(const RotaryScaling& scaling);

// head_dim / 2 frequencies for n.
std::vector<float> rotary_frequencies(const Rotary& rotary, std::int64_t n);
double attention_factor(const Rotary& rotary);

// The longest sequence that the model supports: M, and beyond it s M (linear, dynamic) or s P (yarn).
std::int64_t longest_sequence(const Rotary& rotary);

}  // namespace loom::models
