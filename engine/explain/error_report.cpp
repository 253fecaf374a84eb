#include "engine/explain/error_report.h"

#include <nlohmann/json.hpp>

namespace loom::explain {
namespace {

using Json = nlohmann::ordered_json;

void put(Json& json, const char* key, const std::optional<ByteFigure>& figure) {
  if (figure) json[key] = figure->bytes;
}
void put(Json& json, const char* key, const std::optional<std::int64_t>& value) {
  if (value) json[key] = *value;
}
void put(Json& json, const char* key, const std::string& text) {
  if (!text.empty()) json[key] = text;
}

// A text without "this process" names it by its number: then the first of the list is it.
Json fields_of(const OutOfMemory& text) {
  Json json = Json::object();
  put(json, "platform", text.platform);
  put(json, "device", text.device);
  put(json, "tried", text.tried);
  put(json, "total", text.total);
  put(json, "free", text.free);
  put(json, "allowed", text.allowed);
  if (!text.in_use && !text.processes.empty()) {
    json["pid"] = text.processes.front().pid;
    json["in_use"] = text.processes.front().in_use.bytes;
  }
  put(json, "in_use", text.in_use);
  put(json, "allocated", text.allocated);
  put(json, "active", text.active);
  put(json, "private_pools", text.private_pools);
  put(json, "reserved_unallocated", text.reserved_unallocated);
  put(json, "reserved", text.reserved);
  return json;
}

Json fields_of(const NcclTimeout& text) {
  Json json = {{"rank", text.rank}};
  put(json, "group", text.group);
  json["seq"] = text.seq;
  json["op"] = text.op;
  put(json, "numel_in", text.numel_in);
  put(json, "numel_out", text.numel_out);
  json["timeout_ms"] = text.timeout_ms;
  json["ran_ms"] = text.ran_ms;
  return json;
}

Json fields_of(const NcclState& text) {
  Json json = {{"rank", text.rank}};
  put(json, "group", text.group);
  put(json, "at", text.at);
  json["last_enqueued"] = text.last_enqueued;
  json["last_completed"] = text.last_completed;
  return json;
}

Json fields_of(const FingerPrint& print) {
  Json json = {{"seq", print.seq}, {"op", print.op}};
  put(json, "numel", print.numel);
  return json;
}

Json fields_of(const CollectiveMismatch& text) {
  Json json = {{"rank", text.rank}, {"own", fields_of(text.own)}, {"other_rank", text.other_rank}};
  if (text.other) json["other"] = fields_of(*text.other);
  return json;
}

Json fields_of(const BarrierFailure& text) {
  Json json = Json::object();
  put(json, "rank", text.rank);
  if (!text.missing.empty()) json["missing"] = text.missing;
  if (text.timeout_ms > 0) json["timeout_ms"] = text.timeout_ms;
  if (text.collective) json["collective"] = fields_of(*text.collective);
  return json;
}

Json fields_of(const GlooError& text) {
  Json json = Json::object();
  if (text.timeout_ms > 0) json["timeout_ms"] = text.timeout_ms;
  put(json, "text", text.text);
  return json;
}

Json fields_of(const HcclError& text) {
  Json json = {{"code", text.code}};
  put(json, "text", text.text);
  put(json, "pid", text.pid);
  put(json, "rank", text.rank);
  put(json, "remote_rank", text.remote_rank);
  put(json, "tag", text.tag);
  put(json, "rank_size", text.rank_size);
  return json;
}

std::string_view kind_of_hccl(const HcclError& error) {
  if (error.code == "EI0002") return "hccl_timeout";
  return error.code == "EI0006" ? "hccl_connect" : "hccl_error";
}

}  // namespace

std::string_view kind_of(const ErrorReport& report) {
  if (std::holds_alternative<OutOfMemory>(report.what)) return "oom";
  if (std::holds_alternative<NcclTimeout>(report.what)) return "nccl_timeout";
  if (std::holds_alternative<NcclState>(report.what)) return "nccl_state";
  if (std::holds_alternative<CollectiveMismatch>(report.what)) return "gloo_mismatch";
  if (std::holds_alternative<BarrierFailure>(report.what)) return "gloo_barrier";
  if (const auto* gloo = std::get_if<GlooError>(&report.what)) return gloo->timed_out ? "gloo_timeout" : "gloo_closed";
  return kind_of_hccl(std::get<HcclError>(report.what));
}

nlohmann::ordered_json to_json(const ErrorReport& report) {
  Json json = {{"kind", kind_of(report)}, {"line", report.line}};
  put(json, "global_rank", report.speaker.rank);
  put(json, "local_rank", report.speaker.local_rank);
  json["fields"] = std::visit([](const auto& text) { return fields_of(text); }, report.what);
  return json;
}

}  // namespace loom::explain
