// What a call is refused with, for tests that read the message.
#pragma once

#include <orthant/error.h>

#include <string>

namespace orthant::test {

// The message of the Error that act() throws, "no error" if it returns. E: the kind that is expected; another is passed
// on.
template <class E = Error, class F>
std::string error_of(const F& act) {
  try {
    act();
  } catch (const E& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace orthant::test
