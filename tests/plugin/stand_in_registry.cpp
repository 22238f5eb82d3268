// SPDX-License-Identifier: Apache-2.0
//
// A stand-in for libnvinfer: the plugin registry that the plugin registers in, and C functions that
// call a plugin as TensorRT would. It shows what the plugin answers, not how TensorRT behaves.
#include <NvInferRuntime.h>

#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#define STAND_IN_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using nvinfer1::DataType;
using nvinfer1::IPluginV3;
using nvinfer1::PluginField;
using nvinfer1::PluginFieldType;

struct Registered {
    std::string name_space;
    nvinfer1::IPluginCreatorV3One* creator;
};

class StandInRegistry final : public nvinfer1::IPluginRegistry {
public:
    std::vector<Registered> registered;
    int32_t calls = 0;
    bool refuses = false;

    bool registerCreator(
        nvinfer1::IPluginCreatorInterface& creator, char const* name_space) noexcept override {
        ++calls;
        auto& creator_v3 = static_cast<nvinfer1::IPluginCreatorV3One&>(creator);
        if (refuses
            || getCreator(creator_v3.getPluginName(), creator_v3.getPluginVersion(), name_space)
                != nullptr) {
            return false;
        }
        registered.push_back({name_space, &creator_v3});
        return true;
    }

    nvinfer1::IPluginCreatorInterface* getCreator(
        char const* name, char const* version, char const* name_space) noexcept override {
        for (Registered const& entry : registered) {
            if (entry.name_space == name_space
                && std::strcmp(entry.creator->getPluginName(), name) == 0
                && std::strcmp(entry.creator->getPluginVersion(), version) == 0) {
                return entry.creator;
            }
        }
        return nullptr;
    }

    bool registerCreator(nvinfer1::IPluginCreator&, char const*) noexcept override { return false; }
    nvinfer1::IPluginCreator* const* getPluginCreatorList(int32_t*) const noexcept override {
        return nullptr;
    }
    nvinfer1::IPluginCreator* getPluginCreator(
        char const*, char const*, char const*) noexcept override {
        return nullptr;
    }
    void setErrorRecorder(nvinfer1::IErrorRecorder*) noexcept override {}
    nvinfer1::IErrorRecorder* getErrorRecorder() const noexcept override { return nullptr; }
    bool deregisterCreator(nvinfer1::IPluginCreator const&) noexcept override { return false; }
    bool isParentSearchEnabled() const override { return false; }
    void setParentSearchEnabled(bool) override {}
    PluginLibraryHandle loadLibrary(char const*) noexcept override { return nullptr; }
    void deregisterLibrary(PluginLibraryHandle) noexcept override {}
    nvinfer1::IPluginCreatorInterface* const* getAllCreators(int32_t*) const noexcept override {
        return nullptr;
    }
    bool deregisterCreator(nvinfer1::IPluginCreatorInterface const&) noexcept override {
        return false;
    }
    nvinfer1::IPluginResource* acquirePluginResource(
        char const*, nvinfer1::IPluginResource*) noexcept override {
        return nullptr;
    }
    int32_t releasePluginResource(char const*) noexcept override { return 0; }
    nvinfer1::IPluginCreatorInterface* const* getAllCreatorsRecursive(int32_t*) noexcept override {
        return nullptr;
    }
};

StandInRegistry& registry() {
    static StandInRegistry instance;
    return instance;
}

struct Tensor {
    int32_t type;
    int32_t format;
    int32_t rank;
    int64_t sizes[4];
};

nvinfer1::PluginTensorDesc describe(Tensor const& tensor) {
    nvinfer1::PluginTensorDesc description{};
    description.type = static_cast<DataType>(tensor.type);
    description.format = static_cast<nvinfer1::TensorFormat>(tensor.format);
    description.dims.nbDims = tensor.rank;
    std::memcpy(description.dims.d, tensor.sizes, sizeof(tensor.sizes));
    return description;
}

std::vector<nvinfer1::PluginTensorDesc> describe_all(Tensor const* tensors, int32_t count) {
    std::vector<nvinfer1::PluginTensorDesc> descriptions;
    for (int32_t index = 0; index < count; ++index) {
        descriptions.push_back(describe(tensors[index]));
    }
    return descriptions;
}

std::vector<nvinfer1::DynamicPluginTensorDesc> describe_all_dynamic(
    Tensor const* tensors, int32_t count) {
    std::vector<nvinfer1::DynamicPluginTensorDesc> descriptions;
    for (int32_t index = 0; index < count; ++index) {
        nvinfer1::DynamicPluginTensorDesc description{};
        description.desc = describe(tensors[index]);
        description.min = description.max = description.opt = description.desc.dims;
        descriptions.push_back(description);
    }
    return descriptions;
}

