// A report as one HTML file: styles, scripts, the charting library and the data are all inside; it loads nothing
// from any network (its content policy forbids it).
//
// Data      one JSON object, shown section by section as far as it has the keys (report/report.js): a plan
//           (plan_output.h) or a run (report_run.h), with the arrays of report_step.h and report_configuration.h.
//           The title names model, configuration, device, and what write_report() adds: version and date.
//           Texts may hold anything: the file has them as JSON without '<', '>' and '&', and the page gets them as
//           text only. Bytes that are not UTF-8 become U+FFFD.
// Errors    write_report: ConfigError if the file cannot be made, Error if writing fails; both name the path.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace loom::observe {

std::string report_page(const nlohmann::ordered_json& data);

// Raises the ConfigError before a run instead of after hours: makes the folders of `path`, and no file.
void check_report_path(const std::filesystem::path& path);
// Makes the folders of `path`; an existing file is replaced once the new page is complete.
void write_report(const std::filesystem::path& path, const nlohmann::ordered_json& data);

}  // namespace loom::observe
