// SPDX-License-Identifier: Apache-2.0
// Random numbers: counter-based Philox 4x32-10, so that a value depends on seed, offset and
// position only, never on threads or on what ran before. The hardware's own stream of numbers is
// not public; this one agrees with it in distribution, not in values.
#include <ATen/Parallel.h>
#include <ATen/core/PhiloxRNGEngine.h>

#include <cmath>

#include "ops/operator.h"

namespace {
using namespace emu::ops;

// The state of one call. In a captured graph seed and offset live on the device, so that each
// replay draws anew.
struct State {
  uint64_t seed;
  uint64_t offset;
};

State device_state(const Tensor& seed, const Tensor& offset, uint64_t offset_in_graph) {
  return {static_cast<uint64_t>(seed.reshape(-1)[0].item<int64_t>()),
          static_cast<uint64_t>(offset.reshape(-1)[0].item<int64_t>()) + offset_in_graph};
}

// Four 32-bit words for each group of elements: counter (offset, group), key seed.
struct Words {
  uint32_t word[4];
};
Words words_of(const State& state, uint64_t group) {
  at::Philox4_32 engine(state.seed, group, state.offset);
  Words words;
  for (uint32_t& word : words.word) {
    word = engine();
  }
  return words;
}

// [0, 1) with 24 bits.
float uniform24(uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }
// [0, 1) with 53 bits.
double uniform53(uint32_t high, uint32_t low) {
  return static_cast<double>(((uint64_t{high} << 32) | low) >> 11) * 0x1p-53;
}

// `count` values of type T, kPerGroup from each group of words by convert(words, values).
template <class T, int kPerGroup, class Convert>
Tensor draw(const State& state, int64_t count, ScalarType dtype, Convert convert) {
  const int64_t groups = (count + kPerGroup - 1) / kPerGroup;
  Tensor values = at::empty({groups * kPerGroup}, at::TensorOptions().dtype(dtype));
  T* data = values.mutable_data_ptr<T>();
  at::parallel_for(0, groups, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t group = begin; group < end; ++group) {
      convert(words_of(state, group), data + group * kPerGroup);
    }
  });
  return values.slice(0, 0, count);
}

// [0, 1): float64 for float64, else float32.
Tensor uniform(const State& state, int64_t count, ScalarType dtype) {
  if (dtype == at::kDouble) {
    return draw<double, 2>(state, count, at::kDouble, [](const Words& w, double* value) {
      value[0] = uniform53(w.word[0], w.word[1]);
      value[1] = uniform53(w.word[2], w.word[3]);
    });
  }
  return draw<float, 4>(state, count, at::kFloat, [](const Words& w, float* value) {
    for (int i = 0; i < 4; ++i) {
      value[i] = uniform24(w.word[i]);
    }
  });
}

// Standard normal by Box and Muller.
Tensor normal(const State& state, int64_t count, ScalarType dtype) {
  if (dtype == at::kDouble) {
    return draw<double, 2>(state, count, at::kDouble, [](const Words& w, double* value) {
      const double radius = std::sqrt(-2 * std::log1p(-uniform53(w.word[0], w.word[1])));
      const double angle = 2 * M_PI * uniform53(w.word[2], w.word[3]);
      value[0] = radius * std::cos(angle);
      value[1] = radius * std::sin(angle);
    });
  }
  return draw<float, 4>(state, count, at::kFloat, [](const Words& w, float* value) {
    for (int i = 0; i < 4; i += 2) {
      const float radius = std::sqrt(-2 * std::log1p(-uniform24(w.word[i])));
      const float angle = 2 * static_cast<float>(M_PI) * uniform24(w.word[i + 1]);
      value[i] = radius * std::cos(angle);
      value[i + 1] = radius * std::sin(angle);
    }
  });
}