template <typename Capability>
Capability* capability(void* plugin, nvinfer1::PluginCapabilityType type) {
    return static_cast<Capability*>(static_cast<IPluginV3*>(plugin)->getCapabilityInterface(type));
}

nvinfer1::IPluginV3OneBuild* build_side(void* plugin) {
    return capability<nvinfer1::IPluginV3OneBuild>(plugin, nvinfer1::PluginCapabilityType::kBUILD);
}

nvinfer1::IPluginV3OneRuntime* runtime_side(void* plugin) {
    return capability<nvinfer1::IPluginV3OneRuntime>(
        plugin, nvinfer1::PluginCapabilityType::kRUNTIME);
}

nvinfer1::IPluginCreatorV3One* find_creator(char const* name_space) {
    return static_cast<nvinfer1::IPluginCreatorV3One*>(
        registry().getCreator("ExplicitRotary", "1", name_space));
}

struct Expression final : nvinfer1::IDimensionExpr {};
struct ExpressionBuilder final : nvinfer1::IExprBuilder {};

} // namespace

STAND_IN_EXPORT nvinfer1::IPluginRegistry* getPluginRegistry() noexcept { return &registry(); }

STAND_IN_EXPORT int32_t stand_in_registration_calls() { return registry().calls; }

STAND_IN_EXPORT int32_t stand_in_registered_creators() {
    return static_cast<int32_t>(registry().registered.size());
}

STAND_IN_EXPORT void stand_in_forget_creators(int32_t refuse_new_ones) {
    registry().registered.clear();
    registry().refuses = refuse_new_ones != 0;
}

STAND_IN_EXPORT int32_t stand_in_has_creator(
    char const* name, char const* version, char const* name_space) {
    return registry().getCreator(name, version, name_space) != nullptr;
}

STAND_IN_EXPORT int32_t stand_in_field_names(
    char const* name_space, char const** names, int32_t* types, int32_t* lengths) {
    nvinfer1::PluginFieldCollection const* fields = find_creator(name_space)->getFieldNames();
    for (int32_t index = 0; index < fields->nbFields; ++index) {
        names[index] = fields->fields[index].name;
        types[index] = static_cast<int32_t>(fields->fields[index].type);
        lengths[index] = fields->fields[index].length;
    }
    return fields->nbFields;
}

STAND_IN_EXPORT void* stand_in_create(char const* name_space, int32_t phase, int32_t count,
    char const* const* names, int32_t const* types, int32_t const* lengths,
    void const* const* values) {
    std::vector<PluginField> fields;
    for (int32_t index = 0; index < count; ++index) {
        fields.emplace_back(names[index], values[index],
            static_cast<PluginFieldType>(types[index]), lengths[index]);
    }
    nvinfer1::PluginFieldCollection const collection{count, fields.data()};
    return find_creator(name_space)
        ->createPlugin("layer", &collection, static_cast<nvinfer1::TensorRTPhase>(phase));
}

STAND_IN_EXPORT void* stand_in_create_from_nothing(char const* name_space) {
    return find_creator(name_space)->createPlugin(
        "layer", nullptr, nvinfer1::TensorRTPhase::kRUNTIME);
}

/// Keeps only copies of the serialised fields, destroys the plugin, and creates one from the copies.
STAND_IN_EXPORT void* stand_in_serialise_and_recreate(char const* name_space, void* plugin) {
    nvinfer1::PluginFieldCollection const* given = runtime_side(plugin)->getFieldsToSerialize();
    std::deque<std::string> names;
    std::deque<int32_t> values;
    std::vector<PluginField> fields;
    for (int32_t index = 0; index < given->nbFields; ++index) {
        PluginField const& field = given->fields[index];
        if (field.type != PluginFieldType::kINT32 || field.length != 1) {
            return nullptr;
        }
        names.emplace_back(field.name);
        values.push_back(*static_cast<int32_t const*>(field.data));
        fields.emplace_back(names.back().c_str(), &values.back(), field.type, field.length);
    }
    delete static_cast<IPluginV3*>(plugin);
    nvinfer1::PluginFieldCollection const collection{
        static_cast<int32_t>(fields.size()), fields.data()};
    return find_creator(name_space)->createPlugin(
        "layer", &collection, nvinfer1::TensorRTPhase::kRUNTIME);
}

STAND_IN_EXPORT int32_t stand_in_serialised_fields(
    void* plugin, char const** names, int32_t* values) {
    nvinfer1::PluginFieldCollection const* fields = runtime_side(plugin)->getFieldsToSerialize();
    for (int32_t index = 0; index < fields->nbFields; ++index) {
        names[index] = fields->fields[index].name;
        values[index] = *static_cast<int32_t const*>(fields->fields[index].data);
    }
    return fields->nbFields;
}

