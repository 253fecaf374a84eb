#include "engine/plan/few_micro_batches.h"

#include <algorithm>
#include <cctype>
#include <fmt/format.h>
#include <string>
#include <unordered_map>

#include "engine/plan/plan_stages.h"
#include "engine/train/step/marks.h"

namespace loom::plan {
namespace {

using device::Entry;
using device::Mark;
using device::MemorySample;
using train::PipelineAction;
using train::PipelineList;

// What a rank does, one action after another, whatever the micro-batch.
struct Kinds {
  std::vector<PipelineAction> actions;  // without micro-batches
  std::vector<std::size_t> marked;      // those that set a mark

  explicit Kinds(const PipelineList& list) {
    for (const train::PipelineStep& step : list) {
      for (PipelineAction action : step.actions) {
        action.micro_batch = train::kNoMicroBatch;
        if (train::is_compute(action.kind) || action.kind == train::PipelineKind::kReduceGrad) {
          marked.push_back(actions.size());
        }
        actions.push_back(action);
      }
    }
  }
};

// The actions of `few`, messages included, with the part put in, are those of `more`.
bool are_alike(const Kinds& few, const Kinds& more, const SteadyPart& part) {
  const auto at = [&](std::size_t mark) { return few.actions.begin() + static_cast<std::ptrdiff_t>(few.marked[mark]); };
  std::vector<PipelineAction> expanded(few.actions.begin(), at(part.end));
  for (std::int64_t i = 0; i < part.times; ++i) expanded.insert(expanded.end(), at(part.begin), at(part.end));
  expanded.insert(expanded.end(), at(part.end), few.actions.end());
  return expanded == more.actions;
}

// The last part of a list that a step with `times` as many more micro-batches repeats as often.
std::optional<SteadyPart> steady_part(const PipelineList& few, const PipelineList& whole, std::int64_t micro_batches,
                                      std::int64_t times) {
  const Kinds a(few), b(whole);
  const std::size_t length = (b.marked.size() - a.marked.size()) / static_cast<std::size_t>(times);
  for (std::size_t end = a.marked.size() - 1; end >= 2 * length && length > 0; --end) {
    const SteadyPart part{.begin = end - length, .end = end, .times = times, .micro_batches = micro_batches};
    if (are_alike(a, b, part)) return part;
  }
  return std::nullopt;
}

train::TrainSections with_micro_batches(const train::TrainSections& arguments, std::int64_t all, std::int64_t few) {
  train::TrainSections result = arguments;
  result.schedule.global_batch_size = static_cast<int>(arguments.schedule.global_batch_size / all * few);
  return result;
}

std::vector<SteadyPart> parts_of(const train::PipelineLists& few, const train::PipelineLists& whole,
                                 std::int64_t micro_batches, std::int64_t times) {
  std::vector<SteadyPart> parts;
  for (std::size_t rank = 0; rank < few.size(); ++rank) {
    const auto part = steady_part(few[rank], whole[rank], micro_batches, times);
    if (!part) return {};
    parts.push_back(*part);
  }
  return parts;
}

// --- recordings

// A text with the number at its end moved: "2F3", "2.F3".
class MovedTexts {
 public:
  explicit MovedTexts(device::Recording& recording) : recording_(recording) {
    for (std::size_t i = 0; i < recording.texts.size(); ++i) {
      numbers_.emplace(recording.texts[i], static_cast<std::int32_t>(i));
    }
  }
  std::int32_t moved(std::int32_t number, std::int64_t by) {
    const std::string text = recording_.text(number);
    std::size_t digits = text.size();
    while (digits > 0 && std::isdigit(static_cast<unsigned char>(text[digits - 1])) != 0) --digits;
    if (digits == text.size()) return number;
    const std::string other = fmt::format("{}{}", text.substr(0, digits), std::stoll(text.substr(digits)) + by);
    const auto [found, is_new] = numbers_.try_emplace(other, static_cast<std::int32_t>(recording_.texts.size()));
    if (is_new) recording_.texts.push_back(other);
    return found->second;
  }

