#include "apps/serve/response.h"

#include <fmt/format.h>

#include <functional>
#include <optional>
#include <string>

namespace orthant {
namespace {

// Clients of event streams skip it.
constexpr std::string_view comment = ":\n\n";

std::string_view reason_of(int status) {
  switch (status) {
    case 200: return "OK";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 413: return "Content Too Large";
    case 414: return "URI Too Long";
    case 415: return "Unsupported Media Type";
    case 431: return "Request Header Fields Too Large";
    case 500: return "Internal Server Error";
    case 503: return "Service Unavailable";
    default: return "Refused";
  }
}

void write_events(ClientSocket& client, const std::function<std::optional<std::string>()>& next, bool in_chunks) {
  while (const std::optional<std::string> events = next()) {
    // Nothing to tell: one that sends nothing more is asked whether it is there.
    const std::string_view told = !events->empty() ? *events : sends_no_more(client.number()) ? comment : "";
    const bool taken = told.empty() || (in_chunks ? client.write_all(fmt::format("{:x}\r\n{}\r\n", told.size(), told))
                                                  : client.write_all(told));
    if (!taken) {
      return;
    }
  }
  if (in_chunks) {
    client.write_all("0\r\n\r\n");
  }
}

}  // namespace

void write_response(ClientSocket& client, ApiResponse response, bool with_body, bool in_chunks) {
  const bool streams = response.next != nullptr;
  std::string head = fmt::format("HTTP/1.1 {} {}\r\nConnection: close\r\nContent-Type: {}\r\n", response.status,
                                 reason_of(response.status), streams ? "text/event-stream" : response.type);
  if (!streams) {
    head += fmt::format("Content-Length: {}\r\n", response.body.size());
  } else if (in_chunks) {
    head += "Transfer-Encoding: chunked\r\n";
  }
  for (const auto& [name, value] : response.headers) {
    head += fmt::format("{}: {}\r\n", name, value);
  }
  head += "\r\n";
  if (client.write_all(with_body && !streams ? head + response.body : head) && with_body && streams) {
    write_events(client, response.next, in_chunks);
  }
}

}  // namespace orthant
