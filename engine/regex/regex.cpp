#include "engine/regex/regex.h"

#include <oniguruma.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <ctime>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"

namespace loom::regex {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::nanoseconds;

constexpr std::size_t kMostPatternBytes = 8192;
constexpr unsigned kMostLevels = 250;
constexpr unsigned long kMostRetries = 10'000'000;     // of a match; five times as many of a search
constexpr unsigned long kMostRetriesOfFull = 100'000;  // paths of modules are short
constexpr std::size_t kMostStackEntries = 1U << 24U;   // of 40 bytes
constexpr nanoseconds kTimeAtFirst = std::chrono::seconds(1);
constexpr nanoseconds kTimePerByte = std::chrono::microseconds(10);
// What a search may read before it looks at the clock, if each beginning reads all that is left, and a match before it
// begins again with more retries, if each of them does: about 0.1 s.
constexpr std::size_t kReadBetweenLooks = std::size_t{1} << 25U;
constexpr std::size_t kReadByMatch = std::size_t{1} << 25U;
// A search that does not get to look takes no longer; if it did, its process was stopped meanwhile.
constexpr nanoseconds kMostWithoutLook = std::chrono::milliseconds(500);

const OnigUChar* bytes_of(std::string_view text) { return reinterpret_cast<const OnigUChar*>(text.data()); }

std::string problem_of(int code, OnigErrorInfo* info = nullptr) {
  std::array<OnigUChar, ONIG_MAX_ERROR_MESSAGE_LEN> text{};
  const int length = info ? onig_error_code_to_str(text.data(), code, info) : onig_error_code_to_str(text.data(), code);
  return {reinterpret_cast<const char*>(text.data()), static_cast<std::size_t>(length)};
}

void initialize_once() {
  static const int done = [] {
    OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
    onig_set_parse_depth_limit(kMostLevels);
    return onig_initialize(encodings, 1);
  }();
  require(done == ONIG_NORMAL, "onig_initialize() gives {}", done);
}

nanoseconds cpu_time() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + nanoseconds(time.tv_nsec);
}

struct Free {
  void operator()(void* compiled) const { onig_free(static_cast<regex_t*>(compiled)); }
};

std::shared_ptr<void> compiled(std::string_view pattern, OnigSyntaxType* syntax, std::string_view shown,
                               const std::string& where) {
  regex_t* made = nullptr;
  OnigErrorInfo info{};
  const OnigUChar* begin = bytes_of(pattern);
  const int code = onig_new(&made, begin, begin + pattern.size(), ONIG_OPTION_NONE, ONIG_ENCODING_UTF8, syntax, &info);
  if (code != ONIG_NORMAL) {
    config_error("{} is '{}', which is no regular expression: {}; correct it", where, shown_text(shown),
                 problem_of(code, &info));
  }
  return {made, Free()};
}

void check_pattern(std::string_view pattern, OnigSyntaxType* syntax, const std::string& where) {
  initialize_once();
  if (pattern.size() > kMostPatternBytes) {
    config_error("{} has {} bytes; a pattern may have {}", where, pattern.size(), kMostPatternBytes);
  }
  if (const auto at = invalid_utf8(pattern)) {
    config_error("{} is '{}', which is no UTF-8 at byte {}; write it in UTF-8", where, shown_text(pattern), *at);
  }
  compiled(pattern, syntax, pattern, where);
}

// Whether a match that has read far is certain: nothing repeats without end but what ends the pattern.
bool matches_what_it_reads(std::string_view pattern) {
  if (pattern.find("(?") != std::string_view::npos || pattern.find("\\g") != std::string_view::npos) return false;
  const std::size_t open = pattern.find(",}");
  const std::size_t repeat = std::min(pattern.find_first_of("*+"), open == std::string_view::npos ? open : open + 1);
  return repeat == std::string_view::npos || repeat + 1 == pattern.size();
}

