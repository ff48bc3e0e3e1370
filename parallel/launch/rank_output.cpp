#include "parallel/launch/rank_output.h"

#include <fmt/format.h>

#include <utility>

namespace orthant {
namespace {

// A rank that never ends its line must not grow the launcher without bound.
constexpr std::size_t kLongestLine = 1 << 16;

}  // namespace

RankOutput::RankOutput(int rank, RankLines& lines, std::filesystem::path log, bool append)
    : rank_(rank), lines_(lines), log_(rank, std::move(log), append) {}

void RankOutput::feed(Stream& stream, std::string_view bytes) {
  while (!bytes.empty()) {
    const std::size_t end = bytes.find('\n');
    stream.partial.append(bytes.substr(0, end));
    if (end == std::string_view::npos) {
      break;
    }
    line(stream, stream.partial);
    stream.partial.clear();
    bytes.remove_prefix(end + 1);
  }
  if (stream.partial.size() > kLongestLine) {
    line(stream, stream.partial);
    stream.partial.clear();
  }
  const std::size_t carriage = stream.partial.rfind('\r');
  if (carriage != std::string::npos && carriage + 1 < stream.partial.size()) {
    stream.partial.erase(0, carriage);  // only the newest update of a progress line is of any use
    progress(std::string_view(stream.partial).substr(1));
  }
}

void RankOutput::finish() {
  for (Stream* stream : {&output_, &error_}) {
    if (!stream->partial.empty()) {
      line(*stream, stream->partial);
      stream->partial.clear();
    }
  }
}

void RankOutput::line(const Stream& stream, std::string_view text) {
  if (text.ends_with('\r')) {
    text.remove_suffix(1);
  }
  const std::size_t carriage = text.rfind('\r');
  if (carriage != std::string_view::npos) {
    text.remove_prefix(carriage + 1);  // what a terminal would show of it
    progress("");
  }
  if (std::string problem; !log_.line(text, &problem)) {
    lines_.console().say(fmt::format("cannot write {}: {}; the training goes on, lines of its log are lost",
                                     log_.path().string(), problem));
  }
  tail_.emplace_back(text);
  if (tail_.size() > kTailLines) {
    tail_.pop_front();
  }
  stream.is_error ? lines_.error(rank_, text) : lines_.output(rank_, text);
}

void RankOutput::progress(std::string_view text) {
  if (rank_ == 0) {
    lines_.console().progress(text);
  }
}

}  // namespace orthant