void fill_uniform(Tensor self, double from, double to, const State& state) {
  Tensor values = uniform(state, self.numel(), self.scalar_type()).mul_(to - from).add_(from);
  self.copy_(values.view(self.sizes()));
  // Rounding to a half type may reach the open end.
  if (to > from) {
    self.masked_fill_(self.ge(to), from);
  }
}

void fill_normal(Tensor self, double mean, double std, const State& state) {
  Tensor values = normal(state, self.numel(), self.scalar_type()).mul_(std).add_(mean);
  self.copy_(values.view(self.sizes()));
}

void fill_normal(Tensor self, const Tensor& mean, const Tensor& std, const State& state) {
  const Tensor values = normal(state, self.numel(), self.scalar_type()).view(self.sizes());
  self.copy_(values * std + mean);
}

// Integers of [from, to).
void fill_random(Tensor self, int64_t from, int64_t to, const State& state) {
  require(to > from, "random_ needs from < to and got ", from, " and ", to);
  const uint64_t range = static_cast<uint64_t>(to) - static_cast<uint64_t>(from);
  const Tensor values =
      draw<int64_t, 2>(state, self.numel(), at::kLong, [&](const Words& w, int64_t* value) {
        for (int i = 0; i < 2; ++i) {
          const uint64_t bits = (uint64_t{w.word[2 * i]} << 32) | w.word[2 * i + 1];
          value[i] = static_cast<int64_t>(bits % range + static_cast<uint64_t>(from));
        }
      });
  self.copy_(values.view(self.sizes()));
}

// All that the dtype represents exactly, as torch.Tensor.random_() without bounds.
void fill_random(Tensor self, const State& state) {
  int64_t end = 0;
  switch (self.scalar_type()) {
    case at::kBool:
      end = 2;
      break;
    case at::kByte:
      end = 256;
      break;
    case at::kChar:
      end = 128;
      break;
    case at::kShort:
      end = 32768;
      break;
    case at::kInt:
      end = 2147483647;
      break;
    case at::kHalf:
      end = 2049;
      break;
    case at::kBFloat16:
      end = 257;
      break;
    case at::kFloat:
      end = (int64_t{1} << 24) + 1;
      break;
    case at::kDouble:
      end = (int64_t{1} << 53) + 1;
      break;
    default:
      end = std::numeric_limits<int64_t>::max();
  }
  fill_random(self, 0, end, state);
}

// 1 - u is in (0, 1], so that the logarithm is finite.
Tensor exponential(const State& state, int64_t count, ScalarType dtype) {
  return uniform(state, count, dtype).neg_().log1p_().neg_();
}

// weights [..., categories], not normalised; out [..., samples] int64.
void multinomial(const Tensor& weights, int64_t samples, bool replacement, const State& state,
                 Tensor out) {
  const Tensor rows = weights.reshape({-1, weights.size(-1)}).to(at::kFloat);
  require(!rows.lt(0).any().item<bool>() && at::isfinite(rows).all().item<bool>(),
          "weights must be finite and not negative");
  require(!rows.sum(-1).le(0).any().item<bool>(), "a row of weights sums to zero");
  Tensor chosen;
  if (replacement) {
    Tensor cumulative = rows.to(at::kDouble).cumsum(-1);
    const Tensor total = cumulative.slice(-1, rows.size(1) - 1).contiguous();
    const Tensor draws =
        uniform(state, rows.size(0) * samples, at::kDouble).view({rows.size(0), samples}) * total;
    chosen = at::searchsorted(cumulative.contiguous(), draws.contiguous(), false, /*right=*/true)
                 .clamp_max(rows.size(1) - 1);
  } else {
    // The order of weight / exponential is a draw without replacement.
    const Tensor noise = exponential(state, rows.numel(), at::kFloat).view(rows.sizes());
    chosen = std::get<1>(rows.div(noise).topk(samples, -1));
  }
  out.copy_(chosen.view(out.sizes()));
}
}  // namespace

