#include "engine/comm/tcp/address.h"

#include "engine/core/error.h"
#include "engine/core/parse_number.h"
#include "engine/core/shown_text.h"

namespace loom::comm::tcp {

std::string to_text(const Address& address) {
  const bool six = address.host.find(':') != std::string::npos;
  return six ? fmt::format("[{}]:{}", address.host, address.port) : fmt::format("{}:{}", address.host, address.port);
}

Address parse_address(std::string_view text, std::string_view what, std::uint16_t port) {
  const auto refuse = [&] {
    config_error("{} is '{}', expected HOST:PORT with a port of 1 to 65535", what, shown_text(text));
  };
  std::string_view host = text, number;
  const std::size_t bracket = text.starts_with('[') ? text.find(']') : 0;
  if (bracket == std::string_view::npos) refuse();
  const std::size_t colon = text.find(':', bracket);
  const bool bare_six = bracket == 0 && colon != std::string_view::npos && text.find(':', colon + 1) != colon &&
                        text.find(':', colon + 1) != std::string_view::npos;
  if (colon != std::string_view::npos && !bare_six) {
    host = text.substr(0, colon);
    number = text.substr(colon + 1);
    const auto parsed = parse_number<int>(number);
    if (!parsed || *parsed < 1 || *parsed > 65535) refuse();
    port = static_cast<std::uint16_t>(*parsed);
  }
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  if (host.empty() || port == 0) refuse();
  return {std::string(host), port};
}

bool is_loopback(std::string_view host) { return host == "localhost" || host == "::1" || host.starts_with("127."); }

}  // namespace loom::comm::tcp