STAND_IN_EXPORT void* stand_in_clone(void* plugin) {
    return static_cast<IPluginV3*>(plugin)->clone();
}

STAND_IN_EXPORT void* stand_in_attach_to_context(void* plugin) {
    return runtime_side(plugin)->attachToContext(nullptr);
}

STAND_IN_EXPORT void stand_in_destroy(void* plugin) { delete static_cast<IPluginV3*>(plugin); }

STAND_IN_EXPORT int32_t stand_in_identity(
    void* plugin, char const** name, char const** version, char const** name_space) {
    auto* core = capability<nvinfer1::IPluginV3OneCore>(
        plugin, nvinfer1::PluginCapabilityType::kCORE);
    if (core == nullptr || build_side(plugin) == nullptr || runtime_side(plugin) == nullptr) {
        return 1;
    }
    *name = core->getPluginName();
    *version = core->getPluginVersion();
    *name_space = core->getPluginNamespace();
    return 0;
}

STAND_IN_EXPORT int32_t stand_in_workspace_and_tactics(void* plugin) {
    return static_cast<int32_t>(build_side(plugin)->getWorkspaceSize(nullptr, 0, nullptr, 0))
        + build_side(plugin)->getNbTactics();
}

STAND_IN_EXPORT int32_t stand_in_output_count(void* plugin) {
    return build_side(plugin)->getNbOutputs();
}

STAND_IN_EXPORT char const* stand_in_timing_cache_id(void* plugin) {
    return build_side(plugin)->getTimingCacheID();
}

STAND_IN_EXPORT int32_t stand_in_supports(
    void* plugin, int32_t position, Tensor const* tensors, int32_t inputs, int32_t outputs) {
    auto const descriptions = describe_all_dynamic(tensors, inputs + outputs);
    return build_side(plugin)->supportsFormatCombination(
        position, descriptions.data(), inputs, outputs);
}

STAND_IN_EXPORT int32_t stand_in_output_type(
    void* plugin, Tensor const* tensors, int32_t inputs, int32_t* output_type) {
    std::vector<DataType> types;
    for (int32_t index = 0; index < inputs; ++index) {
        types.push_back(static_cast<DataType>(tensors[index].type));
    }
    DataType output{};
    int32_t const status = build_side(plugin)->getOutputDataTypes(&output, 1, types.data(), inputs);
    *output_type = static_cast<int32_t>(output);
    return status;
}

/// Returns the plugin's status, or -1 where the output's sizes are not the very expressions of qkv's.
STAND_IN_EXPORT int32_t stand_in_output_shape_is_that_of_qkv(
    void* plugin, Tensor const* tensors, int32_t inputs) {
    ExpressionBuilder builder;
    std::vector<std::unique_ptr<Expression>> expressions;
    std::vector<nvinfer1::DimsExprs> shapes(static_cast<size_t>(inputs));
    for (int32_t index = 0; index < inputs; ++index) {
        shapes[index].nbDims = tensors[index].rank;
        for (int32_t axis = 0; axis < tensors[index].rank; ++axis) {
            expressions.push_back(std::make_unique<Expression>());
            shapes[index].d[axis] = expressions.back().get();
        }
    }
    nvinfer1::DimsExprs output{};
    int32_t const status = build_side(plugin)->getOutputShapes(
        shapes.data(), inputs, nullptr, 0, &output, 1, builder);
    if (status != 0) {
        return status;
    }
    bool same = output.nbDims == shapes[0].nbDims;
    for (int32_t axis = 0; same && axis < output.nbDims; ++axis) {
        same = output.d[axis] == shapes[0].d[axis];
    }
    return same ? 0 : -1;
}

STAND_IN_EXPORT int32_t stand_in_configure(
    void* plugin, Tensor const* tensors, int32_t inputs, int32_t outputs) {
    auto const descriptions = describe_all_dynamic(tensors, inputs + outputs);
    return build_side(plugin)->configurePlugin(
        descriptions.data(), inputs, descriptions.data() + inputs, outputs);
}

STAND_IN_EXPORT int32_t stand_in_change_shape(
    void* plugin, Tensor const* tensors, int32_t inputs, int32_t outputs) {
    auto const descriptions = describe_all(tensors, inputs + outputs);
    return runtime_side(plugin)->onShapeChange(
        descriptions.data(), inputs, descriptions.data() + inputs, outputs);
}

STAND_IN_EXPORT int32_t stand_in_enqueue(
    void* plugin, Tensor const* tensors, void const* const* inputs, void* const* outputs) {
    auto const descriptions = describe_all(tensors, 4);
    return runtime_side(plugin)->enqueue(
        descriptions.data(), descriptions.data() + 3, inputs, outputs, nullptr, nullptr);
}
