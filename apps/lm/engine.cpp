#include "apps/lm/engine.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <orthant/catalogue.h>
#include <orthant/part.h>

#include "apps/lm/row_count.h"
#include "core/arch/links.h"
#include "core/base/output.h"
#include "core/data/batch_builder.h"
#include "router/routing_tap.h"

namespace orthant {
namespace {

// Rows of a forward pass: enough for full products, few enough for the memory of what a row needs on its way.
constexpr std::int64_t rows_at_once = 256;

// Tokens laid end to end as one sequence; what is too much is padding.
struct Rows {
  std::vector<std::int32_t> token, position;
  void add(std::int32_t id, std::int64_t at) {
    token.push_back(id);
    position.push_back(static_cast<std::int32_t>(at));
  }
};

DeviceBatch to_device(const Rows& rows, std::int64_t window, bool whole, std::int64_t multiple, Stream& s) {
  const std::size_t used = rows.token.size();
  const std::int64_t least = static_cast<std::int64_t>(used), enough = whole ? least : rounded_rows(least);
  const std::size_t size = static_cast<std::size_t>((enough + multiple - 1) / multiple * multiple);
  const auto put = [&](DType dtype, auto values) {
    values.resize(size);
    const Tensor t = s.device().empty(dtype, {static_cast<std::int64_t>(size)});
    s.upload(t, values.data());
    s.synchronize();  // before the values go
    return t;
  };
  DeviceBatch batch;
  batch.sequences = 1;
  batch.positions = batch.core_positions = static_cast<std::int64_t>(size);
  batch.token = batch.whole_token = put(DType::i32, rows.token);
  batch.label = put(DType::i32, std::vector<std::int32_t>(size, -1));
  batch.position = put(DType::i32, rows.position);
  batch.valid = batch.whole_valid = put(DType::u8, std::vector<std::uint8_t>(used, 1));
  batch.index = batch.whole_index =
      put(DType::i64, std::vector<std::int64_t>(rows.position.begin(), rows.position.end()));
  batch.valid_count = static_cast<std::int64_t>(used);
  if (whole && window > 0) {
    std::vector<std::int32_t> first;
    for (const std::int32_t position : rows.position) {
      first.push_back(std::max<std::int32_t>(0, position + 1 - static_cast<std::int32_t>(window)));
    }
    batch.core_first = put(DType::i32, first);
  }
  return batch;
}

std::unique_ptr<CachedCore> make_core(int threads, CachedCore*& core) {
  auto made = std::make_unique<CachedCore>(threads);
  core = made.get();
  return made;
}

}  // namespace

// Part of a feed that one forward pass takes.
struct Engine::Portion {
  std::size_t feed;
  std::int64_t begin, count;  // of its tokens
};

// Tells what routers chose, by sequence and position.
class Engine::Tap final : public RoutingTap {
 public:
  explicit Tap(const EngineOptions& options) : chose_(options.chose) {}
  void begin(std::vector<SequenceRows> rows) { rows_ = std::move(rows); }
  void decided(const StepContext& ctx, int routed, const GateInput&, const GateChoice& made) override {
    if (!chose_ || ctx.space != 0) {  // nobody asks for those of a source
      return;
    }
    const std::size_t k = static_cast<std::size_t>(made.expert.dim(1));
    std::vector<std::int32_t> expert(static_cast<std::size_t>(made.expert.elements()));
    ctx.stream.download(expert.data(), made.expert);
    ctx.stream.synchronize();
    for (const SequenceRows& rows : rows_) {
      for (std::int64_t i = 0; i < rows.rows; ++i) {
        chose_(rows.sequence, rows.position + i, routed,
               std::span<const std::int32_t>(expert).subspan(static_cast<std::size_t>(rows.row + i) * k, k));
      }
    }
  }

