// What is looked at in each layout of a plugin. Each check trains on threads of its own, and throws what training
// throws.
#pragma once

#include <string>

#include "apps/check/conformance.h"
#include "core/config/config.h"

namespace orthant {

constexpr int checked_steps = 2;  // of each training that a check runs

struct LayoutCheck {
  const char* name;
  // `sized`: the plugin has a key `size`.
  Finding (*run)(const Config& config, const std::string& plugin, bool sized);
};

// The axis has the plugin's name and the size that was asked for.
Finding check_claims(const Config& config, const std::string& plugin, bool sized);
Finding check_boundaries(const Config& config);
Finding check_exchange(const Config& config);
// As verify. Where the plugin says that what it computes depends on ranks, only independent workers have a reference:
// themselves, alone.
Finding check_parity(const Config& config, const std::string& plugin);
// Members of a group call its collectives in one order.
Finding check_order(const Config& config);
// Nothing but operations touches memory.
Finding check_guarded(const Config& config);
// No wait between streams, or for the host, is missing: whichever of them is late, the bits are the same.
Finding check_late(const Config& config);
Finding check_repeats(const Config& config);
// A run that is saved in the middle and goes on from there has the bits of one that went on: what a plugin remembers is
// in the checkpoint.
Finding check_resume(const Config& config);
// Memory and threads are back where they were when a layout is gone.
Finding check_leaks(const Config& config);

inline constexpr LayoutCheck layout_checks[] = {
    {"claims", check_claims},
    {"boundaries", [](const Config& c, const std::string&, bool) { return check_boundaries(c); }},
    {"exchange", [](const Config& c, const std::string&, bool) { return check_exchange(c); }},
    {"parity", [](const Config& c, const std::string& p, bool) { return check_parity(c, p); }},
    {"order", [](const Config& c, const std::string&, bool) { return check_order(c); }},
    {"guarded", [](const Config& c, const std::string&, bool) { return check_guarded(c); }},
    {"late", [](const Config& c, const std::string&, bool) { return check_late(c); }},
    {"repeats", [](const Config& c, const std::string&, bool) { return check_repeats(c); }},
    {"resume", [](const Config& c, const std::string&, bool) { return check_resume(c); }},
    {"leaks", [](const Config& c, const std::string&, bool) { return check_leaks(c); }},
};

}  // namespace orthant
