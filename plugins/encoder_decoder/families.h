// Families of transformers that a model of kind "t5" can be: t5, mt5, switch_transformers.
//
// Source of keys and names: transformers' configuration and modelling classes, checked with models that it has made
// (tests/pretrained).
#pragma once

#include <memory>

#include <orthant/family.h>

namespace orthant::encoder_decoder {

// T5, and T5 1.1 whose FFN is gated and whose head is no table of embeddings (Raffel et al., 2020; FLAN-T5, UL2).
std::shared_ptr<const PublishedFamily> make_t5_family();
// T5 1.1 with another vocabulary (Xue et al., 2021).
std::shared_ptr<const PublishedFamily> make_mt5_family();
// Experts in some blocks of both stacks (Fedus et al., 2021).
std::shared_ptr<const PublishedFamily> make_switch_family();

}  // namespace orthant::encoder_decoder