 private:
  decltype(EngineOptions::chose) chose_;
  std::vector<SequenceRows> rows_;
};

namespace {

// A cache stands in for the plan's attention core. What a part of a plugin's mixes in another way is not in it.
void tell_of_foreign_attention(const Settings& settings) {
  if (stepwise_of(settings) != nullptr) {
    return;
  }
  for (const Catalogue::Entry& entry : settings.catalogue->entries(AttentionPart::noun)) {
    if (entry.name == settings.model.attention && !entry.plugin.empty()) {
      say("orthant: warning: attention '{}' is of plugin '{}': generation is right only if tokens meet by the plan's "
          "attention core alone; generate --verify tells",
          entry.name, entry.plugin);
    }
  }
}

}  // namespace

Engine::Engine(const OpenedModel& model, const EngineOptions& options, Communicator& communicator)
    : vocabulary_(model.config().settings.model.vocab_size),
      longest_(model.config().settings.model.positions == Positions::learned
                   ? model.config().settings.data.sequence_length
                   : 0),
      window_(model.config().settings.model.sliding_window),
      tap_(std::make_unique<Tap>(options)),
      model_(for_generation(model.config(), options.layout), model.reader(), options.threads, communicator,
             make_core(options.threads, core_)),
      latent_(options.threads, options.latent_room) {
  if (communicator.rank() == 0) {
    tell_of_foreign_attention(model.config().settings);
  }
  core_->hold(model_.windows());
  latent_.hold(model_.windows());
  // What is prepared once is prepared before anybody waits for it.
  const std::int32_t token = 0;
  const Feed first{.sequence = -1, .tokens = {&token, 1}};
  auto tap = std::exchange(tap_, std::make_unique<Tap>(EngineOptions{}));
  if (has_source()) {
    begin(-1, {&token, 1});
  }
  feed({&first, 1}, [](std::size_t, std::size_t, std::span<const float>) {});
  forget(-1);
  tap_ = std::move(tap);
}

Engine::~Engine() = default;

std::int64_t Engine::length(int sequence) const {
  const auto found = length_.find(sequence);
  return found == length_.end() ? 0 : found->second;
}

void Engine::forget(int sequence) {
  length_.erase(sequence);
  core_->forget(sequence);
  latent_.forget(sequence);
  model_.forget(sequence);
}

std::vector<std::int32_t> Engine::first_tokens(std::span<const std::int32_t> source) const {
  return model_.stepwise()->asked(model_.settings(), {source.begin(), source.end()}).token;
}

std::vector<std::int32_t> Engine::ends() const {
  return has_source() ? model_.stepwise()->ends(model_.settings()) : std::vector<std::int32_t>();
}

// One sequence: the tokens of an answer so far, and its source.
HostBatch Engine::with_source(std::span<const std::int32_t> tokens, std::span<const std::int32_t> source) const {
  SequenceDocument document = model_.stepwise()->asked(model_.settings(), {source.begin(), source.end()});
  document.token.assign(tokens.begin(), tokens.end());
  document.label.assign(tokens.size(), -1);
  std::vector<Space> spaces = spaces_of(model_.settings());
  spaces.front().positions = static_cast<std::int64_t>(tokens.size());
  for (std::size_t i = 1; i < spaces.size(); ++i) {
    spaces[i].positions = static_cast<std::int64_t>(document.spaces[i - 1].token.size());
  }
  HostBatch batch = padding_batch(0, 1, spaces);
  put_sequence(batch, 0, {document}, vocabulary_, {"the source", "its", 0});
  return batch;
}

void Engine::begin(int sequence, std::span<const std::int32_t> source) {
  require(length(sequence) == 0, "sequence {} has {} tokens, and begins once more", sequence, length(sequence));
  core_->begin({});
  model_.begin(sequence, with_source(first_tokens(source), source));
}

Engine::Page Engine::page(int sequence, std::int64_t index) {
  Page made{.keys = core_->page(sequence, index), .narrow = latent_.page(sequence, index, model_.stream())};
  for (const KeyValueCache& keys : made.keys) {
    made.bytes += keys.bytes();
  }
  for (const Tensor& rows : made.narrow) {
    made.bytes += rows.elements() * static_cast<std::int64_t>(size_of(rows.dtype()));
  }
  return made;
}

void Engine::adopt(int sequence, std::span<const std::shared_ptr<const Page>> pages) {
  require(length(sequence) == 0, "sequence {} has {} tokens, and cannot begin with pages", sequence, length(sequence));
  for (const auto& page : pages) {
    core_->append(sequence, page->keys);
    latent_.append(sequence, page->narrow, model_.stream());
    length_[sequence] += page_tokens;
  }
}

void Engine::check(std::span<const Feed> feeds) const {
  for (const Feed& feed : feeds) {
    const std::int64_t after = length(feed.sequence) + static_cast<std::int64_t>(feed.tokens.size());
    if (longest_ > 0 && after > longest_) {
      throw ConfigError(fmt::format("a sequence of {} tokens: this model has positions for {}", after, longest_));
    }
    for (const std::int32_t id : feed.tokens) {
      if (id < 0 || id >= vocabulary_) {
        throw ConfigError(fmt::format("token {}: this model's vocabulary has {}", id, vocabulary_));
      }
    }
  }
}

void Engine::feed(std::span<const Feed> feeds, const Seen& seen) {
  check(feeds);
  std::vector<Portion> portions;
  std::int64_t rows = 0;
  const auto flush = [&] {
    if (rows > 0) {
      pass(portions, feeds, seen);
    }
    portions.clear();
    rows = 0;
  };
  for (std::size_t i = 0; i < feeds.size(); ++i) {
    const std::int64_t all = static_cast<std::int64_t>(feeds[i].tokens.size());
    for (std::int64_t begin = 0; begin < all;) {
      const std::int64_t count = std::min(all - begin, rows_at_once - rows);
      portions.push_back({i, begin, count});
      begin += count;
      rows += count;
      if (rows == rows_at_once) {
        flush();
      }
    }
  }
  flush();
}

void Engine::pass(std::span<const Portion> portions, std::span<const Feed> feeds, const Seen& seen) {
  Rows rows;
  std::vector<SequenceRows> sequences;
  std::vector<std::int64_t> wanted;
  std::vector<std::pair<std::size_t, std::size_t>> names;  // of the wanted rows: feed, token
  for (const Portion& portion : portions) {
    const Feed& feed = feeds[portion.feed];
    std::int64_t& length = length_[feed.sequence];
    sequences.push_back({feed.sequence, static_cast<std::int64_t>(rows.token.size()), portion.count, length});
    for (std::int64_t i = portion.begin; i < portion.begin + portion.count; ++i) {
      if (feed.every || i + 1 == static_cast<std::int64_t>(feed.tokens.size())) {
        wanted.push_back(static_cast<std::int64_t>(rows.token.size()));
        names.emplace_back(portion.feed, static_cast<std::size_t>(i));
      }
      rows.add(feed.tokens[static_cast<std::size_t>(i)], length++);
    }
  }
  tap_->begin(sequences);
  latent_.begin(sequences);
  std::vector<StepRows> growing;  // of a kind that keeps what it needs itself
  for (const SequenceRows& of : has_source() ? sequences : std::vector<SequenceRows>()) {
    growing.push_back({of.sequence, of.row, of.rows, of.position});
  }
  core_->begin(has_source() ? std::vector<SequenceRows>() : std::move(sequences));
  StepSums sums;
  sums.tap = tap_.get();
  sums.latent = &latent_;
  const DeviceBatch batch = to_device(rows, 0, false, model_.row_multiple(), model_.stream());
  model_.pass(
      batch, sums, wanted,
      [&](std::size_t i, std::span<const float> logits) { seen(names[i].first, names[i].second, logits); }, growing);
}

void Engine::score(std::span<const std::int32_t> tokens, const Seen& seen, std::span<const std::int32_t> source) {
  const Feed whole{.sequence = -1, .tokens = tokens, .every = true};
  check({&whole, 1});
  Rows rows;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    rows.add(tokens[i], static_cast<std::int64_t>(i));
  }
  tap_->begin({{.sequence = -1, .row = 0, .rows = static_cast<std::int64_t>(tokens.size()), .position = 0}});
  core_->begin({});
  StepSums sums;
  sums.tap = tap_.get();
  const DeviceBatch batch = has_source() ? model_.on_device(with_source(tokens, source))
                                         : to_device(rows, window_, true, model_.row_multiple(), model_.stream());
  std::vector<std::int64_t> wanted(tokens.size());
  std::iota(wanted.begin(), wanted.end(), 0);
  model_.pass(batch, sums, wanted, [&](std::size_t i, std::span<const float> logits) { seen(0, i, logits); });
}

float Engine::log_probability(std::span<const float> logits, std::int32_t token) {
  Stream& s = model_.stream();
  const Tensor row = s.device().empty(DType::f32, {1, vocabulary_}), loss = s.device().empty(DType::f32, {1});
  const Tensor label = s.device().empty(DType::i32, {1});
  s.upload(row, logits.data());
  s.upload(label, &token);
  s.cross_entropy(loss, row, label, 1);
  float nats = 0;
  s.download(&nats, loss);
  s.synchronize();
  return -nats;
}

}  // namespace orthant
