// SPDX-License-Identifier: Apache-2.0
// Filling, copying, converting, joining and rearranging tensors. No arithmetic.
#include <chrono>
#include <thread>

#include "ops/checks.h"
#include "ops/operator.h"

using namespace emu::ops;

OPERATOR(aclnnCast, [](In self, ScalarType, Out out) { out.copy_(self); })
CHECKED_OPERATOR(
    aclnnInplaceCopy,
    [](Out self, In source) { check_broadcast({self.sizes(), source.sizes()}, self.sizes()); },
    [](Out self, In source) { self.copy_(source); })
OPERATOR(aclnnInplaceZero, [](Out self) { self.zero_(); })
OPERATOR(aclnnInplaceOne, [](Out self) { self.fill_(1); })
OPERATOR(aclnnInplaceFillScalar, [](Out self, const Scalar& value) { self.fill_(value); })
OPERATOR(aclnnInplaceFillTensor, [](Out self, In value) { self.fill_(value.reshape({})); })
OPERATOR(aclnnInplaceFillDiagonal,
         [](InOut self, const Scalar& value, bool wrap) { self.fill_diagonal_(value, wrap); })

// Keeps the stream busy without computing. A cycle is taken as a nanosecond.
OPERATOR(aclnnSleep, [](Ints cycles) {
  for (const int64_t count : cycles) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(count));
  }
})

OPERATOR(aclnnArange, [](const Scalar& start, const Scalar& end, const Scalar& step, Out out) {
  at::arange_out(out, start, end, step);
})
OPERATOR(aclnnRange, [](const Scalar& start, const Scalar& end, const Scalar& step, Out out) {
  at::range_out(out, start, end, step);
})
OPERATOR(aclnnLinspace, [](const Scalar& start, const Scalar& end, int64_t steps, Out out) {
  at::linspace_out(out, start, end, steps);
})
OPERATOR(aclnnLogSpace, [](const Scalar& start, const Scalar& end, int64_t steps, double base,
                           Out out) { at::logspace_out(out, start, end, steps, base); })
OPERATOR(aclnnEye, [](int64_t rows, int64_t columns, Out out) { at::eye_out(out, rows, columns); })
OPERATOR(aclnnOneHot, [](In self, int64_t depth, In on_value, In off_value, int64_t axis, Out out) {
  const int64_t dim = axis < 0 ? axis + out.dim() : axis;
  std::vector<int64_t> shape(out.dim(), 1);
  shape[dim] = depth;
  const Tensor classes = at::arange(depth, self.options().dtype(at::kLong)).view(shape);
  const Tensor hot = self.unsqueeze(dim).eq(classes);
  out.copy_(at::where(hot, on_value.reshape({}), off_value.reshape({})));
})

OPERATOR(aclnnCat, [](InList tensors, int64_t dim, Out out) { at::cat_out(out, tensors, dim); })
OPERATOR(aclnnStack, [](InList tensors, int64_t dim, Out out) { at::stack_out(out, tensors, dim); })
OPERATOR(aclnnSplitWithSize, [](In self, Ints sizes, int64_t dim, OutList out) {
  const TensorVector parts = at::split_with_sizes(self, sizes, dim);
  for (size_t i = 0; i < parts.size(); ++i) {
    out[i].copy_(parts[i]);
  }
})
OPERATOR(aclnnChunkCat, [](InList tensors, int64_t dim, int64_t chunks, Out out) {
  at::_chunk_cat_out(out, tensors, dim, chunks);
})
OPERATOR(aclnnRepeat, [](In self, Ints repeats, Out out) { out.copy_(self.repeat(repeats)); })
OPERATOR(aclnnRepeatInterleave, [](In self, In repeats, int64_t, Out out) {
  out.copy_(at::repeat_interleave(self.reshape(-1), repeats.to(at::kLong), 0));
})
OPERATOR(aclnnRepeatInterleaveWithDim, [](In self, In repeats, int64_t dim, int64_t, Out out) {
  out.copy_(at::repeat_interleave(self, repeats.to(at::kLong), dim));
})
OPERATOR(aclnnRepeatInterleaveInt, [](In self, int64_t repeats, int64_t, Out out) {
  out.copy_(at::repeat_interleave(self.reshape(-1), repeats, 0));
})
OPERATOR(aclnnRepeatInterleaveIntWithDim,
         [](In self, int64_t repeats, int64_t dim, int64_t, Out out) {
           out.copy_(at::repeat_interleave(self, repeats, dim));
         })
