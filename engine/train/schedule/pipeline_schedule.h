// A pipeline's order as data: which rank computes which stage of which micro-batch after which. No model is built.
//
//   make_pipeline_schedule({.dialect = "torch", .schedule = "1f1b", .ranks = 4, .micro_batches = 8}).order[3]
//   // 3F0 3B0 3F1 3B1 ... 3F7 3B7
//
// dialect    schedule, and the options that it reads (another one that is set is refused)
// torch      gpipe, 1f1b, interleaved_1f1b, interleaved_zero_bubble, looped_bfs, zbv_zero_bubble, dualpipev
// megatron   1f1b; interleaved_1f1b: group, overlap_moe, overlap_p2p, overlap_p2p_warmup_flush
// mindspeed  1f1b; dualpipev: dw_detach, fb_overlap; nanopipe; interleaved_1f1b: recompute_in_bubble,
//            recompute_in_advance
//
// Rules    gpipe and 1f1b have one stage a rank. Stages are dealt to the ranks in turn; the V of zbv_zero_bubble and
//          dualpipev, with two stages a rank, goes back: 0 1 2 3 3 2 1 0. interleaved_zero_bubble with one stage a rank
//          is ZB-H1. Slots in which a rank idles are left out.
// Errors   ConfigError for a job that the dialect refuses too, with what is allowed.
// Threads  any.
// Source   torch 2.11 (torch.distributed.pipelining), megatron-core 0.16.1, MindSpeed (nano-pipe of 1.0.RC3); equal to
//          their orders in tests/reference/pipelines/orders.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/train/schedule/pipeline_action.h"

namespace loom::train {

struct PipelineOptions {
  std::int64_t group = 0;    // micro-batches in a row on one stage; 0 is as many as ranks
  bool overlap_moe = false;  // one more warm-up forward; the forwards and backwards of the steady state run together
  bool overlap_p2p = false;  // how messages are waited for; the order stays
  bool overlap_p2p_warmup_flush = false;
  bool recompute_in_bubble = false;
  bool recompute_in_advance = false;
  bool dw_detach = false;   // gradients of the weights of the last backwards in the bubble
  bool fb_overlap = false;  // the forward of one stage runs together with the backward of the other
};

struct PipelineJob {
  std::string dialect = "torch";
  std::string schedule = "1f1b";
  std::int64_t ranks = 1;
  std::int64_t stages_per_rank = 1;
  std::int64_t micro_batches = 1;
  PipelineOptions options{};
};

struct PipelineSchedule {
  std::int64_t micro_batches = 0;
  std::vector<std::int64_t> stage_to_rank{};
  PipelineLists order{};  // compute alone
  // Where the schedule has them, else empty. Forwards of each rank before its first backward:
  std::vector<std::int64_t> warmup{};
  // Of an interleaved schedule, by the number of a forward: its micro-batch, and its stage among the rank's own.
  std::vector<std::int64_t> table_micro_batch{};
  std::vector<std::int64_t> table_chunk{};
  // Of an interleaved schedule, by rank: each action's stage among the rank's own, from 1 on; of a backward negative.
  std::vector<std::vector<std::int64_t>> graph_order{};
};

PipelineSchedule make_pipeline_schedule(const PipelineJob& job);

// Of an order that a user wrote. A stage is on the rank that computes it. Refuses an order that check_order() refuses.
PipelineSchedule pipeline_schedule_from_order(PipelineLists order, std::int64_t micro_batches);

}  // namespace loom::train
