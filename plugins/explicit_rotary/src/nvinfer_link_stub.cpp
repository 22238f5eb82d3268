// SPDX-License-Identifier: Apache-2.0
//
// Linked in place of libnvinfer where TensorRT's library is not installed: it gives the plugin its
// dependency on the right soname. It is never installed and never found at run time.
extern "C" __attribute__((visibility("default"))) void* getPluginRegistry() noexcept {
    return nullptr;
}
