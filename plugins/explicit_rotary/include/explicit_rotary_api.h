// SPDX-License-Identifier: Apache-2.0
#ifndef EXPLICIT_ROTARY_API_H
#define EXPLICIT_ROTARY_API_H

#include <stdint.h>

#define EXPLICIT_ROTARY_EXPORT __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

enum ExplicitRotaryElementType {
    EXPLICIT_ROTARY_FLOAT32 = 0,
    EXPLICIT_ROTARY_FLOAT16 = 1,
    EXPLICIT_ROTARY_BFLOAT16 = 2,
};

enum ExplicitRotaryStyle {
    /// Element i of the first half turns with element i of the second half (NeoX, Hugging Face).
    EXPLICIT_ROTARY_HALF = 0,
};

/// Zero is success and a positive status is a cudaError_t.
enum ExplicitRotaryStatus {
    EXPLICIT_ROTARY_SUCCESS = 0,
    EXPLICIT_ROTARY_NULL_POINTER = -1,
    EXPLICIT_ROTARY_BAD_GEOMETRY = -2,
    EXPLICIT_ROTARY_BAD_ELEMENT_TYPE = -3,
    EXPLICIT_ROTARY_BAD_STYLE = -4,
    EXPLICIT_ROTARY_BAD_TOKEN_COUNT = -5,
};

/// One rotation. All tensors are dense, row-major and in the memory of the device that works on them.
/// `output` may be `qkv` itself; any other overlap is undefined.
struct ExplicitRotaryArguments {
    /// [num_tokens, (num_q_heads + 2 * num_kv_heads) * head_size]: q heads, k heads, v heads.
    void const* qkv;
    /// [num_tokens]; values outside [0, max_position - 1] are clamped into it.
    int32_t const* position_ids;
    /// [max_position, rotary_dim]: cosines, then sines.
    float const* cos_sin;
    /// As qkv.
    void* output;
    int64_t num_tokens;
    int32_t num_q_heads;
    int32_t num_kv_heads;
    int32_t head_size;
    /// Even, from 2 to head_size: the leading elements of each q and k head that turn.
    int32_t rotary_dim;
    int32_t max_position;
    /// An ExplicitRotaryElementType, of qkv and output.
    int32_t element_type;
    /// An ExplicitRotaryStyle.
    int32_t rotary_style;
};

/// Rotates in host memory; returns an ExplicitRotaryStatus.
EXPLICIT_ROTARY_EXPORT int32_t explicit_rotary_host(struct ExplicitRotaryArguments const* arguments);

/// Enqueues the rotation in device memory on `stream` (a cudaStream_t) and returns at once: an
/// ExplicitRotaryStatus, or the cudaError_t of the launch. Allocates nothing and never
/// synchronises, so it can be captured into a CUDA graph.
EXPLICIT_ROTARY_EXPORT int32_t explicit_rotary_launch(
    struct ExplicitRotaryArguments const* arguments, void* stream);

#ifdef __cplusplus
}
#endif

#endif
