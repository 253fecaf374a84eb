// Options of Muon (muon.h), by Megatron's names.
#pragma once

#include <cstdint>
#include <optional>

namespace loom::nn {

// s for a matrix [A,B]: sqrt(max(A,B)), sqrt(A/B), sqrt(max(1, A/B)); times the extra factor.
enum class MuonScale : std::uint8_t { kSpectral, kUnitRmsNorm, kShapeScaling };

// The coefficient triples of the iteration: one for all steps, or in sequence; `quintic` restarts after five,
// `polar_express` repeats its last.
enum class MuonCoefficients : std::uint8_t { kSimple, kQuintic, kPolarExpress };

struct MuonOptions {
  double momentum = 0.95;
  bool nesterov = true;
  int steps = 5;  // of the iteration
  MuonCoefficients coefficients = MuonCoefficients::kSimple;
  MuonScale scale = MuonScale::kSpectral;
  double extra_scale = 0.2;
  // Largest learning rate of all other parameters, which AdamW updates; none: the matrices' rate. It follows
  // their schedule: at each step both have the same share of their largest rate.
  std::optional<double> scalar_lr = {};
};

}  // namespace loom::nn
