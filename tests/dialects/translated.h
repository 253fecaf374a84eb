// Files of dialects as tests write them, and what they come to.
#pragma once

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>
#include <string>
#include <vector>

#include "engine/core/error.h"
#include "engine/dialects/hub_models.h"
#include "engine/dialects/resolved.h"
#include "engine/dialects/translate.h"
#include "tests/support/files.h"

namespace loom::dialects {

struct Asked {
  int world = 8;
  job::Texts overrides = {};
  std::map<std::string, std::string> flags = {};  // on the command line
  int nodes = 1;
  std::string file = "f.yaml";
};

inline Context context_of(const Asked& asked) {
  Context context;
  context.world = asked.world;
  context.world_given = asked.world > 0;
  context.world = std::max(1, asked.world);
  context.nodes = asked.nodes;
  context.models = hub_models();
  context.flag = [flags = asked.flags](std::string_view flag) -> std::optional<std::string> {
    const auto found = flags.find(std::string(flag));
    return found == flags.end() ? std::nullopt : std::optional(found->second);
  };
  return context;
}

inline Translation read(const std::string& text, const Asked& asked = {}) {
  return translate_text(text, asked.file, asked.overrides, context_of(asked));
}

// "--lr 5e-5" of the last such flag, its words; "none" where it is not set.
inline std::string flag_in(const Translation& file, std::string_view name) {
  std::string text = "none";
  for (const Setting& setting : file.flags) {
    if (setting.name == name) text = setting.words.empty() ? "on" : fmt::format("{}", fmt::join(setting.words, " "));
  }
  return text;
}

inline std::string key_in(const Translation& file, std::string_view name) {
  const auto found = std::ranges::find(file.keys, name, &Setting::name);
  return found == file.keys.end() ? "none" : found->words.front();
}

inline std::string origin_of(const Translation& file, std::string_view name) {
  for (const auto* settings : {&file.flags, &file.keys}) {
    const auto found = std::ranges::find(*settings, name, &Setting::name);
    if (found != settings->end()) return found->origin;
  }
  return "none";
}

inline std::string refusal(const std::string& text, const Asked& asked = {}) {
  return test::message_of<ConfigError>([&] { raise_refused(read(text, asked)); });
}

}  // namespace loom::dialects