OPERATOR(aclnnRepeatInterleaveTensor, [](In repeats, int64_t, Out out) {
  out.copy_(at::repeat_interleave(repeats.to(at::kLong)));
})
OPERATOR(aclnnFlip, [](In self, Ints dims, Out out) { out.copy_(self.flip(dims)); })
OPERATOR(aclnnRoll,
         [](In self, Ints shifts, Ints dims, Out out) { out.copy_(at::roll(self, shifts, dims)); })
OPERATOR(aclnnTriu, [](In self, int64_t diagonal, Out out) { at::triu_out(out, self, diagonal); })
OPERATOR(aclnnTril, [](In self, int64_t diagonal, Out out) { at::tril_out(out, self, diagonal); })
OPERATOR(aclnnInplaceTriu, [](InOut self, int64_t diagonal) { self.triu_(diagonal); })
OPERATOR(aclnnInplaceTril, [](InOut self, int64_t diagonal) { self.tril_(diagonal); })
OPERATOR(aclnnConstantPadNd, [](In self, Ints pad, const Scalar& value, Out out) {
  out.copy_(at::constant_pad_nd(self, pad, value));
})
OPERATOR(aclnnReflectionPad1d,
         [](In self, Ints pad, Out out) { at::reflection_pad1d_out(out, self, pad); })
OPERATOR(aclnnReflectionPad2d,
         [](In self, Ints pad, Out out) { at::reflection_pad2d_out(out, self, pad); })
OPERATOR(aclnnReplicationPad1d,
         [](In self, Ints pad, Out out) { at::replication_pad1d_out(out, self, pad); })
OPERATOR(aclnnReplicationPad2d,
         [](In self, Ints pad, Out out) { at::replication_pad2d_out(out, self, pad); })
OPERATOR(aclnnChannelShuffle,
         [](In self, int64_t groups, Out out) { out.copy_(at::channel_shuffle(self, groups)); })
OPERATOR(aclnnConfusionTranspose,
         [](In self, Ints order, Ints shape, bool transpose_first, Out out) {
           out.copy_(transpose_first ? self.permute(order).reshape(shape)
                                     : self.reshape(shape).permute(order));
         })
OPERATOR(aclnnIm2col, [](In self, Ints kernel, Ints dilation, Ints padding, Ints stride, Out out) {
  at::im2col_out(out, self, kernel, dilation, padding, stride);
})
// Masks of npu_indexing are bits by dimension; the others than these have no caller.
OPERATOR(aclnnStridedSlice, [](In self, Ints begin, Ints end, Ints strides, int64_t begin_mask,
                               int64_t end_mask, int64_t ellipsis_mask, int64_t new_axis_mask,
                               int64_t shrink_axis_mask, Out out) {
  require(ellipsis_mask == 0 && new_axis_mask == 0 && shrink_axis_mask == 0,
          "only begin and end masks are emulated");
  Tensor view = self;
  for (size_t dim = 0; dim < begin.size(); ++dim) {
    const bool from_start = (begin_mask >> dim) & 1;
    const bool to_end = (end_mask >> dim) & 1;
    view = view.slice(static_cast<int64_t>(dim), from_start ? 0 : begin[dim],
                      to_end ? view.size(static_cast<int64_t>(dim)) : end[dim], strides[dim]);
  }
  out.copy_(view);
})