bool is_limit(int code) {
  return code == ONIGERR_RETRY_LIMIT_IN_MATCH_OVER || code == ONIGERR_RETRY_LIMIT_IN_SEARCH_OVER;
}

}  // namespace

struct RegexScratch::Parts {
  Parts() {
    require(region && limits, "no memory for a search");
    onig_initialize_match_param(limits);
    onig_set_progress_callout_of_match_param(limits, begins);
    onig_set_callout_user_data_of_match_param(limits, this);
  }
  ~Parts() {
    onig_region_free(region, 1);
    onig_free_match_param(limits);
  }
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;

  void allow(unsigned long retries, std::size_t rest) {
    onig_set_retry_limit_in_match_of_match_param(limits, retries);
    onig_set_retry_limit_in_search_of_match_param(limits, 5 * retries);
    onig_set_match_stack_limit_size_of_match_param(
        limits, static_cast<unsigned>(std::min(65536 + 16 * rest, kMostStackEntries)));
  }

  int call(regex_t* regex, std::string_view text, std::size_t from) {
    begin_of_call = from;
    unread = 0;
    cpu_at_first_look.reset();
    if (counts_processor_time) cpu_at_first_look = cpu_time();
    const auto before = Clock::now();
    const OnigUChar* begin = bytes_of(text);
    const OnigUChar* end = begin + text.size();
    const int at = onig_search_with_param(regex, begin, end, begin + from, end, region, ONIG_OPTION_NONE, limits);
    taken += cpu_at_first_look ? cpu_time() - *cpu_at_first_look
                               : std::min<nanoseconds>(Clock::now() - before, kMostWithoutLook);
    return at;
  }

  // With few retries at first: a pattern that reads far at each of them is seen before it has had them all. How far
  // each reads may grow with their number, so that time grows with its square.
  int call_in_steps(regex_t* regex, std::string_view text, std::size_t from) {
    const std::size_t rest = text.size() - from;
    auto retries = std::clamp<unsigned long>(kReadByMatch / (rest + 1), 1000, kMostRetries);
    while (true) {
      allow(retries, rest);
      const nanoseconds before = taken;
      const int at = call(regex, text, from);
      const std::int64_t spent = std::max<std::int64_t>((taken - before).count(), 1);
      if (!is_limit(at) || retries == kMostRetries || is_over()) return at;
      const auto left = static_cast<double>((allowed(0) - taken).count());
      const double growth = std::clamp(std::sqrt(left / static_cast<double>(spent)), 1.25, 4.0);
      retries = std::min(static_cast<unsigned long>(growth * static_cast<double>(retries)), kMostRetries);
    }
  }

  // Oniguruma calls it wherever a match may begin.
  static int begins(OnigCalloutArgs* args, void* parts) {
    const OnigUChar* at = onig_get_current_by_callout_args(args);
    const auto rest = static_cast<std::size_t>(onig_get_string_end_by_callout_args(args) - at);
    auto& self = *static_cast<Parts*>(parts);
    self.unread += rest;
    if (self.unread < kReadBetweenLooks) return ONIG_CALLOUT_SUCCESS;
    self.unread = 0;
    return self.may_go_on(static_cast<std::size_t>(at - onig_get_string_by_callout_args(args))) ? ONIG_CALLOUT_SUCCESS
                                                                                                : ONIG_ABORT;
  }

  bool may_go_on(std::size_t reached) {
    const nanoseconds now = cpu_time();
    if (!cpu_at_first_look) cpu_at_first_look = now;
    return !is_over(now - *cpu_at_first_look, reached - begin_of_call);
  }

  nanoseconds allowed(std::size_t more_bytes) const {
    return kTimeAtFirst + kTimePerByte * static_cast<std::int64_t>(passed + more_bytes);
  }
  // The time of short calls is that of the wall, which is cheap to read and counts waiting for a core. Where it is too
  // long, all begins again in time of the processor.
  bool is_over(nanoseconds more = {}, std::size_t more_bytes = 0) {
    if (taken + more <= allowed(more_bytes)) return false;
    if (std::exchange(counts_processor_time, true)) return true;
    taken = {};
    passed = 0;
    return false;
  }

