// Activations wait for their backward pass in the host's memory. [plugins.activation_offload] ahead, least_bytes.
//
// Two side streams: one copies what put brings to the host while the forward pass goes on, one fetches what is taken
// next while the backward pass goes on. begin_step tells the order of all calls, so nothing is guessed: what is taken
// soon after it is put stays on the device, and the next `ahead` layers are on their way back before they are asked
// for.
#include <orthant/plugin.h>

#include <deque>
#include <map>

namespace {

using namespace orthant;

class Offload final : public Stash {
 public:
  Offload(Device& device, std::int64_t ahead, std::int64_t least_bytes)
      : device_(device),
        ahead_(static_cast<std::size_t>(ahead)),
        least_bytes_(static_cast<std::size_t>(least_bytes)),
        to_host_(device.make_side_stream()),
        from_host_(device.make_side_stream()) {}

  void begin_step(std::span<const StashCall> calls, Stream& s) override {
    away_.clear();
    leaving_.clear();
    takes_.clear();
    soon_.clear();
    std::map<Place, std::size_t> put;
    for (std::size_t i = 0; i < calls.size(); ++i) {
      const Place place{calls[i].layer, calls[i].micro_batch};
      if (calls[i].kind == StashCall::Kind::put) {
        put[place] = i;
      } else {
        takes_.push_back(place);
        soon_[place] = i - put.at(place) <= 2 * ahead_ + 1;
      }
    }
    next().begin_step(calls, s);
  }

  void put(int layer, int micro_batch, Saved saved, Stream& s) override {
    const Place place{layer, micro_batch};
    if (!soon_.at(place)) {
      to_host_->wait(s.record());  // what writes `saved` may still be running
      std::vector<Copy>& copies = away_[place].copies;
      for (std::size_t i = 0; i < saved.tensors.size(); ++i) {
        Tensor& t = saved.tensors[i];
        if (t.defined() && t.bytes() >= least_bytes_) {
          Copy copy{i, device_.host_empty(t.dtype(), t.shape()), {}};
          to_host_->download(copy.host, t);  // holds both until it is done
          copies.push_back(std::move(copy));
          t = {};
        }
      }
      away_[place].written = to_host_->record();
      // The device's memory is free when its copy is done: the host does not run far ahead of that.
      leaving_.push_back(away_[place].written);
      if (leaving_.size() > ahead_ + 1) {
        leaving_.front()->wait();
        leaving_.pop_front();
      }
    }
    next().put(layer, micro_batch, std::move(saved), s);  // the rest
  }

  Saved take(int layer, int micro_batch, Stream& s) override {
    Saved saved = next().take(layer, micro_batch, s);
    for (std::size_t i = 0; i <= ahead_ && i < takes_.size(); ++i) {
      fetch(takes_[i]);
    }
    takes_.pop_front();
    if (auto away = away_.extract({layer, micro_batch})) {
      s.wait(away.mapped().fetched);
      for (Copy& copy : away.mapped().copies) {
        saved.tensors[copy.index] = std::move(copy.device);
      }
    }
    return saved;
  }

 private:
  using Place = std::pair<int, int>;  // layer, micro-batch
  struct Copy {
    std::size_t index;  // among the saved tensors
    Tensor host, device;
  };
  struct Away {
    std::vector<Copy> copies;
    std::shared_ptr<Event> written, fetched;
  };

  // Starts the copies back, once, if the place was put already.
  void fetch(const Place& place) {
    const auto found = away_.find(place);
    if (found == away_.end() || found->second.fetched != nullptr) {
      return;
    }
    from_host_->wait(found->second.written);
    for (Copy& copy : found->second.copies) {
      copy.device = device_.empty(copy.host.dtype(), copy.host.shape());
      from_host_->upload(copy.device, copy.host);
      copy.host = {};
    }
    found->second.fetched = from_host_->record();
  }

  Device& device_;
  const std::size_t ahead_, least_bytes_;
  std::deque<Place> takes_;     // to come, in order
  std::map<Place, bool> soon_;  // taken so soon after it is put that it stays
  std::map<Place, Away> away_;
  std::deque<std::shared_ptr<Event>> leaving_;
  std::unique_ptr<Stream> to_host_, from_host_;  // last: their work goes first
};

class ActivationOffload final : public Plugin {
 public:
  std::vector<KeySpec> keys() const override {
    return {{.name = "ahead",
             .default_value = std::int64_t{1},
             .help = "Layers whose activations are fetched before they are needed.",
             .minimum = 0},
            {.name = "least_bytes",
             .default_value = std::int64_t{4096},
             .help = "Smaller tensors stay on the device.",
             .minimum = 0}};
  }
  void claim(Mesh&, const Table& config) override {
    ahead_ = config.integer("ahead");
    least_bytes_ = config.integer("least_bytes");
  }
  void plan(Plan& plan, Mesh&) override {
    if (!plan.dry()) {
      plan.chain(std::make_unique<Offload>(plan.device(), ahead_, least_bytes_));
    }
  }

 private:
  std::int64_t ahead_ = 1, least_bytes_ = 0;
};

}  // namespace

ORTHANT_PLUGIN("activation_offload", ActivationOffload)
