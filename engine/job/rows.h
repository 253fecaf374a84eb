// The notation of rows of the table:
//   real<&Job::schedule, &Schedule::lr>("--lr", kAboveZero, "Peak learning rate")
// The template arguments are the members that lead from the job to the value. Private to engine/job.
#pragma once

#include <filesystem>
#include <initializer_list>
#include <limits>
#include <optional>
#include <type_traits>
#include <utility>

#include "engine/job/choices.h"
#include "engine/job/key.h"

namespace loom::job {

// The sections, as rows name them.
using Launch = launch::LaunchOptions;
using Model = models::ModelOptions;
using Data = data::DataOptions;
using Objective = objective::ObjectiveOptions;
using Optimizer = train::OptimizerOptions;
using Schedule = train::ScheduleOptions;
using Parallel = train::ParallelOptions;
using Pipeline = train::PipelineParallel;
using Memory = train::MemoryOptions;
using Swap = offload::SwapOptions;
using Kernels = train::KernelChoice;
using Checkpoint = train::CheckpointOptions;
using Log = log::LogOptions;
using Report = observe::ReportOptions;
using Profile = observe::ProfileOptions;
using Sample = SampleOptions;

inline constexpr Range kAboveZero{[](double x) { return x > 0; }, "a number above 0"};
inline constexpr Range kFromZero{[](double x) { return x >= 0; }, "a number of at least 0"};
inline constexpr Range kBelowOne{[](double x) { return x >= 0 && x < 1; }, "a number from 0 to below 1"};
inline constexpr Range kToOne{[](double x) { return x >= 0 && x <= 1; }, "a number from 0 to 1"};
inline constexpr Range kBelowHalf{[](double x) { return x >= 0 && x < 0.5; }, "a number from 0 to below 0.5"};
inline constexpr Range kShare{[](double x) { return x > 0 && x <= 1; }, "a number above 0 and at most 1"};

// --- members as values and back

template <class T>
inline constexpr bool kIsOptional = false;
template <class T>
inline constexpr bool kIsOptional<std::optional<T>> = true;

template <class T>
Value to_value(const T& member) {
  if constexpr (kIsOptional<T>) {
    return member ? to_value(*member) : Value(None{});
  } else if constexpr (std::is_same_v<T, bool> || std::is_same_v<T, double> || std::is_same_v<T, std::string> ||
                       std::is_same_v<T, Texts> || std::is_same_v<T, Numbers>) {
    return member;
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<std::int64_t>(member);
  } else if constexpr (std::is_enum_v<T>) {
    return word_of_choice(member);
  } else if constexpr (std::is_same_v<T, std::filesystem::path>) {
    return member.string();
  } else if constexpr (std::is_integral_v<typename T::value_type>) {
    return Numbers(member.begin(), member.end());
  } else {
    Texts texts;
    for (const auto& path : member) texts.push_back(path.string());
    return texts;
  }
}

template <class T>
void from_value(const Value& value, T& member) {
  if constexpr (kIsOptional<T>) {
    if (std::holds_alternative<None>(value)) return member.reset();
    from_value(value, member.emplace());
  } else if constexpr (std::is_same_v<T, bool> || std::is_same_v<T, double> || std::is_same_v<T, std::string>) {
    member = std::get<T>(value);
  } else if constexpr (std::is_integral_v<T>) {
    member = static_cast<T>(std::get<std::int64_t>(value));
  } else if constexpr (std::is_enum_v<T>) {
    member = choice_of<T>(std::get<std::string>(value));
  } else if constexpr (std::is_same_v<T, std::filesystem::path>) {
    member = std::get<std::string>(value);
  } else if constexpr (std::is_integral_v<typename T::value_type>) {
    const Numbers& numbers = std::get<Numbers>(value);
    member = T(numbers.begin(), numbers.end());
  } else {
    const Texts& texts = std::get<Texts>(value);
    member = T(texts.begin(), texts.end());
  }
}

// --- rows

template <auto... kPath, class J>
constexpr auto& at(J& job) {
  return (job.*....*kPath);
}

template <auto... kPath>
using MemberOf = std::remove_cvref_t<decltype(at<kPath...>(std::declval<Job&>()))>;

template <class T>
struct WithoutOptional {
  using Type = T;
};
template <class T>
struct WithoutOptional<std::optional<T>> {
  using Type = T;
};
template <auto... kPath>
using Inner = typename WithoutOptional<MemberOf<kPath...>>::Type;

template <auto... kPath>
Key row(std::string_view flags, Kind kind, std::string_view type, std::string_view about) {
  Key key{.flags = flags, .kind = kind, .type = type, .about = about};
  key.optional = kIsOptional<MemberOf<kPath...>>;
  key.get = [](const Job& job) { return to_value(at<kPath...>(job)); };
  key.set = [](Job& job, const Value& value) { from_value(value, at<kPath...>(job)); };
  return key;
}

template <auto... kPath>
Key toggle(std::string_view flags, std::string_view about) {
  return row<kPath...>(flags, Kind::kToggle, "", about);
}
template <auto... kPath>
Key whole(std::string_view flags, std::int64_t least, std::string_view about) {
  using WholeNumber = Inner<kPath...>;
  constexpr auto kMost = std::numeric_limits<WholeNumber>::max();
  Key key = row<kPath...>(flags, Kind::kWhole, "N", about);
  key.least = least;
  key.most = std::cmp_less(kMost, key.most) ? static_cast<std::int64_t>(kMost) : key.most;
  return key;
}
template <auto... kPath>
Key real(std::string_view flags, Range range, std::string_view about) {
  Key key = row<kPath...>(flags, Kind::kReal, "X", about);
  key.range = range;
  return key;
}
template <auto... kPath>
Key choice(std::string_view flags, std::string_view about) {
  Key key = row<kPath...>(flags, Kind::kChoice, "", about);
  key.words = choice_texts<Inner<kPath...>>;
  return key;
}
// A text that is one of a few.
template <auto... kPath>
Key one_of(std::string_view flags, Texts (*words)(), std::string_view about) {
  Key key = row<kPath...>(flags, Kind::kChoice, "", about);
  key.words = words;
  return key;
}
template <auto... kPath>
Key text(std::string_view flags, std::string_view type, std::string_view about) {
  return row<kPath...>(flags, Kind::kText, type, about);
}
template <auto... kPath>
Key texts(std::string_view flags, std::string_view type, std::string_view about) {
  return row<kPath...>(flags, Kind::kTexts, type, about);
}
template <auto... kPath>
Key numbers(std::string_view flags, std::int64_t least, std::string_view about) {
  Key key = row<kPath...>(flags, Kind::kNumbers, "N", about);
  key.least = least;
  return key;
}

// Appends rows under a heading of the help.
void add_under(std::string_view heading, std::initializer_list<Key> rows, std::vector<Key>& table);

void add_model_keys(std::vector<Key>& table);
void add_shape_keys(std::vector<Key>& table);
void add_data_keys(std::vector<Key>& table);
void add_objective_keys(std::vector<Key>& table);
void add_schedule_keys(std::vector<Key>& table);
void add_optimizer_keys(std::vector<Key>& table);
void add_recompute_keys(std::vector<Key>& table);
void add_execution_keys(std::vector<Key>& table);
void add_memory_keys(std::vector<Key>& table);
void add_output_keys(std::vector<Key>& table);
void add_checkpoint_keys(std::vector<Key>& table);
void add_log_keys(std::vector<Key>& table);
void add_foreign_keys(std::vector<Key>& table);

}  // namespace loom::job
