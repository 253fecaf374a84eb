// Published training runs, and what the planner makes of them.
//
// File     published_rows.json: `models` (config.json's of Hugging Face), `sources` (where from, conventions, what had
//          to be assumed), `rows`, `left_out` (rows of the same tables that are not planned, with the reason).
// A row    model, device (a profile of configs/devices), devices, shard (ranks of a shard group), tensor (ranks that
//          share matrices, with sequence parallelism; 1 if not given), slices (of their products; 1 if not given), seq,
//          micro_batch, micro_batches, recompute (none, full, every_2nd, selected_ops), compiled, params_dtype (fp32 if
//          not given); published:
//          tokens_per_s_per_device, hfu_tflops or mfu, reserved_gib, allocated_gib, out_of_memory;
//          inter_node_bytes_per_s where the source states a network other than the profile's; free_links: links cost
//          nothing; calibration: the row served to set figures of its profile.
// Planned  blocks and the root wrapped, gathers in bf16, PyTorch's grain with flash attention; a source says whether
//          RMSNorm and cross-entropy are one kernel, and in what dtype gradients are reduced; compiled: RMSNorm, SwiGLU
//          and RoPE are one kernel each.
// Errors   ConfigError for a file that does not fit this.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/dtype.h"

namespace loom::bench {

enum class RowRecompute : std::uint8_t { kNone, kFull, kEverySecond, kSelectedOps };

struct PublishedRow {
  std::string id;
  std::string source;
  std::string model;
  std::string device;
  int devices = 1;
  int shard = 1;
  int tensor = 1;
  int slices = 1;
  int pipeline = 1;         // ranks of it
  int stages_per_rank = 1;  // of Interleaved1F1B; 1: 1F1B
  int seq = 0;
  int micro_batch = 1;
  int micro_batches = 1;
  RowRecompute recompute = RowRecompute::kNone;
  bool compiled = false;
  DType params_dtype = DType::kF32;
  std::optional<std::string> fp8 = {};  // a recipe
  bool fp8_gather = false;
  std::optional<double> inter_node_bytes_per_s;
  bool free_links = false;
  bool calibration = false;
  std::string note;

  // As published.
  std::optional<double> tokens_per_s_per_device;
  std::optional<double> hfu_tflops;
  std::optional<double> mfu;
  std::optional<double> reserved_gib;
  std::optional<double> allocated_gib;
  std::optional<bool> out_of_memory;  // stated by the source; else it ran

  std::string text() const;
};

struct PublishedRows {
  nlohmann::ordered_json models;
  nlohmann::ordered_json sources;
  std::vector<PublishedRow> rows;
  nlohmann::ordered_json left_out;
  std::vector<std::string> causes;  // of the worst errors, in words

  static PublishedRows read(const std::filesystem::path& path);
};

struct PlannedRow {
  double tokens_per_s_per_device = 0;
  double hfu_tflops = 0;  // tokens/s times 8 N + 16 L h s
  double mfu = 0;         // tokens/s times 6 N + 12 L h s over the peak
  double allocated_gib = 0;
  double reserved_gib = 0;
  bool out_of_memory = false;  // on the profile's memory; the figures are then those of one without end
  bool host_bound = false;
  double communication_share = 0;  // of the step that no compute hides
};

// Plans a row of `all`. Files that the planner reads are written to `folder`.
PlannedRow plan_row(const PublishedRows& all, const PublishedRow& row, const std::filesystem::path& folder);

}  // namespace loom::bench
