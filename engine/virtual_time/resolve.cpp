#include "engine/virtual_time/resolve.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <functional>
#include <map>
#include <queue>
#include <tuple>
#include <utility>

#include "engine/core/error.h"
#include "engine/device/exchange_stream.h"

namespace loom::virtual_time {
namespace {

constexpr std::int64_t kNone = -1;

// 146 years.
constexpr std::int64_t kEndOfTimeNs = std::int64_t{1} << 62;

std::int64_t later(std::int64_t time_ns, double ns) {
  if (!(ns < static_cast<double>(kEndOfTimeNs - time_ns))) {
    raise<DeviceError>(
        "the step takes more than 146 years of virtual time; use smaller sizes, or a device profile with higher rates");
  }
  return time_ns + std::llround(ns);
}

// Something that runs at a rate that may change.
struct Task {
  double remaining_ns = 0;  // at the full rate, as of `updated_ns`
  double rate = 0;          // 0: does not run
  std::int64_t updated_ns = 0;
  std::int32_t version = 0;  // of its end among the events; ends of older versions are void
};

// A group of ranks, over all recordings.
struct Group {
  std::vector<int> ranks;
  GroupShape shape;
  std::int32_t present = 0;  // members that are simulated
};

// One collective, as its members come to it.
struct CollectiveInstance {
  Task task;
  std::int32_t group = 0;
  std::int32_t came = 0;
  std::size_t first_member = 0;  // its members among `members_`
  device::CollectiveKind kind{};
  std::int64_t bytes = 0;
  std::uint32_t levels = 0;
  double compute_slowdown = 0;
};

// A stream of a rank.
struct RankStream {
  std::int32_t rank = 0;  // index
  std::int32_t stream = 0;
};

// The meetings of a group on one stream, in order, and how many each rank has come to.
struct Order {
  std::vector<std::int32_t> meetings;
  std::vector<std::int32_t> came;
};

struct StreamState {
  std::vector<std::int64_t> queue;  // entries, as the host issued them
  std::size_t head = 0;
  bool busy = false;             // the head runs, or is in a meeting
  bool slowed = false;           // the head is compute
  bool waits = false;            // the head is a wait that has begun
  std::int64_t awaited = kNone;  // entry that it waits for
  Task task;
};

struct RankState {
  const device::Recording* recording = nullptr;
  RankTimes times;
  std::array<StreamState, device::kStreams> streams;
  std::size_t next = 0;  // entry the host comes to
  std::int64_t host_ns = 0;
  std::int64_t host_awaits = kNone;
  std::vector<bool> over;
  std::vector<std::int32_t> groups;   // a group's number in the recording -> over all
  std::vector<std::int32_t> running;  // meetings
  double own_rate = 1;                // of compute, as the slowest of its largest group

  bool is_over(std::int64_t index) const { return index == kNone || over[static_cast<std::size_t>(index)]; }
};

enum class EventKind : std::uint8_t { kIssued, kItemEnds, kCollectiveEnds };

struct Event {
  std::int64_t time_ns = 0;
  std::int64_t order = 0;  // among entries of one time
  EventKind kind{};
  RankStream at{};              // of an item
  std::int32_t collective = 0;  // kCollectiveEnds: its number among `meetings_`
  std::int32_t version = 0;

  bool operator>(const Event& other) const { return std::tie(time_ns, order) > std::tie(other.time_ns, other.order); }
};

bool is_compute(const device::Cost& cost) {
  return cost.unit != device::Unit::kLink && cost.unit != device::Unit::kHostLink;
}

bool is_message(device::CollectiveKind kind) { return kind == device::CollectiveKind::kMessage; }

// The nodes over which a group lies.
double nodes_of(const GroupShape& shape) {
  double nodes = 1;
  for (std::size_t level = 1; level < shape.members.size(); ++level) nodes *= static_cast<double>(shape.members[level]);
  return nodes;
}

class Simulation {
 public:
  Simulation(std::span<const RankRecording> ranks, const TimeModel& model, HostCosts host_costs)
      : model_(model), host_(host_costs == HostCosts::kFree ? LaunchProfile{} : model.profile().launch) {
    ranks_.reserve(ranks.size());
    for (const RankRecording& rank : ranks) add_rank(rank);
    for (const RankState& rank : ranks_) count_presence(rank.times.rank);
    orders_.resize(groups_.size() * device::kStreams);
  }

