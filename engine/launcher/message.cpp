#include "engine/launcher/message.h"

#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"

namespace loom::launcher {
namespace {

using Json = nlohmann::json;

// Of a text in a message, in bytes: JSON takes up to six for one of them, of a report, which is escaped, two.
std::size_t longest(std::string_view name) { return name == "report" ? 16384 : name == "last_lines" ? 4096 : 2000; }

// Every message lists its fields once, for both directions.
template <class Fields>
void visit(Join& m, Fields& f) {
  f("tool", m.tool), f("version", m.version), f("run_id", m.run_id), f("host", m.host), f("role", m.role);
  f("least", m.least), f("most", m.most), f("workers", m.workers), f("node_rank", m.node_rank);
  f("has_coordinator", m.has_coordinator);
}
template <class Fields>
void visit(Failure& m, Fields& f) {
  f("attempt", m.attempt), f("rank", m.rank), f("local_rank", m.local_rank), f("exit_code", m.exit_code);
  f("signal", m.signal), f("unix_ms", m.unix_ms), f("host", m.host), f("last_lines", m.last_lines);
}
template <class Fields>
void visit(Succeeded& m, Fields& f) {
  f("attempt", m.attempt);
}
template <class Fields>
void visit(Stopped&, Fields&) {}
template <class Fields>
void visit(Leaving& m, Fields& f) {
  f("signal", m.signal), f("reason", m.reason);
}
template <class Fields>
void visit(Refused& m, Fields& f) {
  f("reason", m.reason);
}
template <class Fields>
void visit(Assigned& m, Fields& f) {
  f("attempt", m.attempt), f("restarts", m.restarts), f("node", m.node), f("nodes", m.nodes);
  f("first_rank", m.first_rank), f("world_size", m.world_size);
  f("first_role_rank", m.first_role_rank), f("role_world_size", m.role_world_size);
}
template <class Fields>
void visit(Stop& m, Fields& f) {
  f("signal", m.signal), f("reason", m.reason);
}
template <class Fields>
void visit(End& m, Fields& f) {
  f("status", m.status), f("signal", m.signal), f("report", m.report);
}
template <class Fields>
void visit(Heartbeat&, Fields&) {}

constexpr const char* kNames[] = {"join",    "failure",  "succeeded", "stopped", "leaving",
                                  "refused", "assigned", "stop",      "end",     "heartbeat"};
static_assert(std::size(kNames) == std::variant_size_v<Message>);

struct Writer {
  Json& json;
  void operator()(const char* name, const std::string& text) { json[name] = text.substr(0, longest(name)); }
  template <class Value>
  void operator()(const char* name, const Value& value) {
    json[name] = value;
  }
};

// Throws what nlohmann::json throws.
struct Reader {
  const Json& json;
  void operator()(const char* name, std::string& text) { text = json.at(name).get_ref<const std::string&>(); }
  void operator()(const char* name, bool& value) { value = json.at(name).get_ref<const bool&>(); }
  template <class Integer>
  void operator()(const char* name, Integer& value) {
    const Json& found = json.at(name);
    const auto number = found.is_number_integer() ? found.get<std::int64_t>() : -1;
    if (!found.is_number_integer() || !std::in_range<Integer>(number)) raise<CommError>("{} is no number", name);
    value = static_cast<Integer>(number);
  }
};

template <std::size_t kAt = 0>
Message read(const std::string& name, const Json& json) {
  if constexpr (kAt == std::variant_size_v<Message>) {
    raise<CommError>("unknown message {}", shown_text(name));
  } else {
    if (name != kNames[kAt]) return read<kAt + 1>(name, json);
    std::variant_alternative_t<kAt, Message> message;
    Reader reader{json};
    visit(message, reader);
    return message;
  }
}

}  // namespace

std::string encode(const Message& message) {
  Json json = {{"type", kNames[message.index()]}};
  Writer writer{json};
  Message copy = message;
  std::visit([&](auto& fields) { visit(fields, writer); }, copy);
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Message decode(std::string_view text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) raise<CommError>("{} is no message of a launcher", shown_text(text));
  try {
    return read(json.at("type").get_ref<const std::string&>(), json);
  } catch (const Json::exception& error) {
    raise<CommError>("{} is no message of a launcher: {}", shown_text(text), error.what());
  }
}

std::string frame_of(const Message& message) {
  const std::string text = encode(message);
  std::string frame;
  for (std::size_t i = 0; i < kHeadBytes; ++i) frame += static_cast<char>((text.size() >> (8 * i)) & 0xFFU);
  return frame + text;
}

std::size_t length_in(std::string_view head) {
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < kHeadBytes; ++i) bytes |= std::size_t{static_cast<unsigned char>(head[i])} << (8 * i);
  return bytes;
}

}  // namespace loom::launcher