 private:
  device::Recording& recording_;
  std::unordered_map<std::string, std::int32_t> numbers_;
};

// But for the numbers of micro-batches; `apart` entries lie between the two.
bool are_equal(const Entry& a, const Entry& b, std::int64_t apart) {
  const device::Cost &x = a.cost, &y = b.cost;
  const bool same_other = a.other == device::kDone ? b.other == device::kDone : b.other == a.other + apart;
  return a.kind == b.kind && a.stream == b.stream && a.collective == b.collective && a.name == b.name &&
         (a.subject == b.subject || is_message(a)) && a.group == b.group && a.axis == b.axis && a.bytes == b.bytes &&
         same_other && x.flops == y.flops && x.read_bytes == y.read_bytes && x.written_bytes == y.written_bytes &&
         x.link_bytes == y.link_bytes && x.unit == y.unit && x.dtype == y.dtype && x.batch == y.batch && x.m == y.m &&
         x.n == y.n && x.k == y.k && x.pinned == y.pinned && x.work == y.work;
}

bool are_equal(const Mark& a, const Mark& b, std::int64_t apart) {
  return a.kind == b.kind && (a.subject == b.subject || a.kind == train::kActionMark) &&
         a.entries + apart == b.entries && a.bytes == b.bytes && a.dtype == b.dtype && a.count == b.count &&
         a.prefetched == b.prefetched;
}

bool are_equal(const MemorySample& a, const MemorySample& b, std::int64_t apart) {
  return a.entries + apart == b.entries && a.by_category == b.by_category && a.allocated_bytes == b.allocated_bytes &&
         a.reserved_bytes == b.reserved_bytes && a.cache_flushes == b.cache_flushes;
}

struct Range {
  std::size_t begin = 0, end = 0;
  std::size_t size() const { return end - begin; }
};

// The two records of the part in a list of things.
template <class Thing>
bool are_equal(const std::vector<Thing>& things, const Range& one, const Range& other, std::int64_t apart) {
  if (one.size() != other.size()) return false;
  for (std::size_t i = 0; i < one.size(); ++i) {
    if (!are_equal(things[one.begin + i], things[other.begin + i], apart)) return false;
  }
  return true;
}

// Of things with `entries`: those of a range of entries. A thing at its end belongs to what follows.
template <class Thing>
Range range_of(const std::vector<Thing>& things, std::int64_t begin, std::int64_t end) {
  const auto place = [&](std::int64_t entries) {
    return static_cast<std::size_t>(std::ranges::lower_bound(things, entries, {}, &Thing::entries) - things.begin());
  };
  return {place(begin), place(end)};
}

class Repeats {
 public:
  Repeats(const device::Recording& recording, const SteadyPart& part) : from_(recording), part_(part) {
    for (std::size_t i = 0; i < recording.marks.size(); ++i) {
      if (recording.marks[i].kind == train::kActionMark) actions_.push_back(i);
    }
  }

  std::optional<device::Recording> run() {
    const std::size_t length = part_.end - part_.begin;
    if (part_.end >= actions_.size()) return std::nullopt;
    const std::int64_t before = entries_at(part_.begin - length), begin = entries_at(part_.begin);
    const std::int64_t end = entries_at(part_.end), apart = end - begin;
    const Range marks{actions_[part_.begin], actions_[part_.end]};
    const Range marks_before{actions_[part_.begin - length], actions_[part_.begin]};
    const Range samples = range_of(from_.memory, begin, end), samples_before = range_of(from_.memory, before, begin);
    const Range entries = of(begin, end), entries_before = of(before, begin);
    const bool is_steady = are_equal(from_.entries, entries_before, entries, apart) &&
                           are_equal(from_.marks, marks_before, marks, apart) &&
                           are_equal(from_.memory, samples_before, samples, apart);
    if (!is_steady || refers_before(before, end)) return std::nullopt;
    device::Recording made = from_;
    MovedTexts texts(made);
    repeat(made.entries, from_.entries, entries, [&](Entry& entry, std::int64_t i) {
      if (entry.other != device::kDone) entry.other += i * apart;
      if (is_message(entry)) entry.subject = texts.moved(entry.subject, i * part_.micro_batches);
    });
    const auto place = [&](auto& thing, std::int64_t i) { thing.entries += i * apart; };
    repeat(made.marks, from_.marks, marks, [&](Mark& mark, std::int64_t i) {
      place(mark, i);
      if (mark.kind == train::kActionMark) mark.subject = texts.moved(mark.subject, i * part_.micro_batches);
    });
    repeat(made.memory, from_.memory, samples, place);
    return made;
  }

