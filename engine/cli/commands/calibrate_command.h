// `shardloom calibrate --kernel-times FILE --device BASE --write-profile FILE`: fits a profile to measured kernels.
//
// Prints   each kernel as it was measured and as the fitted profile predicts it, with and without its own point; the
//          figures before and after (engine/calibrate/fit_profile.h).
// Errors   ConfigError for unreadable inputs, and for outputs that cannot be written, before the fit.
// Threads  one thread.
#pragma once

#include <ostream>

#include "engine/cli/words/arguments.h"

namespace loom::cli {

void run_calibrate(const CalibrateArguments& arguments, std::ostream& out);

}  // namespace loom::cli
