// SPDX-License-Identifier: Apache-2.0
#include "explicit_rotary_plugin.h"

#include "explicit_rotary_math.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <new>

using nvinfer1::DataType;
using nvinfer1::Dims;
using nvinfer1::PluginField;
using nvinfer1::PluginFieldType;
using nvinfer1::TensorFormat;

namespace explicit_rotary {
namespace {

constexpr int32_t qkv_index = 0;
constexpr int32_t position_ids_index = 1;
constexpr int32_t cos_sin_index = 2;
constexpr int32_t input_count_expected = 3;
constexpr int32_t output_count_expected = 1;
constexpr int32_t failure = 1;

struct FieldEntry {
    char const* name;
    int32_t PluginFields::*member;
};

constexpr FieldEntry field_table[field_count] = {
    {"num_q_heads", &PluginFields::num_q_heads},
    {"num_kv_heads", &PluginFields::num_kv_heads},
    {"head_size", &PluginFields::head_size},
    {"rotary_dim", &PluginFields::rotary_dim},
    {"rotary_style", &PluginFields::rotary_style},
    {"field_version", &PluginFields::field_version},
};

// TensorRT's own logger exists only after a builder or runtime does, and creators fail before that too.
[[gnu::format(printf, 1, 2)]] void log_error(char const* format, ...) noexcept {
    char line[512];
    va_list values;
    va_start(values, format);
    std::vsnprintf(line, sizeof(line), format, values);
    va_end(values);
    std::fprintf(stderr, "[ExplicitRotary] error: %s\n", line);
}

ExplicitRotaryArguments arguments_of(PluginFields const& fields) noexcept {
    ExplicitRotaryArguments arguments{};
    arguments.num_q_heads = fields.num_q_heads;
    arguments.num_kv_heads = fields.num_kv_heads;
    arguments.head_size = fields.head_size;
    arguments.rotary_dim = fields.rotary_dim;
    arguments.rotary_style = fields.rotary_style;
    return arguments;
}

bool fields_are_sound(PluginFields const& fields, char const* layer_name) noexcept {
    if (fields.field_version != supported_field_version) {
        log_error("layer '%s': field_version is %d, this library reads %d", layer_name,
            fields.field_version, supported_field_version);
        return false;
    }
    ExplicitRotaryArguments arguments = arguments_of(fields);
    arguments.max_position = 1;
    if (check_arguments(&arguments) != EXPLICIT_ROTARY_SUCCESS) {
        log_error("layer '%s': out of range: num_q_heads %d, num_kv_heads %d, head_size %d, "
                  "rotary_dim %d (even, 2..head_size), rotary_style %d (0)",
            layer_name, fields.num_q_heads, fields.num_kv_heads, fields.head_size,
            fields.rotary_dim, fields.rotary_style);
        return false;
    }
    return true;
}

bool read_fields(nvinfer1::PluginFieldCollection const* collection, char const* layer_name,
    PluginFields& fields) noexcept {
    if (collection == nullptr || (collection->nbFields > 0 && collection->fields == nullptr)) {
        log_error("layer '%s': no fields were given", layer_name);
        return false;
    }
    bool seen[field_count] = {};
    for (int32_t given = 0; given < collection->nbFields; ++given) {
        PluginField const& field = collection->fields[given];
        char const* const name = field.name == nullptr ? "(null)" : field.name;
        int32_t entry = 0;
        while (entry < field_count && std::strcmp(field_table[entry].name, name) != 0) {
            ++entry;
        }
        if (entry == field_count) {
            log_error("layer '%s': unknown field '%s'", layer_name, name);
            return false;
        }
        if (seen[entry]) {
            log_error("layer '%s': field '%s' is given twice", layer_name, name);
            return false;
        }
        if (field.type != PluginFieldType::kINT32 || field.length != 1 || field.data == nullptr) {
            log_error("layer '%s': field '%s' must be one INT32", layer_name, name);
            return false;
        }
        std::memcpy(&(fields.*field_table[entry].member), field.data, sizeof(int32_t));
        seen[entry] = true;
    }
    for (int32_t entry = 0; entry < field_count; ++entry) {
        if (!seen[entry]) {
            log_error(
                "layer '%s': field '%s' is missing", layer_name, field_table[entry].name);
            return false;
        }
    }
    return fields_are_sound(fields, layer_name);
}

bool counts_match(int32_t input_count, int32_t output_count) noexcept {
    if (input_count == input_count_expected && output_count == output_count_expected) {
        return true;
    }
    log_error("%d inputs and %d outputs, expected %d and %d", input_count, output_count,
        input_count_expected, output_count_expected);
    return false;
}

constexpr int64_t any_size = -1;

bool sizes_agree(int64_t size, int64_t expected) noexcept {
    return size == any_size || expected == any_size || size == expected;
}

bool shape_is(char const* tensor, Dims const& dims, std::initializer_list<int64_t> expected) noexcept {
    bool agrees = dims.nbDims == static_cast<int32_t>(expected.size());
    int32_t axis = 0;
    for (int64_t const size : expected) {
        agrees = agrees && sizes_agree(dims.d[axis], size);
        ++axis;
    }
    if (!agrees) {
        log_error("%s has an unexpected shape (rank %d, sizes %lld and %lld)", tensor, dims.nbDims,
            dims.nbDims > 0 ? static_cast<long long>(dims.d[0]) : 0LL,
            dims.nbDims > 1 ? static_cast<long long>(dims.d[1]) : 0LL);
    }
    return agrees;
}

bool shapes_match(Dims const& qkv, Dims const& position_ids, Dims const& cos_sin,
    Dims const& output, int64_t qkv_width, int64_t rotary_dim) noexcept {
    return shape_is("qkv", qkv, {any_size, qkv_width})
        && shape_is("position_ids", position_ids, {qkv.d[0]})
        && shape_is("cos_sin", cos_sin, {any_size, rotary_dim})
        && shape_is("output", output, {qkv.d[0], qkv_width});
}

bool types_match(DataType qkv, DataType position_ids, DataType cos_sin, DataType output) noexcept {
    bool const match = (qkv == DataType::kHALF || qkv == DataType::kBF16)
        && position_ids == DataType::kINT32 && cos_sin == DataType::kFLOAT && output == qkv;
    if (!match) {
        log_error("types of qkv, position_ids, cos_sin and output are %d, %d, %d and %d",
            static_cast<int>(qkv), static_cast<int>(position_ids), static_cast<int>(cos_sin),
            static_cast<int>(output));
    }
    return match;
}

int32_t check_tensors(nvinfer1::PluginTensorDesc const& qkv,
    nvinfer1::PluginTensorDesc const& position_ids, nvinfer1::PluginTensorDesc const& cos_sin,
    nvinfer1::PluginTensorDesc const& output, int64_t qkv_width, int64_t rotary_dim) noexcept {
    bool const match = types_match(qkv.type, position_ids.type, cos_sin.type, output.type)
        && shapes_match(qkv.dims, position_ids.dims, cos_sin.dims, output.dims, qkv_width, rotary_dim);
    return match ? 0 : failure;
}

} // namespace

ExplicitRotaryPlugin::ExplicitRotaryPlugin(PluginFields const& fields) noexcept
    : fields_(fields)
    , serialized_collection_{field_count, serialized_fields_.data()} {
    for (int32_t entry = 0; entry < field_count; ++entry) {
        serialized_fields_[entry] = PluginField(
            field_table[entry].name, &(fields_.*field_table[entry].member), PluginFieldType::kINT32, 1);
    }
    std::snprintf(timing_cache_id_.data(), timing_cache_id_.size(), "q%d_kv%d_head%d_rotary%d_style%d",
        fields_.num_q_heads, fields_.num_kv_heads, fields_.head_size, fields_.rotary_dim,
        fields_.rotary_style);
}

int64_t ExplicitRotaryPlugin::qkv_width() const noexcept {
    return (int64_t{fields_.num_q_heads} + 2 * int64_t{fields_.num_kv_heads}) * fields_.head_size;
}

nvinfer1::IPluginCapability* ExplicitRotaryPlugin::getCapabilityInterface(
    nvinfer1::PluginCapabilityType type) noexcept {
    switch (type) {
    case nvinfer1::PluginCapabilityType::kCORE: return static_cast<nvinfer1::IPluginV3OneCore*>(this);
    case nvinfer1::PluginCapabilityType::kBUILD: return static_cast<nvinfer1::IPluginV3OneBuild*>(this);
    case nvinfer1::PluginCapabilityType::kRUNTIME:
        return static_cast<nvinfer1::IPluginV3OneRuntime*>(this);
    }
    return nullptr;
}

nvinfer1::IPluginV3* ExplicitRotaryPlugin::clone() noexcept {
    return new (std::nothrow) ExplicitRotaryPlugin(fields_);
}

char const* ExplicitRotaryPlugin::getPluginName() const noexcept { return plugin_name; }

char const* ExplicitRotaryPlugin::getPluginVersion() const noexcept { return plugin_version; }

char const* ExplicitRotaryPlugin::getPluginNamespace() const noexcept { return plugin_namespace; }

int32_t ExplicitRotaryPlugin::configurePlugin(nvinfer1::DynamicPluginTensorDesc const* inputs,
    int32_t input_count, nvinfer1::DynamicPluginTensorDesc const* outputs,
    int32_t output_count) noexcept {
    if (!counts_match(input_count, output_count)) {
        return failure;
    }
    return check_tensors(inputs[qkv_index].desc, inputs[position_ids_index].desc,
        inputs[cos_sin_index].desc, outputs[0].desc, qkv_width(), fields_.rotary_dim);
}

int32_t ExplicitRotaryPlugin::getOutputDataTypes(DataType* output_types, int32_t output_count,
    DataType const* input_types, int32_t input_count) const noexcept {
    if (!counts_match(input_count, output_count)) {
        return failure;
    }
    output_types[0] = input_types[qkv_index];
    return 0;
}

int32_t ExplicitRotaryPlugin::getOutputShapes(nvinfer1::DimsExprs const* inputs,
    int32_t input_count, nvinfer1::DimsExprs const*, int32_t shape_input_count,
    nvinfer1::DimsExprs* outputs, int32_t output_count, nvinfer1::IExprBuilder&) noexcept {
    if (!counts_match(input_count, output_count)) {
        return failure;
    }
    if (shape_input_count != 0) {
        log_error("%d shape inputs, expected none", shape_input_count);
        return failure;
    }
    if (inputs[qkv_index].nbDims != 2 || inputs[position_ids_index].nbDims != 1
        || inputs[cos_sin_index].nbDims != 2) {
        log_error("qkv, position_ids and cos_sin have ranks %d, %d and %d, expected 2, 1 and 2",
            inputs[qkv_index].nbDims, inputs[position_ids_index].nbDims,
            inputs[cos_sin_index].nbDims);
        return failure;
    }
    outputs[0] = inputs[qkv_index];
    return 0;
}

bool ExplicitRotaryPlugin::supportsFormatCombination(int32_t position,
    nvinfer1::DynamicPluginTensorDesc const* tensors, int32_t input_count,
    int32_t output_count) noexcept {
    if (!counts_match(input_count, output_count)) {
        return false;
    }
    nvinfer1::PluginTensorDesc const& tensor = tensors[position].desc;
    if (tensor.format != TensorFormat::kLINEAR) {
        return false;
    }
    switch (position) {
    case qkv_index: return tensor.type == DataType::kHALF || tensor.type == DataType::kBF16;
    case position_ids_index: return tensor.type == DataType::kINT32;
    case cos_sin_index: return tensor.type == DataType::kFLOAT;
    case input_count_expected: return tensor.type == tensors[qkv_index].desc.type;
    default: return false;
    }
}

int32_t ExplicitRotaryPlugin::getNbOutputs() const noexcept { return output_count_expected; }

char const* ExplicitRotaryPlugin::getTimingCacheID() noexcept { return timing_cache_id_.data(); }

int32_t ExplicitRotaryPlugin::onShapeChange(nvinfer1::PluginTensorDesc const* inputs,
    int32_t input_count, nvinfer1::PluginTensorDesc const* outputs, int32_t output_count) noexcept {
    if (!counts_match(input_count, output_count)) {
        return failure;
    }
    return check_tensors(inputs[qkv_index], inputs[position_ids_index], inputs[cos_sin_index],
        outputs[0], qkv_width(), fields_.rotary_dim);
}

int32_t ExplicitRotaryPlugin::enqueue(nvinfer1::PluginTensorDesc const* input_descriptions,
    nvinfer1::PluginTensorDesc const*, void const* const* inputs, void* const* outputs, void*,
    cudaStream_t stream) noexcept {
    nvinfer1::PluginTensorDesc const& qkv = input_descriptions[qkv_index];
    ExplicitRotaryArguments arguments = arguments_of(fields_);
    arguments.num_tokens = qkv.dims.d[0];
    if (arguments.num_tokens == 0) {
        return 0;
    }
    int64_t const max_position = input_descriptions[cos_sin_index].dims.d[0];
    if (max_position > INT32_MAX) {
        log_error("cos_sin has %lld rows, more than an INT32 position can name",
            static_cast<long long>(max_position));
        return failure;
    }
    arguments.qkv = inputs[qkv_index];
    arguments.position_ids = static_cast<int32_t const*>(inputs[position_ids_index]);
    arguments.cos_sin = static_cast<float const*>(inputs[cos_sin_index]);
    arguments.output = outputs[0];
    arguments.max_position = static_cast<int32_t>(max_position);
    arguments.element_type
        = qkv.type == DataType::kHALF ? EXPLICIT_ROTARY_FLOAT16 : EXPLICIT_ROTARY_BFLOAT16;
    int32_t const status = explicit_rotary_launch(&arguments, stream);
    if (status != EXPLICIT_ROTARY_SUCCESS) {
        log_error("the launch failed with status %d (positive: a cudaError_t)", status);
    }
    return status;
}

nvinfer1::IPluginV3* ExplicitRotaryPlugin::attachToContext(
    nvinfer1::IPluginResourceContext*) noexcept {
    return clone();
}

nvinfer1::PluginFieldCollection const* ExplicitRotaryPlugin::getFieldsToSerialize() noexcept {
    return &serialized_collection_;
}

ExplicitRotaryCreator::ExplicitRotaryCreator() noexcept
    : field_name_collection_{field_count, field_names_.data()} {
    for (int32_t entry = 0; entry < field_count; ++entry) {
        field_names_[entry]
            = PluginField(field_table[entry].name, nullptr, PluginFieldType::kINT32, 1);
    }
}

nvinfer1::IPluginV3* ExplicitRotaryCreator::createPlugin(char const* layer_name,
    nvinfer1::PluginFieldCollection const* collection, nvinfer1::TensorRTPhase) noexcept {
    PluginFields fields{};
    if (!read_fields(collection, layer_name == nullptr ? "" : layer_name, fields)) {
        return nullptr;
    }
    return new (std::nothrow) ExplicitRotaryPlugin(fields);
}

nvinfer1::PluginFieldCollection const* ExplicitRotaryCreator::getFieldNames() noexcept {
    return &field_name_collection_;
}

char const* ExplicitRotaryCreator::getPluginName() const noexcept { return plugin_name; }

char const* ExplicitRotaryCreator::getPluginVersion() const noexcept { return plugin_version; }

char const* ExplicitRotaryCreator::getPluginNamespace() const noexcept { return plugin_namespace; }

} // namespace explicit_rotary

/// Registers the creator in the process's plugin registry: 1 if this call did, 0 if one was there, -1 on failure.
extern "C" EXPLICIT_ROTARY_EXPORT int32_t explicit_rotary_register() noexcept {
    using namespace explicit_rotary;
    // Never destroyed: the registry keeps a reference to it until the process ends.
    static ExplicitRotaryCreator* const creator = new (std::nothrow) ExplicitRotaryCreator;
    nvinfer1::IPluginRegistry* const registry = getPluginRegistry();
    if (creator == nullptr || registry == nullptr) {
        log_error("there is no plugin registry to register in");
        return -1;
    }
    if (registry->getCreator(plugin_name, plugin_version, plugin_namespace) != nullptr) {
        return 0;
    }
    if (!registry->registerCreator(*creator, plugin_namespace)) {
        log_error("the plugin registry refused the creator");
        return -1;
    }
    return 1;
}

/// The major version of the TensorRT headers that this library was compiled with.
extern "C" EXPLICIT_ROTARY_EXPORT int32_t explicit_rotary_tensorrt_major() noexcept {
    return NV_TENSORRT_MAJOR;
}

namespace {
[[maybe_unused]] int32_t const registered_at_load = explicit_rotary_register();
}
