// Seams that say whose they are: what a plugin's seam throws, and is no Error of Orthant's ("map::at"), is thrown on as
// one that names the plugin.
#pragma once

#include <exception>
#include <memory>
#include <string>
#include <utility>

#include <orthant/seams.h>

namespace orthant {

// Runs code of plugin `name`. `what` it was asked to do: "claim its axes".
template <class Work>
decltype(auto) as_plugin(const std::string& name, const char* what, Work&& work) {
  try {
    return std::forward<Work>(work)();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& failure) {
    throw Error(fmt::format("plugin '{}' failed to {}: {}", name, what, failure.what()));
  } catch (...) {
    throw Error(fmt::format("plugin '{}' failed to {}: it threw what is no std::exception", name, what));
  }
}

std::unique_ptr<Boundary> named(std::unique_ptr<Boundary> boundary, const std::string& plugin);
std::unique_ptr<TokenExchange> named(std::unique_ptr<TokenExchange> exchange, const std::string& plugin);
std::unique_ptr<AttentionCore> named(std::unique_ptr<AttentionCore> core, const std::string& plugin);
std::unique_ptr<Schedule> named(std::unique_ptr<Schedule> schedule, const std::string& plugin);
std::unique_ptr<Stash> named(std::unique_ptr<Stash> stash, const std::string& plugin);

}  // namespace orthant
