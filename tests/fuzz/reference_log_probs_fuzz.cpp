// Files of reference log-probabilities: one that is taken has a finite number for every pair.
#include <cmath>

#include "engine/objective/reference_log_probs.h"
#include "tests/fuzz/fuzz.h"

LOOM_FUZZ_TARGET(reference_log_probs) {
  using namespace loom;
  const objective::ReferenceFacts facts{.weights = "00ff",
                                        .weights_at = "base",
                                        .data = "0123",
                                        .data_at = "pairs",
                                        .pairs = 2,
                                        .seq_length = 8,
                                        .cut = "none",
                                        .dtype = "fp32"};
  return fuzz::answered_or_refused([&] {
    const auto values =
        objective::read_reference_log_probs(fuzz::written("logps.safetensors", fuzz::text_of(data, size)), facts);
    for (const auto& answers : {values.chosen, values.rejected}) {
      if (answers.size() != 2) fuzz::found("a number for each pair is missing", std::to_string(answers.size()));
      for (const double value : answers) {
        if (!std::isfinite(value)) fuzz::found("a number that is not finite", std::to_string(value));
      }
    }
  });
}
