// RankSegment: what the supervisor needs of the memory that ranks on one machine share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace orthant {

// The first failure that the ranks were told of.
struct RankFailure {
  int rank = -1;  // at fault; -1: not known
  std::string why;
};

class RankSegment {
 public:
  virtual ~RankSegment() = default;
  virtual int descriptor() const = 0;
  // The first reason wins.
  virtual void mark_failed(int rank, const std::string& why) noexcept = 0;
  virtual std::optional<RankFailure> failure() const = 0;
  // The step that `rank` is in, counted from 0; -1: none yet.
  virtual std::int64_t step(int rank) const = 0;
  // All ranks were paused until now: their silence is no sign of a stall.
  virtual void excuse_silence() noexcept = 0;
};

}  // namespace orthant
