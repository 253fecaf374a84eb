#include "engine/data/tokenizer/regex.h"

#include <oniguruma.h>

#include <array>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"

namespace loom::data {
namespace {

constexpr std::size_t kMostPatternBytes = 8192;
constexpr unsigned long kMostRetriesInMatch = 10'000'000;
constexpr unsigned long kMostRetriesInSearch = 50'000'000;

const OnigUChar* bytes_of(std::string_view text) { return reinterpret_cast<const OnigUChar*>(text.data()); }

std::string problem_of(int code, OnigErrorInfo* info = nullptr) {
  std::array<OnigUChar, ONIG_MAX_ERROR_MESSAGE_LEN> text{};
  const int length = info ? onig_error_code_to_str(text.data(), code, info) : onig_error_code_to_str(text.data(), code);
  return {reinterpret_cast<const char*>(text.data()), static_cast<std::size_t>(length)};
}

void initialize_once() {
  static const int done = [] {
    OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
    return onig_initialize(encodings, 1);
  }();
  require(done == ONIG_NORMAL, "onig_initialize() gives {}", done);
}

}  // namespace

struct RegexScratch::Parts {
  OnigRegion* region = onig_region_new();
  OnigMatchParam* limits = onig_new_match_param();
};

RegexScratch::RegexScratch() : parts_(std::make_unique<Parts>()) {
  require(parts_->region && parts_->limits, "no memory for a search");
  onig_initialize_match_param(parts_->limits);
  onig_set_retry_limit_in_match_of_match_param(parts_->limits, kMostRetriesInMatch);
  onig_set_retry_limit_in_search_of_match_param(parts_->limits, kMostRetriesInSearch);
}

RegexScratch::~RegexScratch() {
  onig_region_free(parts_->region, 1);
  onig_free_match_param(parts_->limits);
}

Regex::Regex(std::string_view pattern, std::string where) : where_(std::move(where)) {
  initialize_once();
  if (pattern.size() > kMostPatternBytes) {
    config_error("{} has {} bytes; a pattern may have {}", where_, pattern.size(), kMostPatternBytes);
  }
  regex_t* compiled = nullptr;
  OnigErrorInfo info{};
  const OnigUChar* begin = bytes_of(pattern);
  const int code = onig_new(&compiled, begin, begin + pattern.size(), ONIG_OPTION_NONE, ONIG_ENCODING_UTF8,
                            ONIG_SYNTAX_DEFAULT, &info);
  if (code != ONIG_NORMAL) {
    config_error("{} is '{}', which Oniguruma does not compile: {}", where_, shown_text(pattern),
                 problem_of(code, &info));
  }
  compiled_ = std::shared_ptr<void>(compiled, [](void* regex) { onig_free(static_cast<regex_t*>(regex)); });
}

std::optional<Range> Regex::search(std::string_view text, std::size_t from, RegexScratch& scratch) const {
  const OnigUChar* begin = bytes_of(text);
  const OnigUChar* end = begin + text.size();
  const auto at = onig_search_with_param(static_cast<regex_t*>(compiled_.get()), begin, end, begin + from, end,
                                         scratch.parts_->region, ONIG_OPTION_NONE, scratch.parts_->limits);
  if (at == ONIG_MISMATCH) return std::nullopt;
  if (at < 0) {
    config_error("{}: Oniguruma gave up on a text of {} bytes, at byte {} or after: {}; simplify the pattern", where_,
                 text.size(), from, problem_of(at));
  }
  return Range{static_cast<std::size_t>(scratch.parts_->region->beg[0]),
               static_cast<std::size_t>(scratch.parts_->region->end[0])};
}

}  // namespace loom::data
