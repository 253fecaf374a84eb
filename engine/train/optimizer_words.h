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
inline const StyleWords<nn::MuonScale>& style_words<nn::MuonScale>() {
  static const StyleWords<nn::MuonScale> words{{"spectral", nn::MuonScale::kSpectral},
                                               {"unit_rms_norm", nn::MuonScale::kUnitRmsNorm},
                                               {"shape_scaling", nn::MuonScale::kShapeScaling}};
  return words;
}

template <>
inline const StyleWords<nn::MuonCoefficients>& style_words<nn::MuonCoefficients>() {
  static const StyleWords<nn::MuonCoefficients> words{{"simple", nn::MuonCoefficients::kSimple},
                                                      {"quintic", nn::MuonCoefficients::kQuintic},
                                                      {"polar_express", nn::MuonCoefficients::kPolarExpress}};
  return words;
}

}  // namespace loom::train
