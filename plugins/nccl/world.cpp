#include "world.h"

#include <orthant/hash.h>
#include <algorithm>
#include <cstring>
#include <exception>

#include <orthant/device.h>
#include <orthant/error.h>
#include <orthant/ops.h>

namespace orthant::nccl {
namespace {

constexpr std::chrono::milliseconds time_to_be_told{500};
constexpr std::chrono::milliseconds time_without_sleep{1};

// What one rank says of its list in a split.
struct SplitEntry {
  std::int32_t first = 0, place = 0, size = 0, padding = 0;
  std::uint64_t hash = 0;
};

std::uint64_t hash_of(const std::vector<int>& members) {
  Hash64 hash;
  for (const int member : members) {
    hash.add(static_cast<std::uint64_t>(member));
  }
  return hash.value();
}

}  // namespace

World::World(std::shared_ptr<NcclApi> api, const RendezvousConfig& config)
    : api_(std::move(api)), config_(config), rendezvous_(std::make_unique<Rendezvous>(config)) {
  rendezvous_->start({.failed = [this] { changed_.notify_all(); },
                      .note = [this](int from, const std::string& note) { hear(from, note); },
                      .left =
                          [this](int rank) {
                            const std::lock_guard lock(mutex_);
                            left_.insert(rank);
                          }});
  watchdog_ = std::thread([this] { watch(); });
}

World::~World() {
  if (std::uncaught_exceptions() > 0) {
    fail(fmt::format("rank {} failed", rank()));
  }
  if (failure().empty()) {
    rendezvous_->leave();
    close_connections();
  }
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  watchdog_.join();
  rendezvous_->stop();  // not only its end: handlers use the pointer until its thread has ended
}

// Every end first, then all of them together: ranks may close in any order.
void World::close_connections() {
  const Clock::time_point begin = Clock::now();
  std::vector<std::shared_ptr<NcclConnection>> connections;
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    connections = connections_;
    std::erase_if(connections, [this](const auto& one) {  // what is still being made is aborted with its end
      return std::none_of(made_.begin(), made_.end(), [&](const auto& made) { return made.second == one; });
    });
  }
  try {
    for (const auto& connection : connections) {
      connection->close();
    }
    for (const auto& connection : connections) {
      while (!connection->ready() && failure().empty() &&
             std::chrono::duration<double>(Clock::now() - begin).count() < config_.timeout_seconds) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
  } catch (const Error&) {  // what is not closed is aborted; the work was done
  }
}

void World::fail(const std::string& why) noexcept {
  rendezvous_->fail(why);
}

// What NCCL meets here may come of a rank that has stopped for a reason; its reason is on the way.
void World::fail_unless_told(const std::string& why) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, time_to_be_told, [this] { return !failure().empty(); });
  lock.unlock();
  fail(why);
}

std::string World::failure() const {
  return rendezvous_->failure().value_or("");
}

void World::throw_failure(const std::string& what) const {
  const std::string why = failure();
  require(why.empty(), "{} cannot complete: {}", what, why);
}

void World::make(Making making, const ConnectionId& id, int size, int rank) {
  making.connection = api_->connect(id, size, rank);
  making.begin = Clock::now();
  const std::lock_guard lock(mutex_);
  connections_.push_back(making.connection);
  made_[making.key] = nullptr;
  if (aborted_) {
    making.connection->abort();
  }
  errands_.push_back([this, making = std::move(making)] { making_.push_back(making); });
  changed_.notify_all();
}

// Waits for the watchdog, which knows how long.
std::shared_ptr<NcclConnection> World::made(const std::string& key, const std::string& what) {
  std::unique_lock lock(mutex_);
  while (!made_.contains(key) || made_.at(key) == nullptr) {
    changed_.wait_for(lock, tick);
    throw_failure(what);
  }
  return made_.at(key);
}

// NCCL has given the last call to its stream. A peer that does not come is the watchdog's to find.
void World::await(NcclConnection& connection, const std::string& what) {
  const Clock::time_point begin = Clock::now();
  while (!connection.ready()) {
    throw_failure(what);
    // NCCL gives calls to the stream by a thread of its own: they are there within microseconds, unless it connects.
    if (Clock::now() - begin < time_without_sleep) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }
}

