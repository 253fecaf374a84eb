// The words of --optimizer, --muon-scale-mode and --muon-coefficient-type; style_words() has the words of schedules.
#pragma once

#include "engine/train/lr_schedule.h"
#include "engine/train/optimizer_options.h"

namespace loom::train {

template <>
inline const StyleWords<OptimizerKind>& style_words<OptimizerKind>() {
  static const StyleWords<OptimizerKind> words{{"adam", OptimizerKind::kAdam},
                                               {"adamw", OptimizerKind::kAdam},
                                               {"sgd", OptimizerKind::kSgd},
                                               {"muon", OptimizerKind::kMuon},
                                               {"adamw_swap", OptimizerKind::kAdamSwap}};
  return words;
}

template <>
inline const StyleWords<sharding::MuonScale>& style_words<sharding::MuonScale>() {
  static const StyleWords<sharding::MuonScale> words{{"spectral", sharding::MuonScale::kSpectral},
                                                     {"unit_rms_norm", sharding::MuonScale::kUnitRmsNorm},
                                                     {"shape_scaling", sharding::MuonScale::kShapeScaling}};
  return words;
}

template <>
inline const StyleWords<sharding::MuonCoefficients>& style_words<sharding::MuonCoefficients>() {
  static const StyleWords<sharding::MuonCoefficients> words{
      {"simple", sharding::MuonCoefficients::kSimple},
      {"quintic", sharding::MuonCoefficients::kQuintic},
      {"polar_express", sharding::MuonCoefficients::kPolarExpress}};
  return words;
}

}  // namespace loom::train
