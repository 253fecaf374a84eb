// A report as one HTML file: styles, scripts, the charting library and the data are all inside; it asks for nothing
// from any network (its content policy forbids it).
//
// Data      one JSON object, shown section by section where it has the keys (report/report.js): a plan (plan_output.h)
//           or a run (report_run.h), with the arrays of report_step.h and the configuration of report_configuration.h.
//           Texts may hold anything: they stand in the file as JSON without '<', '>' and '&', and reach the page as
//           text only. Bytes that are no UTF-8 become U+FFFD.
// Errors    write_report: ConfigError when the file cannot be made, Error when writing fails; both name the path.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace loom::observe {

std::string report_page(const nlohmann::ordered_json& data);

// ConfigError now rather than after hours of a run: makes the folders of `path`, and no file.
void check_report_path(const std::filesystem::path& path);
// Makes the folders of `path`; what was there is replaced once the new page is whole.
void write_report(const std::filesystem::path& path, const nlohmann::ordered_json& data);

}  // namespace loom::observe
