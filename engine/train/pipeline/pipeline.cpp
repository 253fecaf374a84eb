#include "engine/train/pipeline/pipeline.h"

#include <algorithm>
#include <fmt/format.h>
#include <iterator>
#include <span>
#include <unordered_set>

#include "engine/comm/exchange.h"
#include "engine/comm/part_of_world.h"
#include "engine/core/error.h"
#include "engine/core/rank_context.h"
#include "engine/device/device.h"
#include "engine/device/exchange_stream.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/ops.h"
#include "engine/train/pipeline/stage_tensors.h"
#include "engine/train/step/marks.h"
#include "sharding/fully_shard.h"
#include "sharding/pipeline/pipeline_ranks.h"

namespace loom::train {
namespace {

// "2.F3": what stage 2 gets for its forward of micro-batch 3; "2.B3" for its backward.
std::string tag_of(std::int64_t stage, std::int64_t micro_batch, bool is_gradient) {
  return fmt::format("{}.{}{}", stage, is_gradient ? 'B' : 'F', micro_batch);
}

HiddenStates like(const Tensor& tensor) { return {tensor.shape(), tensor.dtype()}; }

void mark(const PipelineAction& action) {
  const std::string text = to_text(action);
  device::Device::current().log().add_mark({.kind = kActionMark, .subject = text});
}

// Adds a gradient of this rank and one of the other.
void add_over(comm::ProcessGroup& ends, const Tensor& gradient, const std::string& path) {
  device::Device& device = device::Device::current();
  device::Stream& exchange = device.stream(device::kExchangeStream);
  device::Stream& compute = device.stream(device::StreamId::kCompute);
  exchange.wait(compute.record());
  exchange.submit({.name = "all_reduce",
                   .subject = path,
                   .cost = {.link_bytes = gradient.nbytes(), .unit = device::Unit::kLink},
                   .run =
                       [&] {
                         ends.all_reduce(comm::kHostLane, gradient.raw(), gradient.numel(), gradient.dtype(),
                                         comm::ReduceOp::sum(), "gradients of the ends");
                       },
                   .collective = device::Collective{.kind = device::CollectiveKind::kAllReduce,
                                                    .bytes = gradient.nbytes(),
                                                    .ranks = &ends.ranks(),
                                                    .axis = ends.name()}});
  compute.wait(exchange.record());
  gradient.storage()->bump_version();
}

StageMessage take_out(std::map<std::pair<std::int64_t, std::int64_t>, StageMessage>& handed,
                      const std::pair<std::int64_t, std::int64_t>& at) {
  const auto found = handed.find(at);
  require(found != handed.end(), "stage {} needs what was not made for micro-batch {}", at.first, at.second);
  StageMessage message = std::move(found->second);
  handed.erase(found);
  return message;
}

std::vector<std::shared_ptr<PipelineStage>> own_stages(const PipelinePlan& plan, int rank,
                                                       const std::function<std::shared_ptr<nn::Module>()>& whole) {
  std::vector<std::shared_ptr<PipelineStage>> stages;
  for (const sharding::StageLayout& layout : plan.stages) {
    if (layout.rank != rank) continue;
    std::shared_ptr<nn::Module> model = whole();
    sharding::keep_stage(models::sharded_module(*model), layout);
    stages.push_back(std::make_shared<PipelineStage>(std::move(model), layout));
  }
  return stages;
}

}  // namespace

Pipeline::Pipeline(const PipelinePlan& plan, const std::function<std::shared_ptr<nn::Module>()>& whole,
                   comm::World& world, comm::Axis axis)
    : plan_(plan),
      axis_(std::move(axis)),
      loss_rank_(static_cast<int>(plan.stages.back().rank)),
      ranks_of_stage_(comm::part_of_world(world, axis_.size())),
      model_(std::make_shared<PipelineModel>(own_stages(plan_, axis_.rank(), whole), *ranks_of_stage_)),
      links_(world, axis_.size()) {
  sharding::PipelineRanks ranks{axis_.shared_group()};
  for (const auto& stage : model_->stages()) {
    for (sharding::SharedSlot& shared : sharding::shared_slots(stage->root())) {
      if (!stage->layout().embedding) ranks.copies.insert(shared.slot);
      shared_.push_back(std::move(shared));
    }
  }
  model_->attach(std::make_shared<sharding::PipelineRanks>(std::move(ranks)));
  const int first_rank = static_cast<int>(plan.stages.front().rank);
  if (first_rank == loss_rank_) return;
  const int width = world.size() / axis_.size(), cell = world.rank() % width;
  const std::vector<int> members{first_rank * width + cell, loss_rank_ * width + cell};
  const bool joins = axis_.rank() == first_rank || has_loss();
  ends_ = world.split(joins ? cell : comm::World::kNoColor, has_loss() ? 1 : 0, "pp ends",
                      joins ? std::span<const int>(members) : std::span<const int>());
}

Pipeline::~Pipeline() = default;

int Pipeline::rank_of(std::int64_t stage) const {
  return static_cast<int>(plan_.stages.at(static_cast<std::size_t>(stage)).rank);
}

bool Pipeline::is_here(std::int64_t stage) const { return rank_of(stage) == axis_.rank(); }

nn::Module& Pipeline::root_of(std::int64_t stage) const { return model_->stage(stage).root(); }

void Pipeline::begin() {
  for (const auto& stage : model_->stages()) {
    sharding::set_requires_gradient_sync(stage->root(), false);
    sharding::set_reshard_after_backward(stage->root(), false);
    sharding::set_is_last_backward(stage->root(), false);
  }
}

// The other ranks learn of a failure before this one waits for the end of its messages.
void Pipeline::run_all(const std::function<void()>& work) {
  try {
    work();
    links_.synchronize();
  } catch (const std::exception& error) {
    ranks_of_stage_->fail(error.what());
    throw;
  }
}

void Pipeline::run_step(const Work& work) {
  run_all([&] {
    for (const PipelineStep& step : plan_.lists.at(static_cast<std::size_t>(axis_.rank()))) {
      for (const PipelineAction& action : step.actions) run(action, work);
    }
  });
  add_shared_gradients();
}

// Shards lie alike on both ends, and a frozen parameter has no gradient on either.
void Pipeline::add_shared_gradients() {
  if (ends_ != nullptr) {
    for (const sharding::SharedSlot& shared : shared_) {
      const Tensor gradient = shared.slot->value.grad();
      if (!gradient.defined()) continue;
      add_over(*ends_, gradient, shared.path);
    }
    return;
  }
  const std::size_t half = shared_.size() / 2;  // of the first stage, then of the last
  for (std::size_t i = 0; i < half; ++i) {
    const Tensor first = shared_[i].slot->value.grad(), last = shared_[half + i].slot->value.grad();
    if (!first.defined() || !last.defined()) continue;
    const Tensor sum = ops::add(first, last);
    first.copy_from(sum);
    last.copy_from(sum);
  }
}

void Pipeline::run(const PipelineAction& action, const Work& work) {
  switch (action.kind) {
    case PipelineKind::kForward:
      return forward(action, work);
    case PipelineKind::kBackward:
    case PipelineKind::kBackwardInput:
      return backward(action, work);
    case PipelineKind::kBackwardWeight:
      return backward_of_weights(action, work);
    case PipelineKind::kUnshard:
      if (!plan_.gathers_stages) return;
      sharding::start_unshard(root_of(action.stage));
      is_gathering_[action.stage] = true;
      return;
    case PipelineKind::kReshard:
      if (!plan_.gathers_stages) return;
      for (sharding::FsdpState* state : sharding::FsdpState::collect(root_of(action.stage))) {
        if (state->group() != nullptr) state->group()->reshard();
      }
      return;
    case PipelineKind::kReduceGrad:
      mark(action);
      return sharding::finish_backward(root_of(action.stage));
    case PipelineKind::kSendForward:
    case PipelineKind::kReceiveForward:
    case PipelineKind::kSendBackward:
    case PipelineKind::kReceiveBackward:
      return message(action);
    case PipelineKind::kForwardKeepingInput:
    case PipelineKind::kRecompute:
      break;
  }
  require(false, "{} is not run by a pipeline", to_text(action));
}

void Pipeline::message(const PipelineAction& action) {
  const std::int64_t stage = action.stage, micro_batch = action.micro_batch;
  switch (action.kind) {
    case PipelineKind::kSendForward:
      return links_.send(rank_of(stage + 1), output_of({stage, micro_batch}), tag_of(stage + 1, micro_batch, false));
    case PipelineKind::kReceiveForward:
      return links_.post_receive(rank_of(stage - 1), tag_of(stage, micro_batch, false),
                                 RankContext::current().slot<HiddenStates>());
    case PipelineKind::kSendBackward:
      return links_.send(rank_of(stage - 1), take_out(handed_gradients_, {stage - 1, micro_batch}),
                         tag_of(stage - 1, micro_batch, true));
    default:
      return links_.post_receive(rank_of(stage + 1), tag_of(stage, micro_batch, true),
                                 like(passed_.at({stage, micro_batch}).output));
  }
}

// What the neighbour of stage `at` made for it.
StageMessage Pipeline::received(const Key& at, bool is_gradient) {
  if (!is_here(is_gradient ? at.first + 1 : at.first - 1)) return links_.take(tag_of(at.first, at.second, is_gradient));
  return take_out(is_gradient ? handed_gradients_ : handed_outputs_, at);
}

StageMessage Pipeline::output_of(const Key& at) const {
  const Passed& passed = passed_.at(at);
  return {passed.output.detach(), passed.draws};
}

void Pipeline::forward(const PipelineAction& action, const Work& work) {
  const Key at{action.stage, action.micro_batch};
  PipelineStage& stage = model_->stage(action.stage);
  if (std::exchange(is_gathering_[action.stage], false)) sharding::wait_for_unshard(stage.root());
  mark(action);
  Passed& passed = passed_[at];
  if (action.stage > 0) {
    StageMessage message = received(at, false);
    passed.input = std::move(message.tensor);
    passed.input.set_requires_grad(autograd::grad_enabled());
    stage.set_input_tensor(passed.input, message.draws);
  }
  passed.output = work.forward(stage, action.micro_batch);
  passed.draws = stage.draws();
  if (is_last(action.stage)) return;
  RankContext::current().slot<HiddenStates>() = like(passed.output);
  if (!is_here(action.stage + 1)) return;
  handed_outputs_[{action.stage + 1, action.micro_batch}] = output_of(at);
}

void Pipeline::backward(const PipelineAction& action, const Work& work) {
  const Key at{action.stage, action.micro_batch};
  mark(action);
  work.begin_phase("backward");
  const autograd::Root root{passed_.at(at).output, is_last(at.first) ? Tensor{} : received(at, true).tensor};
  const Tensor input = passed_.at(at).input;
  if (action.kind == PipelineKind::kBackward) {
    autograd::backward({&root, 1});
  } else {
    rest_[at] = autograd::backward_of_inputs({&root, 1}, {&input, input.defined() ? 1U : 0U});
  }
  passed_.erase(at);
  if (!input.defined()) return;
  handed_gradients_[{action.stage - 1, action.micro_batch}] = {input.grad()};
  input.set_grad({});
}

void Pipeline::backward_of_weights(const PipelineAction& action, const Work& work) {
  mark(action);
  work.begin_phase("backward");
  rest_.at({action.stage, action.micro_batch}).run();
  rest_.erase({action.stage, action.micro_batch});
}

void Pipeline::evaluate(std::int64_t micro_batches, const Work& work) {
  run_all([&] {
    for (std::int64_t micro_batch = 0; micro_batch < micro_batches; ++micro_batch) {
      for (const auto& stage : model_->stages()) evaluate_stage(stage->layout().stage, micro_batch, work);
    }
  });
}

void Pipeline::evaluate_stage(std::int64_t stage, std::int64_t micro_batch, const Work& work) {
  if (stage > 0 && !is_here(stage - 1)) message({PipelineKind::kReceiveForward, stage, micro_batch});
  forward({PipelineKind::kForward, stage, micro_batch}, work);
  if (!is_last(stage) && !is_here(stage + 1)) message({PipelineKind::kSendForward, stage, micro_batch});
  passed_.erase({stage, micro_batch});
}

void Pipeline::add_ties(nn::StateDict& entries) const {
  for (nn::StateEntry& entry : entries) {
    const auto shared = std::ranges::find(shared_, entry.path, &sharding::SharedSlot::path);
    if (shared != shared_.end()) entry.tied_paths = {shared->tied_path};
  }
}

std::vector<std::vector<std::string>> Pipeline::lines_of_stages(const std::vector<std::string>& own,
                                                                std::string_view tag) const {
  std::string text;
  for (const std::string& line : own) text += line + '\n';
  return comm::exchange_lines(axis_.group(), text, tag);
}

std::vector<std::pair<std::string, Tensor>> Pipeline::collected(std::vector<std::pair<std::string, Tensor>> own) const {
  comm::ProcessGroup& stages = axis_.group();
  std::vector<std::pair<std::string, Tensor>> all;
  for (int rank = 0; rank < stages.size(); ++rank) {
    if (rank == loss_rank_) {
      if (has_loss()) std::ranges::move(own, std::back_inserter(all));
    } else if (rank == stages.rank()) {
      send_tensors(stages, loss_rank_, own);
    } else if (has_loss()) {
      std::ranges::move(received_tensors(stages, rank), std::back_inserter(all));
    }
  }
  // Both ends have what is tied.
  std::unordered_set<std::string> names;
  std::erase_if(all, [&](const auto& named) { return !names.insert(named.first).second; });
  return all;
}

void Pipeline::share(double& loss, Reports& reports) const {
  std::string names;
  std::vector<double> figures{loss};
  if (has_loss()) {
    for (const auto& [name, figure] : reports) {
      names += name + '\n';
      figures.push_back(figure);
    }
  }
  std::int64_t sizes[2] = {static_cast<std::int64_t>(names.size()), static_cast<std::int64_t>(figures.size())};
  comm::ProcessGroup& stages = axis_.group();
  stages.broadcast(comm::kHostLane, sizes, sizeof sizes, loss_rank_, "loss of the last stage");
  names.resize(static_cast<std::size_t>(sizes[0]));
  figures.resize(static_cast<std::size_t>(sizes[1]));
  stages.broadcast(comm::kHostLane, names.data(), names.size(), loss_rank_, "loss of the last stage");
  stages.broadcast(comm::kHostLane, figures.data(), figures.size() * sizeof(double), loss_rank_,
                   "loss of the last stage");
  loss = figures.front();
  reports.clear();
  for (std::size_t i = 1, begin = 0; i < figures.size(); ++i) {
    const std::size_t end = names.find('\n', begin);
    reports.emplace_back(names.substr(begin, end - begin), figures[i]);
    begin = end + 1;
  }
}

}  // namespace loom::train