void World::require_different_gpus() {
  if (gpus_compared_) {
    return;
  }
  gpus_compared_ = true;
  const std::vector<std::string> gpus = rendezvous_->all_gather("start of NCCL", api_->use_gpu());
  std::map<std::string, int> users;
  for (int r = 0; r < size(); ++r) {
    const auto [first, fresh] = users.emplace(gpus[r], r);
    if (!fresh) {
      orthant::fail(
          "ranks {} and {} both use GPU {}: NCCL needs a GPU for each rank. Start no more ranks on a machine than it "
          "has "
          "GPUs, or write communicator = \"local\" under [run], which lets ranks of one machine share a GPU",
          first->second, r, first->first);
    }
  }
}

std::shared_ptr<NcclConnection> World::split(const std::string& name, const std::vector<int>& members) {
  require_different_gpus();
  const auto place = std::find(members.begin(), members.end(), rank()) - members.begin();
  const SplitEntry own{members[0], static_cast<std::int32_t>(place), static_cast<std::int32_t>(members.size()), 0,
                       hash_of(members)};
  std::string payload(sizeof(own), '\0');
  std::memcpy(payload.data(), &own, sizeof(own));
  if (place == 0 && members.size() > 1) {
    const ConnectionId id = api_->new_id();
    payload.append(id.data(), id.size());
  }
  const std::string what = fmt::format("split of group '{}'", name);
  const std::vector<std::string> all = rendezvous_->all_gather(what, payload);
  for (std::size_t i = 0; i < members.size(); ++i) {
    const std::string& other = all[members[i]];
    SplitEntry entry;
    require(other.size() >= sizeof(entry), "{}: rank {} runs another version of Orthant", what, members[i]);
    std::memcpy(&entry, other.data(), sizeof(entry));
    require(entry.first == own.first && entry.size == own.size && entry.hash == own.hash &&
                entry.place == static_cast<std::int32_t>(i),
            "{}: the ranks' lists of members do not partition the world of {}", what, size());
  }
  if (members.size() == 1) {
    return nullptr;
  }
  const std::string& first = all[members[0]];
  ConnectionId id{};
  require(first.size() == sizeof(own) + id.size(), "{}: rank {} sent no id", what, members[0]);
  std::memcpy(id.data(), first.data() + sizeof(own), id.size());
  const std::string key = fmt::format("split {}", splits_++);
  make({.key = key, .line = {key, name, members}, .what = what, .carries = NcclConnection::Carries::collectives}, id,
       own.size, own.place);
  return made(key, what);
}

void World::run(const std::shared_ptr<const Line>& line, const std::string& name, const std::string& what,
                std::int64_t bytes, Stream& s, const Connect& connection, const Give& give) {
  const std::shared_ptr<const Call> call = calls_.begin(line, name, what, bytes, s);
  const std::string described = call->describe();
  try {
    throw_failure(described);
    if (give == nullptr) {
      return calls_.forget(call);
    }
    const std::shared_ptr<NcclConnection> over = connection();
    give(*over);
    await(*over, described);
    calls_.given(call, s);
  } catch (const Error& error) {
    calls_.forget(call);
    fail_unless_told(fmt::format("rank {} failed: {}: {}", rank(), described, error.what()));
    throw_failure(described);
  }
}

std::shared_ptr<NcclConnection> World::messages(const std::string& key, int from, int to) {
  const auto known = [&] {
    const std::lock_guard lock(mutex_);
    return made_.contains(key);
  };
  if (from == rank()) {
    open_messages(key, to);
  } else if (!known()) {
    rendezvous_->post(from, "A" + key);
  }
  return made(key, "the first message");
}

World::Making World::making_of_messages(const std::string& key, int from, int to) const {
  return {.key = key,
          .line = {key, "", {from, to}},
          .what = fmt::format("messages from rank {} to rank {}", from, to),
          .carries = NcclConnection::Carries::messages};
}

// As the sender: on its own account, or because the receiver asks (A). The receiver hears of it (O).
void World::open_messages(const std::string& key, int to) {
  {
    const std::lock_guard lock(mutex_);
    if (!made_.emplace(key, nullptr).second) {
      return;
    }
  }
  const ConnectionId id = api_->new_id();
  rendezvous_->post(to, "O" + key + '\0' + std::string(id.data(), id.size()));
  make(making_of_messages(key, rank(), to), id, 2, 0);
}

void World::accept_messages(const std::string& key, int from, const ConnectionId& id) {
  make(making_of_messages(key, from, rank()), id, 2, 1);
}

void World::finish(const Line& line) noexcept {
  try {
    while (failure().empty() && !calls_.done(line)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    calls_.forget_all_of(line);
  } catch (...) {  // out of memory: the events stay until the world ends
  }
}

}  // namespace orthant::nccl
