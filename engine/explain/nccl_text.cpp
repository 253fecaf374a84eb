#include <algorithm>

#include "engine/explain/error_text.h"
#include "engine/explain/text_scanner.h"

namespace loom::explain {
namespace {

constexpr std::size_t kBracketBytes = 256;  // of "[PG ID 0 PG GUID 0(default_pg) Rank 0]"
constexpr int kBrackets = 8;                // that are looked at before a watchdog's words

struct Member {
  std::string group;
  std::int64_t rank = 0;
};

// "0 (default_pg)" and "0(default_pg)" are one group.
std::string group_of(std::string_view text) {
  std::string group(text);
  std::erase(group, ' ');
  return group;
}

// "Rank 0", "PG 1 Rank 0", "PG ID 0 PG GUID 0(default_pg) Rank 0": the inside of a bracket.
std::optional<Member> member_of(std::string_view inside) {
  const auto at = inside.rfind("Rank ");
  if (at == std::string_view::npos) return std::nullopt;
  TextScanner rank(inside.substr(at + 5));
  const auto number = rank.whole();
  if (!number || !rank.rest().empty()) return std::nullopt;
  Member member{.group = {}, .rank = *number};
  std::string_view group = inside.substr(0, at);
  for (const std::string_view word : {"PG GUID ", "PG ID ", "PG "}) {
    const auto begin = group.find(word);
    if (begin == std::string_view::npos) continue;
    member.group = group_of(group.substr(begin + word.size()));
    break;
  }
  return member;
}

// The last bracket with a rank before a watchdog's words.
std::optional<Member> member_before(std::string_view before) {
  auto end = before.rfind(']');
  for (int tried = 0; tried < kBrackets && end != std::string_view::npos && end > 0; ++tried) {
    const std::size_t from = end < kBracketBytes ? 0 : end - kBracketBytes;
    const std::string_view near = before.substr(from, end - from);
    const auto begin = near.rfind('[');
    if (begin == std::string_view::npos) return std::nullopt;
    if (auto member = member_of(near.substr(begin + 1))) return member;
    end = before.rfind(']', end - 1);
  }
  return std::nullopt;
}

// The parts of "SeqNum=7753, OpType=_REDUCE_SCATTER_BASE, ..., Timeout(ms)=600000": unknown names are passed over.
bool read_work(TextScanner& text, NcclTimeout& timeout) {
  bool has_seq = false;
  do {
    const auto name = text.until("=", 32);
    if (!name) return false;
    if (*name == "OpType") {
      const auto end = text.rest().find_first_of(",)");
      timeout.op = text.rest().substr(0, std::min<std::size_t>(end, 64));
      text.take(timeout.op);
      continue;
    }
    const auto value = text.whole();
    if (!value) return false;
    if (*name == "SeqNum") timeout.seq = *value, has_seq = true;
    if (*name == "NumelIn") timeout.numel_in = value;
    if (*name == "NumelOut") timeout.numel_out = value;
    if (*name == "Timeout(ms)") timeout.timeout_ms = *value;
  } while (text.take(", "));
  return has_seq && text.take(")");
}

// Behind any of the literals.
std::optional<std::int64_t> behind(std::string_view text, std::initializer_list<std::string_view> literals) {
  for (const std::string_view literal : literals) {
    if (const auto number = whole_behind(text, literal)) return number;
  }
  return std::nullopt;
}

}  // namespace

std::optional<NcclTimeout> read_nccl_timeout(std::string_view line) {
  constexpr std::string_view kWords = "Watchdog caught collective operation timeout: ";
  const auto at = line.find(kWords);
  if (at == std::string_view::npos) return std::nullopt;
  const auto member = member_before(line.substr(0, at));
  TextScanner text(line.substr(at + kWords.size()));
  NcclTimeout timeout;
  if (!member || !text.take("WorkNCCL(") || !read_work(text, timeout)) return std::nullopt;
  timeout.rank = member->rank;
  timeout.group = member->group;
  if (text.take(" ran for ")) timeout.ran_ms = text.whole().value_or(0);
  return timeout;
}

std::optional<NcclState> read_nccl_state(std::string_view line) {
  const auto at = line.find("last enqueued ");
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view behind_it = line.substr(at);
  const auto enqueued = behind(behind_it, {"last enqueued NCCL work: ", "last enqueued work: "});
  const auto completed = behind(behind_it, {"last completed NCCL work: ", "last completed work: "});
  const auto member = member_before(line.substr(0, at));
  if (!enqueued || !completed || !member) return std::nullopt;
  return NcclState{
      .rank = member->rank,
      .group = member->group,
      .at = behind(line.substr(0, at), {"at work: ", "at NCCL work: ", "at work sequence id: "}),
      .last_enqueued = *enqueued,
      .last_completed = *completed,
  };
}

}  // namespace loom::explain
