#include "models/generation/beam_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "engine/core/error.h"

namespace loom::models {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

struct Beam {
  Row tokens;        // behind the prompt
  double score = 0;  // open: sum of log-probabilities; finished: divided by the length penalty
  StopReason reason = StopReason::kMaxNewTokens;
};

struct Candidate {
  double score = kNever;
  std::int64_t beam = 0;
  std::int32_t token = 0;
};

class Search {
 public:
  Search(SessionReader& reader, const DecoderConfig& config, const Row& prompt, const BeamOptions& options)
      : reader_(reader), prompt_(prompt), options_(options) {
    const std::int64_t size = std::ssize(prompt);
    most_ = options.max_new_tokens;
    if (options.max_length) most_ = std::min(most_, *options.max_length - size);
    room_ = longest_sequence(config) - size;
  }

  BeamResult run() {
    const std::int64_t known = reader_.begin({prompt_});
    open_.push_back({});
    std::vector<std::span<const std::int32_t>> unread{std::span(prompt_).subspan(static_cast<std::size_t>(known))};
    while (length_ < std::min(most_, room_)) {
      const std::vector<Candidate> best = candidates(reader_.read(unread));
      ++length_;
      const std::vector<std::int64_t> parents = advance(best);
      if (length_ == std::min(most_, room_) || !can_improve()) break;
      reader_.select_rows(parents);
      unread.clear();
      for (const Beam& beam : open_) unread.push_back(std::span(beam.tokens).last(1));
    }
    return result();
  }

 private:
  bool is_end(std::int32_t token) const {
    return std::ranges::find(options_.end_token_ids, token) != options_.end_token_ids.end();
  }
  double penalized(double score, std::int64_t length) const {
    return score / std::pow(static_cast<double>(length), options_.length_penalty);
  }

  // The best continuations of all open beams, so many that beams without an end token are left.
  std::vector<Candidate> candidates(const std::vector<std::vector<float>>& logits) const {
    std::vector<Candidate> all;
    for (std::size_t b = 0; b < open_.size(); ++b) {
      Row row = prompt_;
      row.insert(row.end(), open_[b].tokens.begin(), open_[b].tokens.end());
      const std::vector<double> logs = log_probabilities(logits[b], options_.repetition_penalty, row);
      for (std::size_t token = 0; token < logs.size(); ++token) {
        all.push_back({open_[b].score + logs[token], static_cast<std::int64_t>(b), static_cast<std::int32_t>(token)});
      }
    }
    const std::int64_t kept = std::max<std::int64_t>(2, 1 + std::ssize(options_.end_token_ids)) * options_.beams;
    const auto last = all.begin() + std::min<std::int64_t>(kept, std::ssize(all));
    std::partial_sort(all.begin(), last, all.end(), [](const Candidate& a, const Candidate& b) {
      if (a.score != b.score) return a.score > b.score;
      return a.beam != b.beam ? a.beam < b.beam : a.token < b.token;
    });
    all.erase(last, all.end());
    return all;
  }

  // Finishes and goes on with beams; the rows that these continue. At the last length every candidate is finished.
  std::vector<std::int64_t> advance(const std::vector<Candidate>& best) {
    const bool is_last = length_ == std::min(most_, room_);
    std::vector<Beam> next;
    std::vector<std::int64_t> parents;
    for (std::size_t i = 0; i < best.size(); ++i) {
      const bool ends = is_end(best[i].token);
      Beam beam = open_[static_cast<std::size_t>(best[i].beam)];
      beam.tokens.push_back(best[i].token);
      if (ends || is_last) {
        if (static_cast<std::int64_t>(i) >= options_.beams) continue;
        beam.score = penalized(best[i].score, length_);
        beam.reason = ends               ? StopReason::kEndToken
                      : length_ == most_ ? StopReason::kMaxNewTokens
                                         : StopReason::kPositionsFull;
        finish(std::move(beam));
      } else if (std::ssize(next) < options_.beams) {
        beam.score = best[i].score;
        next.push_back(std::move(beam));
        parents.push_back(best[i].beam);
      }
    }
    open_ = std::move(next);
    return parents;
  }

  void finish(Beam beam) {
    const auto worse = [&](const Beam& other) { return other.score < beam.score; };
    finished_.insert(std::ranges::find_if(finished_, worse), beam);
    if (std::ssize(finished_) > options_.beams) finished_.pop_back();
  }

  bool can_improve() const {
    if (open_.empty()) return false;
    if (std::ssize(finished_) < options_.beams) return true;
    return penalized(open_.front().score, length_) > finished_.back().score;
  }

  BeamResult result() const {
    if (finished_.empty()) return {{prompt_, StopReason::kPositionsFull, ""}, 0};
    const Beam& best = finished_.front();
    BeamResult result{{prompt_, best.reason, ""}, best.score};
    result.generation.tokens.insert(result.generation.tokens.end(), best.tokens.begin(), best.tokens.end());
    result.generation.message =
        fmt::format("{} tokens, score {:.4f} of {} beams", best.tokens.size(), best.score, options_.beams);
    return result;
  }

  SessionReader& reader_;
  const Row& prompt_;
  const BeamOptions& options_;
  std::int64_t most_ = 0;
  std::int64_t room_ = 0;
  std::int64_t length_ = 0;     // tokens behind the prompt of every open beam
  std::vector<Beam> open_;      // best first
  std::vector<Beam> finished_;  // best first, at most `beams`
};

}  // namespace

BeamResult beam_search(SessionReader& reader, const DecoderConfig& config, const Row& prompt,
                       const BeamOptions& options) {
  return Search(reader, config, prompt, options).run();
}

}  // namespace loom::models
