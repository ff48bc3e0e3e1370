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
  rendezvous_.reset();
}

// Every end first, then all of them together: ranks may close in any order.
void World::close_connections() {
  const Clock::time_point begin = Clock::now();
  try {
    for (const auto& connection : connections_) {
      connection->close();
    }
    for (const auto& connection : connections_) {
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

std::shared_ptr<NcclConnection> World::connect(const ConnectionId& id, int size, int rank) {
  std::shared_ptr<NcclConnection> connection = api_->connect(id, size, rank);
  const std::lock_guard lock(mutex_);
  connections_.push_back(connection);
  errands_.push_back([connection] { connection->ready(); });  // before the watchdog asks events: see ready()
  if (aborted_) {
    connection->abort();
  }
  return connection;
}

void World::await(NcclConnection& connection, const std::string& what) {
  const Clock::time_point begin = Clock::now();
  while (!connection.ready()) {
    throw_failure(what);
    require(std::chrono::duration<double>(Clock::now() - begin).count() < config_.timeout_seconds,
            "NCCL did not get ready for {} within {:g} s", what, config_.timeout_seconds);
    // A call that NCCL gives to the stream by a thread of its own is there within microseconds; a peer may take long.
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
  auto connection = connect(id, static_cast<int>(members.size()), static_cast<int>(place));
  await(*connection, what);
  return connection;
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
    await(*over, described);
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
  if (from == rank()) {
    open_messages(key, to);
  }
  std::unique_lock lock(mutex_);
  if (from != rank() && !messages_.contains(key)) {
    rendezvous_->post(from, "A" + key);
  }
  while (!messages_.contains(key) || messages_.at(key) == nullptr) {
    changed_.wait_for(lock, tick);
    throw_failure("the first message");
  }
  return messages_.at(key);
}

// As the sender: on its own account, or because the receiver asks (A). The receiver hears of it (O).
void World::open_messages(const std::string& key, int to) {
  {
    const std::lock_guard lock(mutex_);
    if (messages_.contains(key)) {
      return;
    }
    messages_[key] = nullptr;  // being made
  }
  const ConnectionId id = api_->new_id();
  rendezvous_->post(to, "O" + key + '\0' + std::string(id.data(), id.size()));
  std::shared_ptr<NcclConnection> connection = connect(id, 2, 0);
  const std::lock_guard lock(mutex_);
  messages_[key] = std::move(connection);
  changed_.notify_all();
}

void World::accept_messages(const std::string& key, const ConnectionId& id) {
  std::shared_ptr<NcclConnection> connection = connect(id, 2, 1);
  const std::lock_guard lock(mutex_);
  messages_[key] = std::move(connection);
  changed_.notify_all();
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
