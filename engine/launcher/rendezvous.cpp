#include "engine/launcher/rendezvous.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tuple>

#include "engine/core/shown_text.h"
#include "engine/launch/stop_signals.h"
#include "engine/launcher/failure_report.h"

namespace loom::launcher {
namespace {

// Longer than an agent needs to kill its workers and say so.
constexpr Milliseconds kConfirm{30'000};
constexpr std::size_t kMostFailures = 4096;

std::string nodes_text(int least, int most) {
  return least == most ? fmt::format("{}", least) : fmt::format("{}:{}", least, most);
}

std::string name_of(const Join& join) {
  if (join.node_rank < 0) return fmt::format("node {}", escaped(join.host));
  return fmt::format("node_rank {} ({})", join.node_rank, escaped(join.host));
}

std::string seconds_text(Milliseconds time) { return fmt::format("{:g}", static_cast<double>(time.count()) / 1000); }

}  // namespace

Rendezvous::Rendezvous(const Options& options, Time now) : options_(options) { gather(now); }

void Rendezvous::joined(Id agent, const Join& join, Time now) {
  if (const std::string reason = refusal(join); !reason.empty()) {
    messages_.emplace_back(agent, Refused{reason});
    notes_.push_back({fmt::format("{} is refused: {}", name_of(join), reason)});
    return;
  }
  members_[agent] = {.join = join, .order = joined_ever_++};
  last_joined_ = now;
  notes_.push_back({fmt::format("{} joined: {} of {} nodes", name_of(join), members_.size(),
                                nodes_text(options_.nodes.least, options_.nodes.most)),
                    options_.nodes.most == 1});
  if (phase_ == Phase::kRunning) stop(agent, 0, fmt::format("{} joined", name_of(join)), now);
  tick(now);
}

std::string Rendezvous::refusal(const Join& join) const {
  const NodeRange nodes{join.least, join.most};
  if (join.tool != launcher::name_of(options_.tool)) {
    return fmt::format("it was started by {}, this job by {}; start all nodes alike", escaped(join.tool),
                       launcher::name_of(options_.tool));
  }
  if (join.version != options_.version) {
    return fmt::format("it is Shardloom {}, this job is of Shardloom {}; install one version on all nodes",
                       escaped(join.version), options_.version);
  }
  if (join.run_id != options_.run_id) {
    return fmt::format(
        "its job is '{}', the job here is '{}'; give all nodes the same --rdzv-id, or each job an "
        "address of its own",
        escaped(join.run_id), escaped(options_.run_id));
  }
  if (!(nodes == options_.nodes)) {
    return fmt::format("it expects {} nodes, this job has {}; give all nodes the same number",
                       nodes_text(join.least, join.most), nodes_text(options_.nodes.least, options_.nodes.most));
  }
  if (options_.tool == Tool::kMsrun && join.workers != options_.workers) {
    return fmt::format("it has {} workers, each node of this job {}; give all nodes the same --local_worker_num",
                       join.workers, options_.workers);
  }
  return refusal_of_node(join);
}

std::string Rendezvous::refusal_of_node(const Join& join) const {
  if (phase_ == Phase::kEnded || ends_) return "the job has ended";
  if (join.workers < 1 || join.node_rank < -1) return "it has no workers or no valid node_rank";
  if (join.node_rank >= options_.nodes.most) {
    return fmt::format("its node_rank is {}, this job has {} nodes; use a node_rank from 0 to {}", join.node_rank,
                       options_.nodes.most, options_.nodes.most - 1);
  }
  for (const auto& [id, member] : members_) {
    if (join.node_rank >= 0 && member.join.node_rank == join.node_rank) {
      return fmt::format(
          "node_rank {} has joined already, from {}: it was started twice; give each node a node_rank "
          "of its own",
          join.node_rank, escaped(member.join.host));
    }
    if ((member.join.node_rank < 0) != (join.node_rank < 0)) {
      return "node_rank is given on some nodes and not on others; give it on all or on none";
    }
  }
  if (std::cmp_less(members_.size(), options_.nodes.most)) return {};
  return fmt::format("all {} nodes have joined already", options_.nodes.most);
}

void Rendezvous::received(Id agent, const Message& message, Time now) {
  const auto member = members_.find(agent);
  if (member == members_.end()) return;
  if (const auto* failure = std::get_if<Failure>(&message)) failed(*failure, now);
  if (const auto* leaving = std::get_if<Leaving>(&message)) left(agent, *leaving, now);
  if (std::holds_alternative<Heartbeat>(message)) messages_.emplace_back(agent, Heartbeat{});
  if (const auto* success = std::get_if<Succeeded>(&message); success != nullptr && success->attempt == attempts_ - 1) {
    member->second.done = true;
  }
  if (std::holds_alternative<Stopped>(message)) member->second.running = false;
  settle(now);
}

void Rendezvous::failed(const Failure& failure, Time now) {
  const bool of_this_attempt = failure.attempt == attempts_ - 1;
  if (!of_this_attempt || (phase_ != Phase::kRunning && phase_ != Phase::kStopping)) return;
  if (failures_.size() < kMostFailures) failures_.push_back(failure);
  notes_.push_back({headline_of(failure)});
  if (phase_ == Phase::kRunning) restart_or_end("", headline_of(failure), now);
}

void Rendezvous::lost(Id agent, const std::string& why, Time now) {
  const auto member = members_.find(agent);
  if (member == members_.end()) return;
  const bool matters = phase_ == Phase::kRunning && !member->second.done;
  const std::string text = fmt::format("{} is lost: {}", name_of(member->second.join), escaped(why));
  members_.erase(member);
  if (phase_ == Phase::kEnded) return;
  notes_.push_back({text});
  losses_.push_back(text);
  if (matters) restart_or_end(text + "; look at that host", text, now);
  settle(now);
}

void Rendezvous::left(Id agent, const Leaving& leaving, Time now) {
  const Join& join = members_.at(agent).join;
  const std::string text =
      leaving.signal == 0 ? fmt::format("{} cannot go on: {}", name_of(join), escaped(leaving.reason))
                          : fmt::format("{} was stopped by {}", name_of(join), launch::signal_name(leaving.signal));
  notes_.push_back({text});
  if (phase_ == Phase::kEnded) return;
  const bool stopping = phase_ == Phase::kStopping;
  if (ends_) return;
  ends_ = true;
  end_ = {.status = leaving.signal == 0 ? 1 : 128 + leaving.signal, .signal = leaving.signal, .report = text};
  if (!stopping) stop(agent, leaving.signal, text, now);
}

// With restarts left the nodes gather again after the stop; else the job ends, with `report`, or with that of the
// workers that failed.
void Rendezvous::restart_or_end(const std::string& report, const std::string& reason, Time now) {
  takes_restart_ = true;
  ends_ = restarts_ >= options_.max_restarts;
  if (ends_) end_ = {.status = 1, .signal = 0, .report = report};
  stop(-1, 0, reason, now);
}

void Rendezvous::stop(Id except, int signal, const std::string& reason, Time now) {
  phase_ = Phase::kStopping;
  stop_deadline_ = now + options_.times.stop + kConfirm;
  for (const auto& [id, member] : members_) {
    if (member.running && id != except) messages_.emplace_back(id, Stop{signal, reason});
  }
}

// Goes on where all agents have done what the phase waits for.
void Rendezvous::settle(Time now) {
  if (phase_ == Phase::kRunning) {
    const auto is_done = [](const auto& entry) { return entry.second.done; };
    if (members_.empty() || !std::ranges::all_of(members_, is_done)) return;
    notes_.push_back({"all workers have ended with 0", true});
    return end({});
  }
  if (phase_ != Phase::kStopping) return;
  if (std::ranges::any_of(members_, [](const auto& entry) { return entry.second.running; })) return;
  if (ends_) {
    if (end_.report.empty()) end_.report = failure_report(failures_, restarts_, options_.max_restarts);
    return end(end_);
  }
  if (takes_restart_) ++restarts_;
  notes_.push_back({takes_restart_ ? fmt::format("restart {} of {}", restarts_, options_.max_restarts)
                                   : std::string("restart with another number of nodes")});
  gather(now);
  tick(now);
}

void Rendezvous::gather(Time now) {
  phase_ = Phase::kGathering;
  takes_restart_ = false;
  failures_.clear();
  gathered_since_ = last_joined_ = now;
}

void Rendezvous::tick(Time now) {
  if (phase_ == Phase::kStopping && now >= stop_deadline_) {
    std::vector<Id> silent;
    for (const auto& [id, member] : members_) {
      if (member.running) silent.push_back(id);
    }
    for (const Id id : silent) lost(id, "it did not confirm that its workers have stopped", now);
  }
  if (phase_ != Phase::kGathering) return;
  const int joined = static_cast<int>(members_.size());
  const bool called = joined >= options_.nodes.least && now >= last_joined_ + options_.times.last_call;
  if (joined == options_.nodes.most || called) return start();
  if (joined >= options_.nodes.least || now < gathered_since_ + options_.times.join) return;
  end({.status = 1, .signal = 0, .report = missing()});
}

// "2 of 3 nodes joined within 600 s; node_rank 2 is missing".
std::string Rendezvous::missing() const {
  std::string text =
      fmt::format("{} of {} nodes joined within {} s", members_.size(),
                  nodes_text(options_.nodes.least, options_.nodes.most), seconds_text(options_.times.join));
  std::vector<int> absent;
  const bool ranked = !members_.empty() && members_.begin()->second.join.node_rank >= 0;
  for (int rank = 0; ranked && rank < options_.nodes.most && absent.size() < 16; ++rank) {
    const auto has = [rank](const auto& entry) { return entry.second.join.node_rank == rank; };
    if (!std::ranges::any_of(members_, has)) absent.push_back(rank);
  }
  if (!absent.empty()) {
    text += fmt::format("; node_rank {} {} missing", fmt::join(absent, ", "), absent.size() == 1 ? "is" : "are");
  } else {
    std::vector<std::string> present;
    for (const auto& [id, member] : members_) present.push_back(escaped(member.join.host));
    if (!present.empty()) text += fmt::format("; joined: {}", fmt::join(present, ", "));
  }
  text += fmt::format("; start the rest, or check that they reach {}", comm::tcp::to_text(options_.meeting));
  return losses_.empty() ? text : text + "; " + losses_.back();
}

std::vector<Rendezvous::Id> Rendezvous::in_order() const {
  std::vector<Id> ids;
  for (const auto& [id, member] : members_) ids.push_back(id);
  std::ranges::sort(ids, {}, [this](Id id) {
    const Member& member = members_.at(id);
    return std::tuple(member.join.node_rank, !member.join.has_coordinator, member.order);
  });
  return ids;
}

void Rendezvous::start() {
  Assigned assigned{.attempt = attempts_++, .restarts = restarts_, .nodes = static_cast<int>(members_.size())};
  std::map<std::string, int> size_of_role, rank_in_role;
  assigned.world_size = 0;
  for (const auto& [id, member] : members_) {
    assigned.world_size += member.join.workers;
    size_of_role[member.join.role] += member.join.workers;
  }
  for (const Id id : in_order()) {
    Member& member = members_.at(id);
    member.running = true;
    member.done = false;
    assigned.first_role_rank = rank_in_role[member.join.role];
    assigned.role_world_size = size_of_role[member.join.role];
    messages_.emplace_back(id, assigned);
    rank_in_role[member.join.role] += member.join.workers;
    assigned.first_rank += member.join.workers;
    ++assigned.node;
  }
  phase_ = Phase::kRunning;
  notes_.push_back(
      {fmt::format("start {}: {} workers on {} nodes", assigned.attempt, assigned.world_size, assigned.nodes), true});
}

void Rendezvous::end(const End& end) {
  phase_ = Phase::kEnded;
  for (const auto& [id, member] : members_) messages_.emplace_back(id, end);
  notes_.push_back({end.status == 0 ? "the job has succeeded" : "the job has failed: " + end.report, true});
}

std::vector<std::pair<Rendezvous::Id, Message>> Rendezvous::take_messages() { return std::exchange(messages_, {}); }
std::vector<Rendezvous::Note> Rendezvous::take_notes() { return std::exchange(notes_, {}); }

}  // namespace loom::launcher
