#include "core/trace/tracing_communicator.h"

#include <atomic>
#include <deque>

#include "core/trace/tracing_stream.h"
#include "parallel/intercepted_group.h"

namespace orthant {
namespace {

// Messages to and from each peer are counted apart: they may go on streams of their own.
class TracingGroup final : public InterceptedGroup {
 public:
  TracingGroup(std::unique_ptr<Group> inner, std::int64_t number)
      : InterceptedGroup(inner->name(), inner->members(), inner->rank()),
        inner_(std::move(inner)),
        number_(number),
        sent_(inner_->members().size()),
        received_(inner_->members().size()) {}

 private:
  void call(const GroupCall& c, Stream& s) override {
    const std::int64_t sequence = count(c);
    auto* const tracing = dynamic_cast<TracingStream*>(&s);
    if (tracing == nullptr) {
      return perform(c, *inner_, s);
    }
    if (size() == 1 || !tracing->marks()) {
      return perform(c, *inner_, tracing->inner());
    }
    tracing->around({.name = std::string(name_of(c.collective)) + " " + name(),
                     .kind = SpanKind::collective,
                     .facts = facts(c, sequence)},
                    [&](Stream& inner) { perform(c, *inner_, inner); });
  }

  std::int64_t count(const GroupCall& c) {
    const auto peer = static_cast<std::size_t>(c.peer);
    if (c.collective == Collective::send && peer < sent_.size()) {
      return sent_[peer]++;
    }
    if (c.collective == Collective::recv && peer < received_.size()) {
      return received_[peer]++;
    }
    return calls_++;
  }

  SpanFacts facts(const GroupCall& c, std::int64_t sequence) const {
    SpanFacts f{.bytes = c.in.defined() ? static_cast<std::int64_t>(c.in.bytes()) : 0,
                .group = number_,
                .first = members().front(),
                .sequence = sequence};
    if (c.collective == Collective::all_to_all) {
      f.rows = 0;
      for (int r = 0; r < size(); ++r) {
        f.rows += r == rank() ? 0 : c.send_rows[static_cast<std::size_t>(r)];
      }
    }
    const auto world = [&](int member) { return members()[static_cast<std::size_t>(member)]; };
    if (c.collective == Collective::send) {
      f.from = world(rank());
      f.to = world(c.peer);
    } else if (c.collective == Collective::recv) {
      f.from = world(c.peer);
      f.to = world(rank());
    }
    return f;
  }

  std::unique_ptr<Group> inner_;
  const std::int64_t number_;
  std::atomic<std::int64_t> calls_ = 0;
  std::deque<std::atomic<std::int64_t>> sent_, received_;
};

}  // namespace

std::unique_ptr<Group> TracingCommunicator::split(const std::string& name, const std::vector<int>& members) {
  const std::int64_t number = splits_++;  // every rank makes the same splits
  trace_.add_group(number, {name, members});
  return std::make_unique<TracingGroup>(inner().split(name, members), number);
}

}  // namespace orthant
