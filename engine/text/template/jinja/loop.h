// The object behind `loop`. Private to engine/text.
#pragma once

#include <algorithm>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/text/template/jinja/value.h"

namespace loom::data::jinja {

// The loop's condition is evaluated for an item when it is reached, one ahead if the body looks ahead.
struct Loop {
  using Keep = std::function<bool(const Value&)>;

  Loop(std::vector<Value> all, Keep condition, int nesting)
      : items(std::move(all)), keep(std::move(condition)), level(nesting) {
    for (const Value& item : items) deepest = std::max(deepest, item.depth());
  }

  int depth() const { return deepest + 1; }

  // Makes the next kept item current; false behind the last one.
  bool advance() {
    if (!has_next()) return false;
    previous = std::exchange(current, items[at++]);
    ++index;
    looked_ahead = false;
    return true;
  }
  bool has_next() {
    if (looked_ahead) return at < items.size();
    while (at < items.size() && !is_kept(items[at])) ++at;
    looked_ahead = true;
    return at < items.size();
  }
  std::size_t length() {
    if (keep) {
      std::vector<Value> kept(items.begin(), items.begin() + static_cast<std::ptrdiff_t>(at));
      const std::size_t before = kept.size();
      for (std::size_t i = at; i < items.size(); ++i) {
        const bool known = i == at && looked_ahead;
        if (known || is_kept(items[i])) kept.push_back(items[i]);
      }
      items = std::move(kept);
      at = before;
      looked_ahead = true;
      keep = nullptr;
      dropped = before - static_cast<std::size_t>(index);
    }
    return items.size() - dropped;
  }

  std::vector<Value> items;
  Keep keep;
  int level = 1;
  int deepest = 0;
  std::size_t at = 0;       // of the next item
  std::size_t dropped = 0;  // items before `at` that the condition rejected
  std::int64_t index = 0;   // of the current item, from 1
  bool looked_ahead = false;
  bool is_asking = false;  // its condition is being evaluated
  Value current = {};
  Value previous = Value::undefined("there is no previous item");
  Value again = {};  // for a recursive loop: renders its body for other items

 private:
  // The condition may call a macro that has this loop in a namespace.
  bool is_kept(const Value& item) {
    if (!keep) return true;
    if (is_asking) fail("the condition of a loop asks for what follows in that loop");
    is_asking = true;
    const bool kept = keep(item);
    is_asking = false;
    return kept;
  }
};

}  // namespace loom::data::jinja
