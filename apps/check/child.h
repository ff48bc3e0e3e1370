// Runs a piece of a check in a process of its own, so that a plugin that crashes or never ends fails its check, not the
// suite.
#pragma once

#include <functional>
#include <string>

namespace orthant {

// What `body` returns. Errors: Error with what it threw, with the signal that ended it, or after `seconds`.
// REQUIRES: the caller has no other threads.
std::string in_child(const std::function<std::string()>& body, int seconds);

}  // namespace orthant
