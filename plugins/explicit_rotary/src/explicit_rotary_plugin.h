// SPDX-License-Identifier: Apache-2.0
#ifndef EXPLICIT_ROTARY_PLUGIN_H
#define EXPLICIT_ROTARY_PLUGIN_H

#include <NvInferRuntime.h>

#include <array>
#include <cstdint>

namespace explicit_rotary {

constexpr char const* plugin_name = "ExplicitRotary";
constexpr char const* plugin_version = "1";
constexpr char const* plugin_namespace = "specprefill";

/// What a plugin is created with and what an engine file keeps of it.
struct PluginFields {
    int32_t num_q_heads;
    int32_t num_kv_heads;
    int32_t head_size;
    int32_t rotary_dim;
    int32_t rotary_style;
    int32_t field_version;
};

constexpr int32_t field_count = 6;
constexpr int32_t supported_field_version = 1;

/// Stateless: the fields are all it holds, so clones and execution contexts share nothing.
class ExplicitRotaryPlugin final : public nvinfer1::IPluginV3,
                                   public nvinfer1::IPluginV3OneCore,
                                   public nvinfer1::IPluginV3OneBuild,
                                   public nvinfer1::IPluginV3OneRuntime {
public:
    explicit ExplicitRotaryPlugin(PluginFields const& fields) noexcept;
    ExplicitRotaryPlugin(ExplicitRotaryPlugin const&) = delete;
    ExplicitRotaryPlugin& operator=(ExplicitRotaryPlugin const&) = delete;

    nvinfer1::IPluginCapability* getCapabilityInterface(
        nvinfer1::PluginCapabilityType type) noexcept override;
    nvinfer1::IPluginV3* clone() noexcept override;

    char const* getPluginName() const noexcept override;
    char const* getPluginVersion() const noexcept override;
    char const* getPluginNamespace() const noexcept override;

    int32_t configurePlugin(nvinfer1::DynamicPluginTensorDesc const* inputs, int32_t input_count,
        nvinfer1::DynamicPluginTensorDesc const* outputs, int32_t output_count) noexcept override;
    int32_t getOutputDataTypes(nvinfer1::DataType* output_types, int32_t output_count,
        nvinfer1::DataType const* input_types, int32_t input_count) const noexcept override;
    int32_t getOutputShapes(nvinfer1::DimsExprs const* inputs, int32_t input_count,
        nvinfer1::DimsExprs const* shape_inputs, int32_t shape_input_count,
        nvinfer1::DimsExprs* outputs, int32_t output_count,
        nvinfer1::IExprBuilder& expression_builder) noexcept override;
    bool supportsFormatCombination(int32_t position,
        nvinfer1::DynamicPluginTensorDesc const* tensors, int32_t input_count,
        int32_t output_count) noexcept override;
    int32_t getNbOutputs() const noexcept override;
    char const* getTimingCacheID() noexcept override;

    int32_t onShapeChange(nvinfer1::PluginTensorDesc const* inputs, int32_t input_count,
        nvinfer1::PluginTensorDesc const* outputs, int32_t output_count) noexcept override;
    int32_t enqueue(nvinfer1::PluginTensorDesc const* input_descriptions,
        nvinfer1::PluginTensorDesc const* output_descriptions, void const* const* inputs,
        void* const* outputs, void* workspace, cudaStream_t stream) noexcept override;
    nvinfer1::IPluginV3* attachToContext(
        nvinfer1::IPluginResourceContext* context) noexcept override;
    nvinfer1::PluginFieldCollection const* getFieldsToSerialize() noexcept override;

private:
    int64_t qkv_width() const noexcept;

    PluginFields fields_;
    std::array<nvinfer1::PluginField, field_count> serialized_fields_;
    nvinfer1::PluginFieldCollection serialized_collection_;
    std::array<char, 96> timing_cache_id_;
};

/// Makes plugins for the build phase and from the fields of an engine file.
class ExplicitRotaryCreator final : public nvinfer1::IPluginCreatorV3One {
public:
    ExplicitRotaryCreator() noexcept;

    nvinfer1::IPluginV3* createPlugin(char const* layer_name,
        nvinfer1::PluginFieldCollection const* collection,
        nvinfer1::TensorRTPhase phase) noexcept override;
    nvinfer1::PluginFieldCollection const* getFieldNames() noexcept override;
    char const* getPluginName() const noexcept override;
    char const* getPluginVersion() const noexcept override;
    char const* getPluginNamespace() const noexcept override;

private:
    std::array<nvinfer1::PluginField, field_count> field_names_;
    nvinfer1::PluginFieldCollection field_name_collection_;
};

} // namespace explicit_rotary

#endif
