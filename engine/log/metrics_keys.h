// The keys of a line of metrics.jsonl, for the writer (metrics.h) and the readers (engine/observe); docs/outputs.md
// has their meanings.
#pragma once

namespace loom::log::keys {

inline constexpr const char* kStep = "step";
inline constexpr const char* kLoss = "loss";
inline constexpr const char* kGradNorm = "grad_norm";
inline constexpr const char* kNumZerosInGrad = "num_zeros_in_grad";
inline constexpr const char* kNormsByLayer = "norms_by_layer";
inline constexpr const char* kNormOfGrad = "grad";
inline constexpr const char* kNormOfParams = "params";
inline constexpr const char* kLr = "lr";
inline constexpr const char* kLossScale = "loss_scale";
inline constexpr const char* kSkipped = "skipped";
inline constexpr const char* kTokensPerSecond = "tokens_per_second";
inline constexpr const char* kPeakMemoryBytes = "peak_memory_bytes";
inline constexpr const char* kPeakHostMemoryBytes = "peak_host_memory_bytes";
inline constexpr const char* kExpertTokens = "expert_tokens";
inline constexpr const char* kReports = "reports";
inline constexpr const char* kHeldOutLoss = "held_out_loss";
inline constexpr const char* kHeldOutReports = "held_out_reports";

}  // namespace loom::log::keys
