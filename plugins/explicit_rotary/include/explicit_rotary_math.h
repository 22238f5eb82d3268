// SPDX-License-Identifier: Apache-2.0
//
// The rotation itself, compiled for the host and for the device from this one text: what a CPU test
// shows about values and addresses holds for the kernel too. Every product and every sum is rounded
// on its own, as Hugging Face's eager apply_rotary_pos_emb does in float32, and the result is rounded
// once to the element type. Only the payload of a NaN may differ between host and device.
#ifndef EXPLICIT_ROTARY_MATH_H
#define EXPLICIT_ROTARY_MATH_H

#include "explicit_rotary_api.h"

#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define EXPLICIT_ROTARY_INLINE __host__ __device__ __forceinline__
#else
#define EXPLICIT_ROTARY_INLINE inline
#endif

namespace explicit_rotary {

struct Float16 {
    uint16_t bits;
};

struct BFloat16 {
    uint16_t bits;
};

#if !defined(__CUDA_ARCH__)

inline uint32_t bits_of(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    return bits;
}

inline float float_of(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
}

inline float widen_float16(uint16_t bits) {
    uint32_t const sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
    uint32_t const exponent = (bits >> 10) & 0x1fu;
    uint32_t const mantissa = bits & 0x3ffu;
    if (exponent == 0) {
        float const magnitude = static_cast<float>(mantissa) * 0x1p-24f;
        return float_of(sign | bits_of(magnitude));
    }
    if (exponent == 0x1fu) {
        return float_of(sign | 0x7f800000u | (mantissa << 13));
    }
    return float_of(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

inline uint16_t round_to_float16(float value) {
    uint32_t const bits = bits_of(value);
    uint32_t const sign = (bits >> 16) & 0x8000u;
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return static_cast<uint16_t>(sign | 0x7e00u);
    }
    constexpr uint32_t smallest_that_rounds_to_infinity = 0x477ff000u;
    if (magnitude >= smallest_that_rounds_to_infinity) {
        return static_cast<uint16_t>(sign | 0x7c00u);
    }
    constexpr uint32_t smallest_normal = 0x38800000u;
    if (magnitude < smallest_normal) {
        // 0.5 has the spacing of float16's subnormals (2^-24), so this sum rounds to even exactly there.
        float const rounded = float_of(magnitude) + 0.5f;
        return static_cast<uint16_t>(sign | (bits_of(rounded) - bits_of(0.5f)));
    }
    magnitude += 0x0fffu + ((magnitude >> 13) & 1u);
    return static_cast<uint16_t>(sign | ((magnitude - 0x38000000u) >> 13));
}

inline uint16_t round_to_bfloat16(float value) {
    uint32_t const bits = bits_of(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return 0x7fc0u;
    }
    return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

#endif

EXPLICIT_ROTARY_INLINE float widen(float element) { return element; }

EXPLICIT_ROTARY_INLINE float widen(Float16 element) {
#if defined(__CUDA_ARCH__)
    return __half2float(__ushort_as_half(element.bits));
#else
    return widen_float16(element.bits);
#endif
}

EXPLICIT_ROTARY_INLINE float widen(BFloat16 element) {
#if defined(__CUDA_ARCH__)
    return __bfloat162float(__ushort_as_bfloat16(element.bits));
#else
    return float_of(static_cast<uint32_t>(element.bits) << 16);
#endif
}

EXPLICIT_ROTARY_INLINE void round_into(float& element, float value) { element = value; }

EXPLICIT_ROTARY_INLINE void round_into(Float16& element, float value) {
#if defined(__CUDA_ARCH__)
    element.bits = __half_as_ushort(__float2half_rn(value));
#else
    element.bits = round_to_float16(value);
#endif
}

EXPLICIT_ROTARY_INLINE void round_into(BFloat16& element, float value) {
#if defined(__CUDA_ARCH__)
    element.bits = __bfloat16_as_ushort(__float2bfloat16_rn(value));
#else
    element.bits = round_to_bfloat16(value);
#endif
}

// The intrinsics keep the device compiler from fusing a product and a sum, whatever its flags are.
EXPLICIT_ROTARY_INLINE float rounded_product(float left, float right) {
#if defined(__CUDA_ARCH__)
    return __fmul_rn(left, right);
#else
    return left * right;
#endif
}

EXPLICIT_ROTARY_INLINE float rounded_sum(float left, float right) {
#if defined(__CUDA_ARCH__)
    return __fadd_rn(left, right);
#else
    return left + right;
#endif
}

struct RotatedPair {
    float first;
    float second;
};

EXPLICIT_ROTARY_INLINE RotatedPair rotate_pair(float first, float second, float cosine, float sine) {
    return {rounded_sum(rounded_product(first, cosine), rounded_product(-second, sine)),
        rounded_sum(rounded_product(second, cosine), rounded_product(first, sine))};
}

EXPLICIT_ROTARY_INLINE int32_t clamp_position(int32_t position, int32_t max_position) {
    if (position < 0) {
        return 0;
    }
    return position < max_position ? position : max_position - 1;
}

constexpr int pack_bytes = 16;

/// `width` neighbouring elements that are read or written in 16-byte accesses.
template <typename Element, int width>
struct alignas(width * sizeof(Element) < pack_bytes ? width * sizeof(Element) : pack_bytes) Pack {
    Element elements[width];
};

template <typename Element, int width>
EXPLICIT_ROTARY_INLINE Pack<Element, width> load_pack(Element const* address) {
    return *reinterpret_cast<Pack<Element, width> const*>(address);
}

template <typename Element, int width>
EXPLICIT_ROTARY_INLINE void store_pack(Element* address, Pack<Element, width> const& pack) {
    *reinterpret_cast<Pack<Element, width>*>(address) = pack;
}

/// How one token's row divides into units of work: a unit turns two packs of a q or k head or
/// copies one pack. Units touch disjoint elements, so any number of them may run at once, in place too.
struct RowPlan {
    int32_t pair_units_per_head;
    int32_t units_per_rotated_head;
    int32_t units_of_rotated_heads;
    int32_t units_per_row;
    int32_t head_size;
    int32_t rotary_dim;
    int32_t max_position;
    int32_t rotated_width;
    int32_t row_width;
};

/// Row widths stay below this, so that 32-bit arithmetic inside a row cannot overflow.
constexpr int64_t row_width_limit = int64_t{1} << 30;

inline int32_t check_arguments(ExplicitRotaryArguments const* arguments) {
    if (arguments == nullptr) {
        return EXPLICIT_ROTARY_NULL_POINTER;
    }
    ExplicitRotaryArguments const& given = *arguments;
    if (given.rotary_style != EXPLICIT_ROTARY_HALF) {
        return EXPLICIT_ROTARY_BAD_STYLE;
    }
    if (given.element_type < EXPLICIT_ROTARY_FLOAT32 || given.element_type > EXPLICIT_ROTARY_BFLOAT16) {
        return EXPLICIT_ROTARY_BAD_ELEMENT_TYPE;
    }
    if (given.num_q_heads < 1 || given.num_kv_heads < 1 || given.head_size < 2 || given.rotary_dim < 2
        || given.rotary_dim % 2 != 0 || given.rotary_dim > given.head_size || given.max_position < 1) {
        return EXPLICIT_ROTARY_BAD_GEOMETRY;
    }
    int64_t const heads = int64_t{given.num_q_heads} + 2 * int64_t{given.num_kv_heads};
    if (heads > row_width_limit / given.head_size) {
        return EXPLICIT_ROTARY_BAD_GEOMETRY;
    }
    if (given.num_tokens < 0 || given.num_tokens > INT32_MAX) {
        return EXPLICIT_ROTARY_BAD_TOKEN_COUNT;
    }
    if (given.num_tokens > 0
        && (given.qkv == nullptr || given.position_ids == nullptr || given.cos_sin == nullptr
            || given.output == nullptr)) {
        return EXPLICIT_ROTARY_NULL_POINTER;
    }
    return EXPLICIT_ROTARY_SUCCESS;
}

/// The elements in a 16-byte pack where every head, its rotated half and all addresses allow packs, else 1.
template <typename Element>
int choose_pack_width(ExplicitRotaryArguments const& arguments) {
    constexpr int width = pack_bytes / sizeof(Element);
    bool const heads_divide = arguments.rotary_dim % (2 * width) == 0 && arguments.head_size % width == 0;
    uintptr_t const addresses = reinterpret_cast<uintptr_t>(arguments.qkv)
        | reinterpret_cast<uintptr_t>(arguments.cos_sin) | reinterpret_cast<uintptr_t>(arguments.output);
    return heads_divide && addresses % pack_bytes == 0 ? width : 1;
}

inline RowPlan plan_row(ExplicitRotaryArguments const& arguments, int pack_width) {
    RowPlan plan{};
    plan.head_size = arguments.head_size;
    plan.rotary_dim = arguments.rotary_dim;
    plan.max_position = arguments.max_position;
    plan.rotated_width = (arguments.num_q_heads + arguments.num_kv_heads) * arguments.head_size;
    plan.row_width = plan.rotated_width + arguments.num_kv_heads * arguments.head_size;
    plan.pair_units_per_head = arguments.rotary_dim / 2 / pack_width;
    plan.units_per_rotated_head
        = plan.pair_units_per_head + (arguments.head_size - arguments.rotary_dim) / pack_width;
    plan.units_of_rotated_heads
        = (arguments.num_q_heads + arguments.num_kv_heads) * plan.units_per_rotated_head;
    plan.units_per_row
        = plan.units_of_rotated_heads + arguments.num_kv_heads * (arguments.head_size / pack_width);
    return plan;
}

template <typename Element, int width>
EXPLICIT_ROTARY_INLINE void copy_pack(Element const* source, Element* target) {
    store_pack<Element, width>(target, load_pack<Element, width>(source));
}

template <typename Element, int width>
EXPLICIT_ROTARY_INLINE void rotate_packs(
    Element const* source, Element* target, float const* cosines, int32_t half_dim) {
    Pack<Element, width> first = load_pack<Element, width>(source);
    Pack<Element, width> second = load_pack<Element, width>(source + half_dim);
    Pack<float, width> const cosine = load_pack<float, width>(cosines);
    Pack<float, width> const sine = load_pack<float, width>(cosines + half_dim);
    for (int index = 0; index < width; ++index) {
        RotatedPair const rotated = rotate_pair(widen(first.elements[index]),
            widen(second.elements[index]), cosine.elements[index], sine.elements[index]);
        round_into(first.elements[index], rotated.first);
        round_into(second.elements[index], rotated.second);
    }
    store_pack<Element, width>(target, first);
    store_pack<Element, width>(target + half_dim, second);
}

template <typename Element, int width>
EXPLICIT_ROTARY_INLINE void process_unit(RowPlan const& plan, Element const* qkv,
    int32_t const* position_ids, float const* cos_sin, Element* output, int64_t token, int32_t unit) {
    int64_t const row_start = token * plan.row_width;
    if (unit >= plan.units_of_rotated_heads) {
        int64_t const offset
            = row_start + plan.rotated_width + (unit - plan.units_of_rotated_heads) * width;
        copy_pack<Element, width>(qkv + offset, output + offset);
        return;
    }
    int32_t const head = unit / plan.units_per_rotated_head;
    int32_t const unit_in_head = unit - head * plan.units_per_rotated_head;
    int64_t const head_start = row_start + head * plan.head_size;
    if (unit_in_head >= plan.pair_units_per_head) {
        int64_t const offset
            = head_start + plan.rotary_dim + (unit_in_head - plan.pair_units_per_head) * width;
        copy_pack<Element, width>(qkv + offset, output + offset);
        return;
    }
    int64_t const position = clamp_position(position_ids[token], plan.max_position);
    int64_t const offset = head_start + unit_in_head * width;
    float const* const cosines = cos_sin + position * plan.rotary_dim + unit_in_head * width;
    rotate_packs<Element, width>(qkv + offset, output + offset, cosines, plan.rotary_dim / 2);
}

/// Calls `run.template operator()<Element, width>(arguments)` with the types that the arguments name.
template <typename Run>
int32_t dispatch(ExplicitRotaryArguments const& arguments, Run const& run) {
    switch (arguments.element_type) {
    case EXPLICIT_ROTARY_FLOAT32:
        return choose_pack_width<float>(arguments) == 1 ? run.template operator()<float, 1>(arguments)
                                                        : run.template operator()<float, 4>(arguments);
    case EXPLICIT_ROTARY_FLOAT16:
        return choose_pack_width<Float16>(arguments) == 1
            ? run.template operator()<Float16, 1>(arguments)
            : run.template operator()<Float16, 8>(arguments);
    case EXPLICIT_ROTARY_BFLOAT16:
        return choose_pack_width<BFloat16>(arguments) == 1
            ? run.template operator()<BFloat16, 1>(arguments)
            : run.template operator()<BFloat16, 8>(arguments);
    default: return EXPLICIT_ROTARY_BAD_ELEMENT_TYPE;
    }
}

} // namespace explicit_rotary

#endif
