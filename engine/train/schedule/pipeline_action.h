// The words of a pipeline's order: what a rank computes, gathers and sends, one step after another, as data.
//
//   2F0                  forward of stage 2, micro-batch 0          5RECV_B1   the gradient of 5's output arrives
//   (7F3;0B1)OVERLAP_F_B a forward and a backward that run together
//   [0SEND_F1,0RECV_B0]  one batch of messages, posted and waited for
//   <0SEND_F1>           one that is posted, and waited for by whoever needs it
//
// F  forward                     UNSHARD      gather the stage's parameters
// B  whole backward              RESHARD      free them
// I  gradient of the input       REDUCE_GRAD  reduce the stage's gradients
// W  gradient of the weights     SEND_F, RECV_F   outputs to the next stage; a RECV names the stage that receives
// C  forward, keeps its input    SEND_B, RECV_B   gradients to the previous stage
// R  recomputation of a C
//
// Rules    stages are counted along the model, whatever rank holds them; micro-batches from 0. UNSHARD, RESHARD and
//          REDUCE_GRAD have no micro-batch, all others have one. Only messages are in batches.
// Errors   ConfigError for text that is no such token, with what a token is.
// Threads  any.
// Source   the notation of torch.distributed.pipelining (2.11), with C, R and the batches added.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace loom::train {

enum class PipelineKind : std::uint8_t {
  kForward,
  kBackward,
  kBackwardInput,
  kBackwardWeight,
  kForwardKeepingInput,
  kRecompute,
  kUnshard,
  kReshard,
  kReduceGrad,
  kSendForward,
  kReceiveForward,
  kSendBackward,
  kReceiveBackward,
};

inline constexpr std::int64_t kNoMicroBatch = -1;

struct PipelineAction {
  PipelineKind kind = PipelineKind::kForward;
  std::int64_t stage = 0;
  std::int64_t micro_batch = kNoMicroBatch;

  bool operator==(const PipelineAction&) const = default;
};

enum class PipelineJoin : std::uint8_t { kAlone, kOverlapped, kWaited, kPosted };

// One token of a line: an action alone, a forward and a backward together, or a batch of messages.
struct PipelineStep {
  PipelineStep(PipelineKind kind, std::int64_t stage, std::int64_t micro_batch = kNoMicroBatch)
      : actions{{kind, stage, micro_batch}} {}
  PipelineStep(PipelineJoin how, std::vector<PipelineAction> together) : join(how), actions(std::move(together)) {}

  PipelineJoin join = PipelineJoin::kAlone;
  std::vector<PipelineAction> actions;

  bool operator==(const PipelineStep&) const = default;
};

// What one rank does, and what each rank does.
using PipelineList = std::vector<PipelineStep>;
using PipelineLists = std::vector<PipelineList>;

bool is_compute(PipelineKind kind);
bool is_message(PipelineKind kind);
bool has_micro_batch(PipelineKind kind);
// F or C; B or I, which produce the gradient of the input.
bool is_forward(PipelineKind kind);
bool makes_input_gradient(PipelineKind kind);

std::string to_text(const PipelineAction& action);
std::string to_text(const PipelineStep& step);
std::string to_text(const PipelineList& list);

PipelineStep parse_pipeline_step(std::string_view token);
// Tokens between spaces.
PipelineList parse_pipeline_list(std::string_view line);

}  // namespace loom::train