OPERATOR(aclnnInplaceUniform, [](Out self, double from, double to, uint64_t seed, uint64_t offset) {
  fill_uniform(self, from, to, {seed, offset});
})
OPERATOR(aclnnInplaceUniformTensor,
         [](Out self, double from, double to, In seed, In offset, uint64_t offset_in_graph) {
           fill_uniform(self, from, to, device_state(seed, offset, offset_in_graph));
         })
OPERATOR(aclnnInplaceNormal, [](Out self, float mean, float std, uint64_t seed, uint64_t offset) {
  fill_normal(self, mean, std, {seed, offset});
})
OPERATOR(aclnnInplaceNormalTensor,
         [](Out self, float mean, float std, In seed, In offset, uint64_t offset_in_graph) {
           fill_normal(self, mean, std, device_state(seed, offset, offset_in_graph));
         })
OPERATOR(aclnnNormalFloatFloat, [](float mean, float std, uint64_t seed, uint64_t offset, Out out) {
  fill_normal(out, mean, std, {seed, offset});
})
OPERATOR(aclnnNormalFloatTensor, [](float mean, In std, uint64_t seed, uint64_t offset, Out out) {
  fill_normal(out, at::full({}, mean), std, {seed, offset});
})
OPERATOR(aclnnNormalTensorFloat, [](In mean, float std, uint64_t seed, uint64_t offset, Out out) {
  fill_normal(out, mean, at::full({}, std), {seed, offset});
})
OPERATOR(aclnnNormalTensorTensor, [](In mean, In std, uint64_t seed, uint64_t offset, Out out) {
  fill_normal(out, mean, std, {seed, offset});
})
OPERATOR(aclnnInplaceRandom, [](Out self, int64_t from, int64_t to, uint64_t seed,
                                uint64_t offset) { fill_random(self, from, to, {seed, offset}); })
OPERATOR(aclnnInplaceRandomTensor,
         [](Out self, int64_t from, int64_t to, In seed, In offset, uint64_t offset_in_graph) {
           fill_random(self, from, to, device_state(seed, offset, offset_in_graph));
         })
OPERATOR(aclnnInplaceRandomWithoutFromTo,
         [](Out self, uint64_t seed, uint64_t offset) { fill_random(self, {seed, offset}); })
OPERATOR(aclnnInplaceRandomWithoutFromToTensor,
         [](Out self, In seed, In offset, uint64_t offset_in_graph) {
           fill_random(self, device_state(seed, offset, offset_in_graph));
         })
OPERATOR(aclnnSimThreadExponential, [](Out self, int64_t, double rate, uint64_t seed,
                                       uint64_t offset) {
  self.copy_(
      exponential({seed, offset}, self.numel(), self.scalar_type()).div_(rate).view(self.sizes()));
})
OPERATOR(aclnnInplaceBernoulli, [](Out self, const Scalar& p, uint64_t seed, uint64_t offset) {
  self.copy_(uniform({seed, offset}, self.numel(), at::kFloat).lt(p).view(self.sizes()));
})
// `self` may be `p`: bernoulli of a tensor by itself.
OPERATOR(aclnnInplaceBernoulliTensor, [](InOut self, In p, uint64_t seed, uint64_t offset) {
  self.copy_(uniform({seed, offset}, self.numel(), at::kFloat).view(self.sizes()).lt(p));
})
OPERATOR(aclnnMultinomial,
         [](In self, int64_t samples, bool replacement, uint64_t seed, uint64_t offset, Out out) {
           multinomial(self, samples, replacement, {seed, offset}, out);
         })
OPERATOR(aclnnMultinomialTensor, [](In self, int64_t samples, bool replacement, In seed, In offset,
                                    uint64_t offset_in_graph, Out out) {
  multinomial(self, samples, replacement, device_state(seed, offset, offset_in_graph), out);
})
OPERATOR(aclnnRandperm, [](int64_t n, uint64_t seed, uint64_t offset, Out out) {
  out.copy_(uniform({seed, offset}, n, at::kDouble).argsort());
})