  VirtualTimes run() {
    for (std::int32_t r = 0; r < static_cast<std::int32_t>(ranks_.size()); ++r) run_host(r);
    settle();
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.time_ns;
      handle(event);
      settle();
    }
    return result();
  }

 private:
  void add_rank(const RankRecording& rank);
  std::int32_t number_of(const std::vector<int>& ranks);
  void count_presence(int rank);

  void handle(const Event& event);
  void settle();

  void run_host(std::int32_t r);
  bool pass(std::int32_t r, std::size_t index);
  void issue(std::int32_t r, std::size_t index, std::int64_t cost_ns);

  void advance(RankStream at);
  void begin_head(RankStream at, std::int64_t index);
  void finish_head(RankStream at);

  void join_meeting(RankStream at, const device::Entry& entry);
  std::int32_t meeting_for(RankStream at, const device::Entry& entry);
  const CollectiveTime& time_of(std::int32_t group, RankStream at, const device::Entry& entry);
  void check_alike(const CollectiveInstance& meeting, RankStream at, const device::Entry& entry) const;
  void begin_meeting(std::int32_t m);
  void end_meeting(std::int32_t m);
  void collectives_changed(const CollectiveInstance& meeting);
  void cores_changed(std::int32_t r);
  double compute_rate(const RankState& state) const;
  bool passes_by(const RankState& state, const CollectiveInstance& a, const CollectiveInstance& b) const;
  double share_of_links(const CollectiveInstance& meeting) const;
  std::span<const RankStream> members_of(const CollectiveInstance& meeting) const {
    return {members_.data() + meeting.first_member, static_cast<std::size_t>(meeting.came)};
  }

  void set_rate(Task& task, double rate, Event end);

  VirtualTimes result();
  void add_phases(RankState& rank) const;
  [[noreturn]] void report_stuck(const RankState& rank) const;

  RankState& rank(std::int32_t r) { return ranks_[static_cast<std::size_t>(r)]; }
  StreamState& stream(RankStream at) { return rank(at.rank).streams[static_cast<std::size_t>(at.stream)]; }

