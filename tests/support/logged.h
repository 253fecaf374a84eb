// What is logged as long as the object lives, a line a message: "warning: text".
#pragma once

#include <memory>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>
#include <sstream>
#include <string>

#include "engine/core/log.h"

namespace loom::test {

class Logged {
 public:
  Logged() {
    const auto sink = std::make_shared<spdlog::sinks::ostream_sink_mt>(text_);
    sink->set_pattern("%l: %v");
    logger().sinks().push_back(sink);
  }
  ~Logged() { logger().sinks().pop_back(); }
  Logged(const Logged&) = delete;
  Logged& operator=(const Logged&) = delete;
  std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
};

}  // namespace loom::test