 private:
  std::int64_t entries_at(std::size_t action) const { return from_.marks[actions_[action]].entries; }
  static Range of(std::int64_t begin, std::int64_t end) {
    return {static_cast<std::size_t>(begin), static_cast<std::size_t>(end)};
  }
  // Whether something behind the part waits for something that was before both records of it: it could be for that very
  // entry, or for the one so far back.
  bool refers_before(std::int64_t before, std::int64_t end) const {
    for (std::size_t i = static_cast<std::size_t>(end); i < from_.entries.size(); ++i) {
      const std::int64_t other = from_.entries[i].other;
      if (other != device::kDone && other < before) return true;
    }
    return false;
  }
  // What is behind the part moves as far as its last repetition.
  template <class Thing, class Move>
  void repeat(std::vector<Thing>& made, const std::vector<Thing>& from, const Range& range, const Move& move) const {
    made.assign(from.begin(), from.begin() + static_cast<std::ptrdiff_t>(range.end));
    for (std::int64_t i = 1; i <= part_.times; ++i) {
      for (std::size_t at = range.begin; at < range.end; ++at) move(made.emplace_back(from[at]), i);
    }
    for (std::size_t at = range.end; at < from.size(); ++at) move(made.emplace_back(from[at]), part_.times);
  }

  const device::Recording& from_;
  const SteadyPart& part_;
  std::vector<std::size_t> actions_;  // marks of actions
};

}  // namespace

std::optional<FewMicroBatches> few_micro_batches(const train::TrainSections& arguments,
                                                 const train::PretrainCallbacks& callbacks,
                                                 const train::TrainingInputs& inputs, const train::EditConfig& edit) {
  if (!inputs.pipeline) return std::nullopt;
  const std::int64_t all = inputs.pipeline->schedule.micro_batches;
  const auto ranks = static_cast<std::int64_t>(inputs.pipeline->lists.size());
  // The part is a micro-batch, or with several stages a rank one for each rank. Three of it are in the step: the first
  // backward of a stage differs from later ones.
  const bool is_interleaved = static_cast<std::int64_t>(inputs.pipeline->stages.size()) > ranks;
  const std::int64_t period = is_interleaved ? ranks : 1, least = is_interleaved ? 5 * ranks : ranks + 3;
  const std::int64_t few = least + (all - least) % period, times = (all - few) / period;
  if (all <= few + period || arguments.parallel.pipeline.pipeline_parallel_schedule_csv) return std::nullopt;
  std::int64_t layers = 0;
  for (const sharding::StageLayout& stage : inputs.pipeline->stages) layers += std::ssize(stage.layers);
  const train::PipelinePlan plan = train::plan_pipeline(arguments.parallel.pipeline, layers, few);
  FewMicroBatches result{with_micro_batches(arguments, all, few), {}, {}};
  result.parts = parts_of(plan.lists, inputs.pipeline->lists, period, times);
  if (result.parts.empty()) return std::nullopt;
  result.inputs = train::read_inputs(result.arguments, callbacks, edit);
  return result;
}

std::optional<device::Recording> with_repeats(const device::Recording& recording, const SteadyPart& part) {
  return Repeats(recording, part).run();
}

}  // namespace loom::plan
