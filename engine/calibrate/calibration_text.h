// A fitted profile for users: its file, the table of errors, JSON.
//
// Text     at most kTextColumns a line: each row predicted and measured, with and without its own point; the figures.
// JSON     the same figures; times in ns, errors as shares of 1.
// Threads  safe from any number of threads.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "engine/calibrate/fit_profile.h"

namespace loom::calibrate {

// The text of the profile's file. `times` names the measured kernels, `base` the profile that they were fitted from.
std::string profile_file_text(const FittedProfile& fitted, const std::string& times, const std::string& base);

std::string to_text(const FittedProfile& fitted);
nlohmann::ordered_json to_json(const FittedProfile& fitted);

}  // namespace loom::calibrate