  OnigRegion* region = onig_region_new();
  OnigMatchParam* limits = onig_new_match_param();
  nanoseconds taken{0};
  std::size_t passed = 0;  // bytes
  bool counts_processor_time = false;
  // --- of the call that runs ---
  std::size_t begin_of_call = 0;
  std::size_t unread = 0;
  std::optional<nanoseconds> cpu_at_first_look;
};

RegexScratch::RegexScratch() : parts_(std::make_unique<Parts>()) {}
RegexScratch::~RegexScratch() = default;

Regex::Regex(std::string_view pattern, std::string where) : where_(std::move(where)), pattern_(pattern) {
  check_pattern(pattern, ONIG_SYNTAX_ONIGURUMA, where_);
  // A callout in front, which every match begins with: where there are alternatives, in front of the first. It takes
  // some of Oniguruma's short cuts away.
  const std::string_view callout = matches_what_it_reads(pattern) ? "" : "(?{begins})";
  compiled_ = compiled(fmt::format("{}{}", callout, pattern), ONIG_SYNTAX_ONIGURUMA, pattern, where_);
}

std::optional<Range> Regex::search(std::string_view text, std::size_t from, RegexScratch& scratch) const {
  RegexScratch::Parts& parts = *scratch.parts_;
  const int at = parts.call_in_steps(static_cast<regex_t*>(compiled_.get()), text, from);
  const std::size_t reached = at >= 0 ? static_cast<std::size_t>(parts.region->end[0]) : text.size();
  const bool is_answer = at >= 0 || at == ONIG_MISMATCH;
  if (is_answer) parts.passed += std::max(reached, from) - from;
  if (!is_answer || parts.is_over()) {
    // Which limit came first depends on the machine's speed: the text does not say.
    const bool is_too_slow = is_answer || at == ONIG_ABORT || is_limit(at);
    config_error(
        "{} is '{}', which takes too much work on a text of {} bytes, at byte {} or after{}; simplify the pattern",
        where_, shown_text(pattern_), text.size(), from, is_too_slow ? "" : ": " + problem_of(at));
  }
  if (at == ONIG_MISMATCH) return std::nullopt;
  return Range{static_cast<std::size_t>(parts.region->beg[0]), reached};
}

FullMatch::FullMatch(std::string_view pattern, std::string where, Part part)
    : where_(std::move(where)), pattern_(pattern), part_(part) {
  check_pattern(pattern, ONIG_SYNTAX_PYTHON, where_);
  compiled_ = compiled(fmt::format("{}(?:{}){}\\Z", part == Part::kLastNames ? "(.*\\.)?" : "", pattern,
                                   part == Part::kBeginning ? ".*" : ""),
                       ONIG_SYNTAX_PYTHON, pattern, where_);
}

bool FullMatch::matches(std::string_view text, RegexScratch& scratch) const {
  if (invalid_utf8(text)) return false;
  RegexScratch::Parts& parts = *scratch.parts_;
  parts.allow(kMostRetriesOfFull, text.size());
  const nanoseconds before = cpu_time();
  const OnigUChar* begin = bytes_of(text);
  const int end = onig_match_with_param(static_cast<regex_t*>(compiled_.get()), begin, begin + text.size(), begin,
                                        parts.region, ONIG_OPTION_NONE, parts.limits);
  parts.taken += cpu_time() - before;
  parts.passed += text.size();
  const bool is_answer = end >= 0 || end == ONIG_MISMATCH;
  if (!is_answer || parts.is_over()) {
    config_error("{} is '{}', which takes too much work on '{}': {}; simplify the pattern", where_,
                 shown_text(pattern_), shown_text(text), is_answer ? "too many texts are matched so" : problem_of(end));
  }
  return end >= 0;
}

}  // namespace loom::regex
