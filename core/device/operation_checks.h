// Argument checks of whole operations, the same for every device. What only the host's memory can tell (ids, labels,
// offsets) is checked by the device that has it there.
#pragma once

#include <orthant/group.h>
#include <orthant/ops.h>

#include "core/base/check.h"
#include "core/base/storage_types.h"

namespace orthant {

inline void check_copy(const Tensor& to, const Tensor& from) {
  require_defined("copy", "from", from);
  require_dtype("copy", "to", to, {from.dtype()});
  require_elements("copy", "to", to, from.elements());
}

inline void check_cast(const Tensor& to, const Tensor& from) {
  require_defined("cast", "from", from);
  require_defined("cast", "to", to);
  if (is_storage_type(from.dtype())) {
    require_float("cast", "to", to);
  } else if (is_storage_type(to.dtype())) {
    require_float("cast", "from", from);
  } else {
    require_dtype("cast", "from", from, {DType::f32, DType::bf16, DType::f64});
    require_dtype("cast", "to", to, {DType::f32, DType::bf16, DType::f64});
  }
  require_elements("cast", "to", to, from.elements());
}

// upload and download between two tensors.
inline void check_transfer(const char* operation, const Tensor& on_host, const Tensor& on_device) {
  require_defined(operation, "the host's tensor", on_host);
  require_defined(operation, "the device's tensor", on_device);
  require(on_host.on_host() && !on_device.on_host(),
          "{}: copies between a tensor of Device::host_empty and one of the device", operation);
  require_dtype(operation, "the host's tensor", on_host, {on_device.dtype()});
  require_elements(operation, "the host's tensor", on_host, on_device.elements());
}

// quantise, dequantise.
inline void check_quantise(const char* operation, const Tensor& q, const Tensor& scale, const Tensor& x,
                           std::int64_t block) {
  require_float(operation, "x", x);
  require_dtype(operation, "q", q, {DType::i8, DType::f8_e4m3, DType::f8_e5m2});
  require_elements(operation, "q", q, x.elements());
  require(block > 0, "{}: block must be positive, got {}", operation, block);
  require_tensor(operation, "scale", scale, DType::f32, {(x.elements() + block - 1) / block});
}

inline void check_stochastic_cast(const Tensor& to, const Tensor& from) {
  require_rank("stochastic_cast", "from", from, 2);
  require_tensor("stochastic_cast", "from", from, DType::f32, from.shape());
  require_tensor("stochastic_cast", "to", to, DType::bf16, from.shape());
}

// encode_state, decode_state.
inline void check_state_code(const char* operation, const Tensor& x, const Tensor& code, const Tensor& exponent,
                             StateCode how) {
  require(how != StateCode::none, "{}: a state without a code is stored as it is", operation);
  require_dtype(operation, "x", x, {DType::f32});
  require_dtype(operation, "code", code, {DType::u8});
  require_elements(operation, "code", code, x.elements());
  require(x.rank() >= 1 && x.dim(-1) % state_block == 0, "{}: x {} is not made of blocks of {} columns", operation,
          x.shape(), state_block);
  require_dtype(operation, "exponent", exponent, {DType::u8});
  require_elements(operation, "exponent", exponent, x.elements() / state_block);
}

inline void check_encode_state(const Tensor& x, const Tensor& code, const Tensor& exponent, StateCode how) {
  require_rank("encode_state", "x", x, 2);
  check_state_code("encode_state", x, code, exponent, how);
}

// Returns the bytes of a row.
inline std::size_t check_copy_rows(const Tensor& to, const Tensor& from, std::span<const RowRun> runs) {
  require_defined("copy_rows", "from", from);
  require_dtype("copy_rows", "to", to, {from.dtype()});
  require(to.rank() == from.rank() && to.rank() >= 1, "copy_rows: to {} and from {} must have equally many dimensions",
          to.shape(), from.shape());
  std::int64_t row_elements = 1;
  for (int i = 1; i < to.rank(); ++i) {
    require(to.dim(i) == from.dim(i), "copy_rows: rows of to {} and of from {} differ", to.shape(), from.shape());
    row_elements *= to.dim(i);
  }
  for (const RowRun& run : runs) {
    require(run.rows >= 0 && run.from >= 0 && run.to >= 0 && run.from + run.rows <= from.dim(0) &&
                run.to + run.rows <= to.dim(0),
            "copy_rows: {} rows from {} to {} are outside from {} or to {}", run.rows, run.from, run.to, from.shape(),
            to.shape());
  }
  return static_cast<std::size_t>(row_elements) * size_of(to.dtype());
}

inline void check_swap_outer(const Tensor& to, const Tensor& from) {
  require_rank("swap_outer", "from", from, 3);
  require_tensor("swap_outer", "to", to, from.dtype(), {from.dim(1), from.dim(0), from.dim(2)});
}

inline void check_add(const Tensor& y, const Tensor& x) {
  if (y.defined() && y.dtype() == DType::i64) {
    require_dtype("add", "x", x, {DType::i32});
  } else {
    require_float("add", "y", y);
    require_float("add", "x", x);
  }
  require_elements("add", "y", y, x.elements());
}

inline void check_multiply(const Tensor& y, const Tensor& x) {
  require_float("multiply", "y", y);
  require_float("multiply", "x", x);
  require_elements("multiply", "y", y, x.elements());
}

inline void check_sum_squares(const Tensor& out, const Tensor& x) {
  require_float("sum_squares", "x", x);
  require_tensor("sum_squares", "out", out, DType::f64, {1});
}

inline void check_sum(const Tensor& out, const Tensor& x) {
  require_dtype("sum", "x", x, {DType::f32, DType::bf16, DType::f64});
  require_tensor("sum", "out", out, DType::f64, {1});
}

inline void check_reduce_matrix(const Tensor& rows, const Tensor& columns, const Tensor& all, const Tensor& x,
                                ReduceOp how) {
  require_dtype("reduce_matrix", "x", x, {DType::f32});
  require_rank("reduce_matrix", "x", x, 2);
  const auto check = [](const char* name, const Tensor& to, std::int64_t numbers) {
    if (to.defined()) {
      require_tensor("reduce_matrix", name, to, DType::f64, {numbers});
    }
  };
  check("rows", rows, x.dim(0));
  check("columns", columns, x.dim(1));
  check("all", all, 1);
  require(how == ReduceOp::sum || how == ReduceOp::max, "reduce_matrix: how is neither sum nor max");
}

inline void check_init_normal(const Tensor& w) {
  require_dtype("init_normal", "w", w, {DType::f32});
  require_rank("init_normal", "w", w, 2);
}

// dropout, jitter.
inline void check_random_scale(const char* operation, const Tensor& y, const Tensor& x, const Tensor& token) {
  require_float(operation, "x", x);
  require_rank(operation, "x", x, 2);
  require_tensor(operation, "y", y, x.dtype(), x.shape());
  require_dtype(operation, "token", token, {DType::i64});
  require_elements(operation, "token", token, x.dim(0));
}

inline void check_dropout(const Tensor& y, const Tensor& x, const Tensor& token, float p) {
  require(p >= 0.0f && p < 1.0f, "dropout: p must lie in [0, 1), got {}", p);
  check_random_scale("dropout", y, x, token);
}

inline void check_norm(const Tensor& y, const Tensor& stats, const Tensor& x, const Tensor& weight,
                       const Tensor& bias) {
  require_float("norm", "x", x);
  require_rank("norm", "x", x, 2);
  require_tensor("norm", "y", y, x.dtype(), x.shape());
  require_tensor("norm", "stats", stats, DType::f32, {x.dim(0), 2});
  require_tensor("norm", "weight", weight, DType::f32, {x.dim(1)});
  if (bias.defined()) {
    require_tensor("norm", "bias", bias, DType::f32, {x.dim(1)});
  }
}

inline void check_norm_backward(const Tensor& dx, const Tensor& dweight, const Tensor& dbias, const Tensor& dy,
                                const Tensor& x, const Tensor& stats, const Tensor& weight) {
  require_float("norm_backward", "x", x);
  require_rank("norm_backward", "x", x, 2);
  require_tensor("norm_backward", "dx", dx, x.dtype(), x.shape());
  require_tensor("norm_backward", "dy", dy, x.dtype(), x.shape());
  require_tensor("norm_backward", "stats", stats, DType::f32, {x.dim(0), 2});
  require_tensor("norm_backward", "weight", weight, DType::f32, {x.dim(1)});
  require_tensor("norm_backward", "dweight", dweight, DType::f32, {x.dim(1)});
  if (dbias.defined()) {
    require_tensor("norm_backward", "dbias", dbias, DType::f32, {x.dim(1)});
  }
}

// a [T, f] and h [T, n].
inline void check_activation(const char* operation, const Tensor& a, const Tensor& h, Activation kind) {
  require_float(operation, "h", h);
  require_dtype(operation, "a", a, {h.dtype()});
  require_rank(operation, "a", a, 2);
  require_shape(operation, "h", h, {a.dim(0), is_gated(kind) ? 2 * a.dim(1) : a.dim(1)});
}

inline void check_activation_backward(const Tensor& dh, const Tensor& da, const Tensor& h, Activation kind) {
  check_activation("activation_backward", da, h, kind);
  require_tensor("activation_backward", "dh", dh, h.dtype(), h.shape());
}

inline void check_weighted_activation_backward(const Tensor& dh, const Tensor& a, const Tensor& dweight,
                                               const Tensor& da, const Tensor& h, const Tensor& weight,
                                               const Tensor& source, Activation kind) {
  constexpr const char* name = "weighted_activation_backward";
  check_activation(name, a, h, kind);
  require_tensor(name, "da", da, h.dtype(), a.shape());
  require_tensor(name, "dh", dh, h.dtype(), h.shape());
  require_rank(name, "weight", weight, 2);
  require_tensor(name, "weight", weight, DType::f32, weight.shape());
  require_tensor(name, "dweight", dweight, DType::f32, weight.shape());
  if (source.defined()) {
    require_dtype(name, "source", source, {DType::i32});
    require(source.elements() >= a.dim(0), "{}: source must have the {} rows at least, got shape {}", name, a.dim(0),
            source.shape());
  } else {
    require_elements(name, "weight", weight, a.dim(0));
  }
}

// y [T, d], table [V_r, d], id i32[T]. The ids themselves are not looked at.
inline void check_rows_of_table(const char* operation, const Tensor& y, const Tensor& table, const Tensor& id,
                                std::int64_t first_row) {
  require(first_row >= 0 || first_row == Stream::whole_table, "{}: the table's first row is {}", operation, first_row);
  require_rank(operation, "table", table, 2);
  require_rank(operation, "y", y, 2);
  require_shape(operation, "y", y, {y.dim(0), table.dim(1)});
  require_dtype(operation, "id", id, {DType::i32});
  require_elements(operation, "id", id, y.dim(0));
}

inline void check_embedding(const Tensor& y, const Tensor& table, const Tensor& id, std::int64_t first_row) {
  require_float("embedding", "y", y);
  require_float("embedding", "table", table);
  check_rows_of_table("embedding", y, table, id, first_row);
}

inline void check_embedding_backward(const Tensor& dtable, const Tensor& dy, const Tensor& id, std::int64_t first_row) {
  require_dtype("embedding_backward", "dtable", dtable, {DType::f32});
  require_float("embedding_backward", "dy", dy);
  check_rows_of_table("embedding_backward", dy, dtable, id, first_row);
}

// logits [T, V] f, label i32[T]. The labels themselves are not looked at.
inline void check_logits(const char* operation, const Tensor& logits, const Tensor& label) {
  require_float(operation, "logits", logits);
  require_rank(operation, "logits", logits, 2);
  require_dtype(operation, "label", label, {DType::i32});
  require_elements(operation, "label", label, logits.dim(0));
}

inline void check_cross_entropy(const Tensor& loss, const Tensor& logits, const Tensor& label) {
  check_logits("cross_entropy", logits, label);
  require_dtype("cross_entropy", "loss", loss, {DType::f32});
  require_elements("cross_entropy", "loss", loss, logits.dim(0));
}

inline void check_cross_entropy_stats(const Tensor& stats, const Tensor& logits, const Tensor& label,
                                      std::int64_t first_column) {
  check_logits("cross_entropy_stats", logits, label);
  require(first_column >= 0, "cross_entropy_stats: the first column of the logits is {}", first_column);
  require_tensor("cross_entropy_stats", "stats", stats, DType::f32, {logits.dim(0), 3});
}

inline void check_cross_entropy_from_stats(const Tensor& loss, const Tensor& logits, const Tensor& label,
                                           const Tensor& stats, std::int64_t first_column) {
  check_logits("cross_entropy_from_stats", logits, label);
  require(first_column >= 0, "cross_entropy_from_stats: the first column of the logits is {}", first_column);
  require_dtype("cross_entropy_from_stats", "loss", loss, {DType::f32});
  require_elements("cross_entropy_from_stats", "loss", loss, logits.dim(0));
  require_rank("cross_entropy_from_stats", "stats", stats, 3);
  require_tensor("cross_entropy_from_stats", "stats", stats, DType::f32, {stats.dim(0), logits.dim(0), 3});
}

// adamw_replay, sgd_replay: all but their states.
inline void check_replay(const char* operation, const Tensor& master, const Tensor& weight) {
  require_dtype(operation, "master", master, {DType::f32});
  require_float(operation, "weight", weight);
  require_elements(operation, "weight", weight, master.elements());
}

// adamw, sgd, descend: all but their states.
inline void check_optimizer(const char* operation, const Tensor& master, const Tensor& weight, const Tensor& grad,
                            const Tensor& factor) {
  check_replay(operation, master, weight);
  require_dtype(operation, "grad", grad, {DType::f32});
  require_elements(operation, "grad", grad, master.elements());
  require_tensor(operation, "factor", factor, DType::f32, {1});
}

inline void check_optimizer_state(const char* operation, const char* name, const Tensor& state, const Tensor& master) {
  require_dtype(operation, name, state, {DType::f32});
  require_elements(operation, name, state, master.elements());
}

inline void check_normalize(const Tensor& x, const Tensor& sum_squares) {
  require_dtype("normalize", "x", x, {DType::f32});
  require_tensor("normalize", "sum_squares", sum_squares, DType::f64, {1});
}

inline void check_clip_factor(const Tensor& factor, const Tensor& sum_squares, const Tensor& loss) {
  require_tensor("clip_factor", "factor", factor, DType::f32, {1});
  require_tensor("clip_factor", "sum_squares", sum_squares, DType::f64, {1});
  require_tensor("clip_factor", "loss", loss, DType::f64, {1});
}

}  // namespace orthant