  const TimeModel& model_;
  const LaunchProfile host_;
  std::vector<RankState> ranks_;
  std::vector<Group> groups_;
  std::map<std::vector<int>, std::int32_t> group_numbers_;
  std::vector<Order> orders_;  // group * kStreams + stream; of messages 0
  std::vector<CollectiveInstance> meetings_;
  std::vector<RankStream> members_;
  std::map<std::tuple<std::int32_t, device::CollectiveKind, std::int64_t>, CollectiveTime> collective_times_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::int64_t events_made_ = 0;
  std::vector<RankStream> ready_;  // streams to look at before time goes on
  std::int64_t now_ = 0;
};

// --- Set-up

void Simulation::add_rank(const RankRecording& given) {
  RankState& state = ranks_.emplace_back();
  state.recording = given.recording;
  state.times.rank = given.rank;
  state.times.entries.resize(given.recording->entries.size());
  state.over.resize(given.recording->entries.size());
  double most_nodes = 1;
  for (const std::vector<int>& group : given.recording->groups) {
    state.groups.push_back(number_of(group));
    most_nodes = std::max(most_nodes, nodes_of(groups_[static_cast<std::size_t>(state.groups.back())].shape));
  }
  state.own_rate = 1 / (1 + model_.profile().links.loss_per_doubling * std::log2(most_nodes));
}

std::int32_t Simulation::number_of(const std::vector<int>& ranks) {
  const auto [found, fresh] = group_numbers_.try_emplace(ranks, static_cast<std::int32_t>(groups_.size()));
  if (fresh) groups_.push_back({ranks, model_.shape_of(ranks), 0});
  return found->second;
}

void Simulation::count_presence(int rank) {
  for (Group& group : groups_) {
    if (std::ranges::find(group.ranks, rank) != group.ranks.end()) ++group.present;
  }
}

// --- Events

void Simulation::handle(const Event& event) {
  switch (event.kind) {
    case EventKind::kIssued:
      ready_.push_back(event.at);
      break;
    case EventKind::kItemEnds:
      if (stream(event.at).task.version == event.version) finish_head(event.at);
      break;
    case EventKind::kCollectiveEnds:
      if (meetings_[static_cast<std::size_t>(event.collective)].task.version == event.version) {
        end_meeting(event.collective);
      }
      break;
  }
}

void Simulation::settle() {
  for (std::size_t i = 0; i < ready_.size(); ++i) advance(ready_[i]);
  ready_.clear();
}

// The end of the task becomes an event, of which the caller gives the kind and the place; one that was expected before
// is void.
void Simulation::set_rate(Task& task, double rate, Event end) {
  task.remaining_ns -= static_cast<double>(now_ - task.updated_ns) * task.rate;
  task.updated_ns = now_;
  task.rate = rate;
  end.time_ns = later(now_, std::max(0.0, task.remaining_ns / rate));
  end.order = events_made_++;
  end.version = ++task.version;
  events_.push(end);
}

// --- The host

// Continues until the host has to wait. The clock never goes back: the host issues each entry now or later.
void Simulation::run_host(std::int32_t r) {
  RankState& state = rank(r);
  while (state.next < state.times.entries.size() && pass(r, state.next)) ++state.next;
}

// False when the host has to wait at this entry.
bool Simulation::pass(std::int32_t r, std::size_t index) {
  RankState& state = rank(r);
  const device::Entry& entry = state.recording->entries[index];
  EntryTime& time = state.times.entries[index];
  switch (entry.kind) {
    case device::EntryKind::kKernel:
    case device::EntryKind::kCopy:
      issue(r, index, TimeModel::dispatch_ns(host_, entry.cost));
      return true;
    case device::EntryKind::kCollective:
      // One of the exchange stream is a call inside an operator, and a message goes as it is: without a group's
      // bookkeeping.
      issue(r, index,
            entry.stream == device::kExchangeStream || is_message(entry.collective) ? host_.dispatch_ns
                                                                                    : host_.collective_ns);
      return true;
    case device::EntryKind::kStreamWait:
      issue(r, index, host_.stream_wait_ns);
      return true;
    case device::EntryKind::kHostWork:
      time.issued = time.start = state.host_ns;
      state.host_ns = time.end = later(state.host_ns, static_cast<double>(model_.host_work_ns(entry.cost)));
      break;
    case device::EntryKind::kHostWait: {
      const std::int64_t other = entry.other;
      if (state.host_awaits == kNone) time.issued = time.start = state.host_ns;
      if (!state.is_over(other)) {
        state.host_awaits = other;
        return false;
      }
      state.host_awaits = kNone;
      const std::int64_t end = other == kNone ? 0 : state.times.entries[static_cast<std::size_t>(other)].end;
      state.host_ns = time.end = std::max(state.host_ns, end);
      break;
    }
    case device::EntryKind::kPhase:
      time = {state.host_ns, state.host_ns, state.host_ns};
      break;
  }
  state.over[index] = true;
  return true;
}

void Simulation::issue(std::int32_t r, std::size_t index, std::int64_t cost_ns) {
  RankState& state = rank(r);
  const device::Entry& entry = state.recording->entries[index];
  state.host_ns = later(state.host_ns, static_cast<double>(cost_ns));
  state.times.entries[index].issued = state.host_ns;
  const RankStream at{r, static_cast<std::int32_t>(entry.stream.place())};
  StreamState& to = stream(at);
  to.queue.push_back(static_cast<std::int64_t>(index));
  if (to.head + 1 == to.queue.size()) ready_.push_back(at);  // nothing is before it
}

// --- Streams

// Begins the entries that the stream can begin now.
void Simulation::advance(RankStream at) {
  RankState& state = rank(at.rank);
  StreamState& s = stream(at);
  if (s.busy || s.awaited != kNone || s.head == s.queue.size()) return;
  const std::int64_t index = s.queue[s.head];
  const std::int64_t issued = state.times.entries[static_cast<std::size_t>(index)].issued;
  if (issued > now_) {
    events_.push({.time_ns = issued, .order = events_made_++, .kind = EventKind::kIssued, .at = at});
    return;
  }
  begin_head(at, index);
}

void Simulation::begin_head(RankStream at, std::int64_t index) {
  RankState& state = rank(at.rank);
  StreamState& s = stream(at);
  const device::Entry& entry = state.recording->entries[static_cast<std::size_t>(index)];
  if (entry.kind == device::EntryKind::kStreamWait) {
    const std::int64_t other = entry.other;
    if (!std::exchange(s.waits, true)) state.times.entries[static_cast<std::size_t>(index)].start = now_;
    if (state.is_over(other)) {
      s.waits = false;
      finish_head(at);
    } else {
      s.awaited = other;
    }
    return;
  }
  s.busy = true;
  if (entry.kind == device::EntryKind::kCollective) {
    join_meeting(at, entry);
    return;
  }
  state.times.entries[static_cast<std::size_t>(index)].start = now_;
  s.slowed = is_compute(entry.cost);
  const double remaining = static_cast<double>(model_.work_ns(state.recording->text(entry.name), entry.cost));
  s.task = {remaining, 0, now_, s.task.version};
  if (s.slowed) {
    cores_changed(at.rank);
  } else {
    set_rate(s.task, 1, {.kind = EventKind::kItemEnds, .at = at});
  }
}

// The head is over: so may be what streams and the host wait for.
void Simulation::finish_head(RankStream at) {
  RankState& state = rank(at.rank);
  StreamState& s = stream(at);
  const std::int64_t index = s.queue[s.head++];
  s.busy = false;
  if (s.slowed) {
    s.slowed = false;
    cores_changed(at.rank);
  }
  state.times.entries[static_cast<std::size_t>(index)].end = now_;
  state.over[static_cast<std::size_t>(index)] = true;
  ready_.push_back(at);
  for (std::int32_t other = 0; other < static_cast<std::int32_t>(device::kStreams); ++other) {
    StreamState& waiting = stream({at.rank, other});
    if (waiting.awaited != index) continue;
    waiting.awaited = kNone;
    ready_.push_back({at.rank, other});
  }
  if (state.host_awaits == index) run_host(at.rank);
}

// --- Collectives

void Simulation::join_meeting(RankStream at, const device::Entry& entry) {
  const std::int32_t m = meeting_for(at, entry);
  CollectiveInstance& meeting = meetings_[static_cast<std::size_t>(m)];
  members_[meeting.first_member + static_cast<std::size_t>(meeting.came++)] = at;
  if (meeting.came == groups_[static_cast<std::size_t>(meeting.group)].present) begin_meeting(m);
}

// The next one of its group on this stream that the rank has not come to. Messages of one direction have one order on
// both ranks, whose streams for them differ.
std::int32_t Simulation::meeting_for(RankStream at, const device::Entry& entry) {
  const std::int32_t g = rank(at.rank).groups[static_cast<std::size_t>(entry.group)];
  const std::int32_t queue = is_message(entry.collective) ? 0 : at.stream;
  Order& order = orders_[static_cast<std::size_t>(g) * device::kStreams + static_cast<std::size_t>(queue)];
  if (order.came.empty()) order.came.resize(ranks_.size());
  const auto turn = static_cast<std::size_t>(order.came[static_cast<std::size_t>(at.rank)]++);
  if (turn < order.meetings.size()) {
    CollectiveInstance& meeting = meetings_[static_cast<std::size_t>(order.meetings[turn])];
    check_alike(meeting, at, entry);
    if (entry.bytes > meeting.bytes) {  // of members that differ, the one with most bytes gives the time
      meeting.bytes = entry.bytes;
      meeting.task.remaining_ns = static_cast<double>(time_of(g, at, entry).time_ns);
    }
    return order.meetings[turn];
  }
  const Group& group = groups_[static_cast<std::size_t>(g)];
  require(group.present > 0, "rank {} is in a collective of ranks {} and is none of them", rank(at.rank).times.rank,
          fmt::join(group.ranks, ","));
  const CollectiveTime& time = time_of(g, at, entry);
  CollectiveInstance meeting{
      {}, g, 0, members_.size(), entry.collective, entry.bytes, time.levels, time.compute_slowdown};
  meeting.task.remaining_ns = static_cast<double>(time.time_ns);
  members_.resize(members_.size() + static_cast<std::size_t>(group.present));
  meetings_.push_back(meeting);
  order.meetings.push_back(static_cast<std::int32_t>(meetings_.size()) - 1);
  return order.meetings.back();
}

const CollectiveTime& Simulation::time_of(std::int32_t group, RankStream at, const device::Entry& entry) {
  const device::Recording& recording = *ranks_[static_cast<std::size_t>(at.rank)].recording;
  const std::int64_t bytes = model_.carried_bytes(entry.collective, entry.bytes, recording.text(entry.subject));
  const auto [time, fresh] = collective_times_.try_emplace({group, entry.collective, bytes});
  if (fresh) {
    const GroupShape& shape = groups_[static_cast<std::size_t>(group)].shape;
    time->second = model_.collective(entry.collective, bytes, shape);
  }
  return time->second;
}

void Simulation::check_alike(const CollectiveInstance& meeting, RankStream at, const device::Entry& entry) const {
  const RankState& mine = ranks_[static_cast<std::size_t>(at.rank)];
  const bool may_differ =
      meeting.kind == device::CollectiveKind::kAllToAll || meeting.kind == device::CollectiveKind::kSendRecv;
  require(meeting.kind == entry.collective && (may_differ || meeting.bytes == entry.bytes),
          "{} '{}' of {} bytes on rank {} meets another collective of {} bytes in ranks {}",
          mine.recording->text(entry.name), mine.recording->text(entry.subject), entry.bytes, mine.times.rank,
          meeting.bytes, fmt::join(groups_[static_cast<std::size_t>(meeting.group)].ranks, ","));
}

void Simulation::begin_meeting(std::int32_t m) {
  CollectiveInstance& meeting = meetings_[static_cast<std::size_t>(m)];
  meeting.task.updated_ns = now_;
  for (const RankStream& member : members_of(meeting)) {
    RankState& state = rank(member.rank);
    const StreamState& s = stream(member);
    state.times.entries[static_cast<std::size_t>(s.queue[s.head])].start = now_;
    state.running.push_back(m);
  }
  collectives_changed(meeting);
}

void Simulation::end_meeting(std::int32_t m) {
  CollectiveInstance& meeting = meetings_[static_cast<std::size_t>(m)];
  meeting.task.rate = 0;
  for (const RankStream& member : members_of(meeting)) std::erase(rank(member.rank).running, m);
  collectives_changed(meeting);
  for (const RankStream& member : members_of(meeting)) finish_head(member);
}

// A collective began or ended: what its members do besides gets another rate.
void Simulation::collectives_changed(const CollectiveInstance& changed) {
  for (const RankStream& member : members_of(changed)) {
    cores_changed(member.rank);
    for (const std::int32_t m : rank(member.rank).running) {
      CollectiveInstance& meeting = meetings_[static_cast<std::size_t>(m)];
      const double share = share_of_links(meeting);
      if (meeting.task.rate != share)
        set_rate(meeting.task, share, {.kind = EventKind::kCollectiveEnds, .collective = m});
    }
  }
}

// Work on the rank's cores began or ended, or they lost or won a share.
void Simulation::cores_changed(std::int32_t r) {
  const double rate = compute_rate(rank(r));
  for (std::int32_t s = 0; s < static_cast<std::int32_t>(device::kStreams); ++s) {
    StreamState& state = stream({r, s});
    if (state.slowed && state.task.rate != rate)
      set_rate(state.task, rate, {.kind = EventKind::kItemEnds, .at = {r, s}});
  }
}

// The rate of every item that runs on the rank's cores. Collectives take their share of the cores once, however many
// run: their kernels move bytes as fast as the links take them, and the links are what they share among themselves. The
// items of several streams share what remains equally, as a device without priorities would.
double Simulation::compute_rate(const RankState& state) const {
  double slowdown = 0;
  for (const std::int32_t m : state.running) {
    slowdown = std::max(slowdown, meetings_[static_cast<std::size_t>(m)].compute_slowdown);
  }
  const auto workers = std::ranges::count_if(state.streams, &StreamState::slowed);
  return state.own_rate * (1 - slowdown) / static_cast<double>(std::max<std::ptrdiff_t>(workers, 1));
}

// Whether the rank sends one of two messages and receives the other: links have both directions.
bool Simulation::passes_by(const RankState& state, const CollectiveInstance& a, const CollectiveInstance& b) const {
  const auto sends = [&](const CollectiveInstance& meeting) {
    return groups_[static_cast<std::size_t>(meeting.group)].ranks.front() == state.times.rank;
  };
  return is_message(a.kind) && is_message(b.kind) && sends(a) != sends(b);
}

// The share of its links that a collective gets: the smallest among its members, because the slowest member limits the
// collective. A member divides each level of its links by the number of collectives that use the level there. Capacity
// that the slowest level leaves unused on other levels stays unused: shares then depend on which collectives run, and
// not on their progress, so an end can be predicted when a collective begins or ends, and only then.
double Simulation::share_of_links(const CollectiveInstance& meeting) const {
  std::ptrdiff_t most = 1;
  for (const RankStream& member : members_of(meeting)) {
    const RankState& state = ranks_[static_cast<std::size_t>(member.rank)];
    for (std::uint32_t rest = meeting.levels; rest != 0; rest &= rest - 1) {
      const std::uint32_t level = rest & -rest;
      const auto users = std::ranges::count_if(state.running, [&](std::int32_t m) {
        const CollectiveInstance& other = meetings_[static_cast<std::size_t>(m)];
        return (other.levels & level) != 0 && !passes_by(state, meeting, other);
      });
      most = std::max(most, users);
    }
  }
  return 1 / static_cast<double>(most);
}

// --- The answer

VirtualTimes Simulation::result() {
  VirtualTimes all;
  for (RankState& state : ranks_) {
    if (std::ranges::find(state.over, false) != state.over.end()) report_stuck(state);
    state.times.host_end_ns = state.host_ns;
    state.times.end_ns = state.host_ns;
    for (const EntryTime& time : state.times.entries) state.times.end_ns = std::max(state.times.end_ns, time.end);
    add_phases(state);
    all.end_ns = std::max(all.end_ns, state.times.end_ns);
    all.ranks.push_back(std::move(state.times));
  }
  return all;
}

// The host runs ahead of the streams, so a phase begins at another time for each of them. A stream comes to the phase
// at the end of its last entry issued before, and not before the host does: only then an event recorded there would
// exist. The ends of one stream ascend, but not across streams: hence the maximum over all.
void Simulation::add_phases(RankState& state) const {
  PhaseTime now;
  for (std::size_t i = 0; i < state.times.entries.size(); ++i) {
    const device::Entry& entry = state.recording->entries[i];
    const std::int64_t end = state.times.entries[i].end;
    const bool on_stream = device::is_on_stream(entry.kind);
    if (on_stream) now.device_ns = std::max(now.device_ns, end);
    if (on_stream && entry.stream == device::StreamId::kCompute) now.compute_ns = end;
    if (entry.kind != device::EntryKind::kPhase) continue;
    state.times.phases.push_back(
        {static_cast<std::int64_t>(i), end, std::max(end, now.compute_ns), std::max(end, now.device_ns)});
  }
}

void Simulation::report_stuck(const RankState& state) const {
  const auto& entries = state.recording->entries;
  std::size_t first = 0;
  while (state.over[first]) ++first;
  for (std::size_t i = first; i < entries.size(); ++i) {  // rather the collective than what waits for it
    if (state.over[i] || entries[i].kind != device::EntryKind::kCollective) continue;
    first = i;
    break;
  }
  raise<InvariantError>("internal: virtual time cannot advance: rank {} is at {} '{}', and its peers never come",
                        state.times.rank, state.recording->text(entries[first].name),
                        state.recording->text(entries[first].subject));
}

}  // namespace

VirtualTimes resolve(std::span<const RankRecording> ranks, const TimeModel& model, HostCosts host_costs) {
  return Simulation(ranks, model, host_costs).run();
}

}  // namespace loom::virtual_time
