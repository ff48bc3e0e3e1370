#include "bench/study/timing_file.h"

#include <cmath>

#include <orthant/error.h>

#include "core/base/text_file.h"
#include "core/checkpoint/disk.h"

namespace orthant {
namespace {

bool is_round(const nlohmann::json& value) {
  const nlohmann::json seconds =
      value.is_object() ? value.value("step_seconds", nlohmann::json()) : nlohmann::json("no");
  const bool known = seconds.is_number() && std::isfinite(seconds.get<double>()) && seconds.get<double>() > 0;
  return (known || seconds.is_null()) && value.value("why", nlohmann::json()).is_string();
}

// The whole file's content, or nothing.
nlohmann::json read(const std::filesystem::path& file) {
  try {
    return nlohmann::json::parse(read_text_file(file).value_or(""), nullptr, false);
  } catch (const Error&) {
    return {};
  }
}

}  // namespace

TimingFile::TimingFile(std::filesystem::path file, int cores, std::int64_t steps) : file_(std::move(file)) {
  const nlohmann::json empty = {{"cores", cores}, {"steps", steps}, {"shapes", nlohmann::json::object()}};
  all_ = read(file_);
  if (!all_.is_object() || all_.value("cores", nlohmann::json()) != empty["cores"] ||
      all_.value("steps", nlohmann::json()) != empty["steps"] || !all_.value("shapes", nlohmann::json()).is_object()) {
    all_ = empty;
  }
}

std::optional<TimedRound> TimingFile::find(const std::string& shape, std::size_t round) const {
  const nlohmann::json rounds = all_["shapes"].value(shape, nlohmann::json());
  if (!rounds.is_array() || round >= rounds.size() || !is_round(rounds[round])) {
    return std::nullopt;
  }
  const nlohmann::json& found = rounds[round];
  return TimedRound{
      found["step_seconds"].is_null() ? std::nullopt : std::optional<double>(found["step_seconds"].get<double>()),
      found["why"].get<std::string>()};
}

void TimingFile::add(const std::string& shape, std::size_t round, const TimedRound& timed) {
  nlohmann::json& rounds = all_["shapes"][shape];
  if (!rounds.is_array()) {
    rounds = nlohmann::json::array();
  }
  rounds[round] = {{"step_seconds", timed.step_seconds ? nlohmann::json(*timed.step_seconds) : nlohmann::json()},
                   {"why", timed.why}};
  Disk().replace_file(file_, all_.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

}  // namespace orthant
