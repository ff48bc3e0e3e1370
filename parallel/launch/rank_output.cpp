#include "parallel/launch/rank_output.h"

#include <orthant/error.h>

#include <utility>

namespace orthant {
namespace {

// A rank that never ends its line must not grow the launcher without bound.
constexpr std::size_t kLongestLine = 1 << 16;

}  // namespace

RankOutput::RankOutput(int rank, Console& console, std::filesystem::path log, bool append)
    : console_(console),
      prefix_(fmt::format("[r{}] ", rank)),
      shows_progress_(rank == 0),
      log_path_(std::move(log)),
      log_(log_path_, append ? std::ios::app : std::ios::trunc) {
  require(log_.is_open(), "cannot write the log of rank {} to {}: check the folder's permissions and space", rank,
          log_path_.string());
}

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
    if (shows_progress_) {
      console_.progress(std::string_view(stream.partial).substr(1));
    }
  }
}

void RankOutput::finish() {
  for (Stream* stream : {&output_, &error_}) {
    if (!stream->partial.empty()) {
      line(*stream, stream->partial);
      stream->partial.clear();
    }
  }
  log_.flush();
}

void RankOutput::line(const Stream& stream, std::string_view text) {
  if (text.ends_with('\r')) {
    text.remove_suffix(1);
  }
  const std::size_t carriage = text.rfind('\r');
  if (carriage != std::string_view::npos) {
    text.remove_prefix(carriage + 1);  // what a terminal would show of it
    if (shows_progress_) {
      console_.progress("");
    }
  }
  log_ << text << '\n' << std::flush;
  tail_.emplace_back(text);
  if (tail_.size() > kTailLines) {
    tail_.pop_front();
  }
  const std::string shown = prefix_ + std::string(text);
  stream.is_error ? console_.error_line(shown) : console_.output_line(shown);
}

}  // namespace orthant
