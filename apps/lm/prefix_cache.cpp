#include "apps/lm/prefix_cache.h"

#include <algorithm>

namespace orthant {

PrefixCache::PrefixCache(Engine& engine, std::int64_t room) : engine_(engine), room_(room) {}

// The tree of a long text is deep: the newest page goes before what it stands behind.
PrefixCache::~PrefixCache() {
  while (!recent_.empty()) {
    drop_oldest();
  }
}

// From the last page to the first, which so is the most recent of them.
void PrefixCache::touch(Node* node) {
  for (; node != nullptr; node = node->before) {
    recent_.splice(recent_.begin(), recent_, node->recent);
  }
}

void PrefixCache::drop_oldest() {
  Node* const node = recent_.back();
  recent_.pop_back();
  bytes_ -= node->page->bytes;
  (node->before == nullptr ? first_ : node->before->behind).erase(node->place);
}

std::int64_t PrefixCache::begin(int sequence, std::span<const std::int32_t> tokens) {
  if (room_ == 0) {
    return 0;
  }
  constexpr std::size_t size = Engine::page_tokens;
  std::vector<std::shared_ptr<const Engine::Page>> pages;
  Node* last = nullptr;
  Children* children = &first_;
  for (std::size_t at = 0; at + size < tokens.size(); at += size) {
    const auto part = tokens.subspan(at, size);
    const auto found = children->find(Tokens(part.begin(), part.end()));
    if (found == children->end()) {
      break;
    }
    last = found->second.get();
    pages.push_back(last->page);
    children = &last->behind;
  }
  touch(last);
  if (!pages.empty()) {
    engine_.adopt(sequence, pages);
  }
  const std::int64_t count = static_cast<std::int64_t>(pages.size() * size);
  asked_ += static_cast<std::int64_t>(tokens.size());
  found_ += count;
  return count;
}

void PrefixCache::keep(int sequence, std::span<const std::int32_t> tokens) {
  if (room_ == 0) {
    return;
  }
  constexpr std::size_t size = Engine::page_tokens;
  Node* last = nullptr;
  Children* children = &first_;
  for (std::size_t at = 0; at + size <= tokens.size(); at += size) {
    const auto part = tokens.subspan(at, size);
    Tokens key(part.begin(), part.end());
    auto found = children->find(key);
    if (found == children->end()) {
      auto page = std::make_shared<const Engine::Page>(engine_.page(sequence, static_cast<std::int64_t>(at / size)));
      touch(last);  // those before it are not the oldest
      while (!recent_.empty() && bytes_ + page->bytes > room_ && recent_.back() != last) {
        drop_oldest();
      }
      if (bytes_ + page->bytes > room_) {
        break;
      }
      found = children->emplace(std::move(key), std::make_unique<Node>()).first;
      Node& node = *found->second;
      node.before = last;
      node.place = found;
      node.page = std::move(page);
      recent_.push_front(&node);
      node.recent = recent_.begin();
      bytes_ += node.page->bytes;
    }
    last = found->second.get();
    children = &last->behind;
  }
  touch(last);
}

}  // namespace orthant
