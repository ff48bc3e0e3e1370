// PrefixCache: keys and values of beginnings that earlier sequences had, shared by later ones that begin alike.
//
// In pages of Engine::page_tokens tokens, each with all tokens before it: a page is used by whoever has the same tokens
// from the first one on (Kwon et al., 2023; a tree of prefixes as in Zheng et al., "SGLang", 2024). A page never
// changes, and lives as long as a sequence or this has it. What is computed from pages has the bits of what is computed
// without (engine.h). Thread safety: none.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "apps/lm/engine.h"

namespace orthant {

class PrefixCache {
 public:
  // room: bytes of the pages that are kept; 0: none are. The engine outlives this.
  PrefixCache(Engine& engine, std::int64_t room);
  ~PrefixCache();

  // A new sequence of the engine begins with the pages that `tokens` begins with; the last token is left to be fed.
  // Returns of how many tokens they are.
  std::int64_t begin(int sequence, std::span<const std::int32_t> tokens);
  // Keeps the full pages of a sequence, which has been fed `tokens`; those used least recently go first.
  void keep(int sequence, std::span<const std::int32_t> tokens);

  std::int64_t pages() const { return static_cast<std::int64_t>(recent_.size()); }
  std::int64_t bytes() const { return bytes_; }
  // Tokens that sequences were begun with, and those of them that pages had.
  std::int64_t asked() const { return asked_; }
  std::int64_t found() const { return found_; }

 private:
  struct Node;
  using Tokens = std::vector<std::int32_t>;
  using Children = std::map<Tokens, std::unique_ptr<Node>>;
  struct Node {
    Node* before = nullptr;  // null: it is a sequence's first
    Children::iterator place = {};
    std::shared_ptr<const Engine::Page> page = {};
    Children behind = {};
    std::list<Node*>::iterator recent = {};
  };
  void touch(Node* node);
  void drop_oldest();

  Engine& engine_;
  const std::int64_t room_;
  std::int64_t bytes_ = 0, asked_ = 0, found_ = 0;
  Children first_;
  std::list<Node*> recent_;  // the last used first; a page is never behind those that follow it
};

}  // namespace orthant
