#include "tests/simt/counters.h"

namespace orthant::simt {

Counters& counters() {
  static Counters one;
  return one;
}

}  // namespace orthant::simt

std::int64_t orthant_simt_waits() {
  return orthant::simt::counters().waits;
}

std::int64_t orthant_simt_events() {
  return orthant::simt::counters().events;
}

std::int64_t orthant_simt_recordings() {
  return orthant::simt::counters().recordings;
}

std::int64_t orthant_simt_launches() {
  return orthant::simt::counters().launches;
}

void orthant_simt_only_count(bool on) {
  orthant::simt::counters().only = on;
}
