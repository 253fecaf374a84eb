// The CSV of a pipeline's order: one row a rank, one token a cell; an empty cell is a slot in which the rank idles.
//
//   0F0,0F1,,0B0,0B1
//   1F0,1B0,1F1,1B1
//
// Read     rows end with \n or \r\n; spaces around a token and quotes around a cell are left out. Empty cells are left
//          out, as are empty rows at the end.
// Written  tokens alone, without idle slots; a batch of several messages in quotes. A file whole or not at all.
// Errors   ConfigError with row and cell for text that is no token; for a file that cannot be read or written, with
//          its name.
// Threads  any.
// Source   torch 2.11, PipelineScheduleMulti._load_csv and _dump_csv; torchtitan's --pipeline_parallel_schedule_csv.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "engine/train/schedule/pipeline_action.h"

namespace loom::train {

PipelineLists parse_pipeline_csv(std::string_view text);
std::string to_pipeline_csv(const PipelineLists& lists);

PipelineLists read_pipeline_csv(const std::filesystem::path& file);
void write_pipeline_csv(const std::filesystem::path& file, const PipelineLists& lists);

}  // namespace loom::train
