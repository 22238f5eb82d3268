// SPDX-License-Identifier: Apache-2.0
#include "explicit_rotary_math.h"

#include <algorithm>

namespace {

constexpr int threads_per_block = 128;
constexpr int32_t largest_grid_height = 65535;

template <typename Element, int width>
__global__ void __launch_bounds__(threads_per_block) rotate_rows(explicit_rotary::RowPlan const plan,
    Element const* qkv, int32_t const* position_ids, float const* cos_sin, Element* output) {
    int32_t const stride = static_cast<int32_t>(gridDim.y * blockDim.x);
    int32_t unit = static_cast<int32_t>(blockIdx.y * blockDim.x + threadIdx.x);
    for (; unit < plan.units_per_row; unit += stride) {
        explicit_rotary::process_unit<Element, width>(
            plan, qkv, position_ids, cos_sin, output, static_cast<int64_t>(blockIdx.x), unit);
    }
}

struct RotateOnDevice {
    cudaStream_t stream;

    template <typename Element, int width>
    int32_t operator()(ExplicitRotaryArguments const& arguments) const {
        explicit_rotary::RowPlan const plan = explicit_rotary::plan_row(arguments, width);
        int32_t const blocks_per_row
            = (plan.units_per_row + threads_per_block - 1) / threads_per_block;
        // Tokens go along x, the only axis of a grid that is not limited to 65535 blocks.
        dim3 const grid(static_cast<unsigned>(arguments.num_tokens),
            static_cast<unsigned>(std::min(blocks_per_row, largest_grid_height)));
        // The launch's own result: cudaGetLastError would take an error that belongs to somebody else.
        void const* qkv = arguments.qkv;
        void* output = arguments.output;
        int32_t const* position_ids = arguments.position_ids;
        float const* cos_sin = arguments.cos_sin;
        void* kernel_arguments[] = {const_cast<explicit_rotary::RowPlan*>(&plan), &qkv,
            &position_ids, &cos_sin, &output};
        return static_cast<int32_t>(
            cudaLaunchKernel(reinterpret_cast<void const*>(&rotate_rows<Element, width>), grid,
                dim3(threads_per_block), kernel_arguments, 0, stream));
    }
};

} // namespace

extern "C" int32_t explicit_rotary_launch(ExplicitRotaryArguments const* arguments, void* stream) {
    int32_t const status = explicit_rotary::check_arguments(arguments);
    if (status != EXPLICIT_ROTARY_SUCCESS || arguments->num_tokens == 0) {
        return status;
    }
    return explicit_rotary::dispatch(*arguments, RotateOnDevice{static_cast<cudaStream_t>(stream)});
}
