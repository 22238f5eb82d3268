// SPDX-License-Identifier: Apache-2.0
#include "explicit_rotary_math.h"

namespace {

struct RotateOnHost {
    template <typename Element, int width>
    int32_t operator()(ExplicitRotaryArguments const& arguments) const {
        explicit_rotary::RowPlan const plan = explicit_rotary::plan_row(arguments, width);
        for (int64_t token = 0; token < arguments.num_tokens; ++token) {
            for (int32_t unit = 0; unit < plan.units_per_row; ++unit) {
                explicit_rotary::process_unit<Element, width>(plan,
                    static_cast<Element const*>(arguments.qkv), arguments.position_ids,
                    arguments.cos_sin, static_cast<Element*>(arguments.output), token, unit);
            }
        }
        return EXPLICIT_ROTARY_SUCCESS;
    }
};

} // namespace

extern "C" int32_t explicit_rotary_host(ExplicitRotaryArguments const* arguments) {
    int32_t const status = explicit_rotary::check_arguments(arguments);
    if (status != EXPLICIT_ROTARY_SUCCESS) {
        return status;
    }
    return explicit_rotary::dispatch(*arguments, RotateOnHost{});
}
