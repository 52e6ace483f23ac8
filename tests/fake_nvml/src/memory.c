/* Framebuffer, BAR1, and what confidential computing protects. In v1 "used" contains the driver's reserve, in v2 it does not. */
#include "fake.h"

static unsigned long long bytes(const struct gpu *gpu, int key)
{
    return (unsigned long long)gpu->value[key];
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    ENTER_ANY(device);
    UNLESS(memory, NVML_ERROR_INVALID_ARGUMENT);
    UNLESS(gpu->has[K_memory_total], NVML_ERROR_NOT_SUPPORTED);
    memory->total = call.mig ? call.mig->memory_total : bytes(gpu, K_memory_total);
    memory->used =
        call.mig ? call.mig->memory_used : bytes(gpu, K_memory_used) + bytes(gpu, K_memory_reserved);
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    ENTER_ANY(device);
    CHECK_VERSION(memory, nvmlMemory_v2);
    UNLESS(gpu->has[K_memory_total], NVML_ERROR_NOT_SUPPORTED);
    memory->total = call.mig ? call.mig->memory_total : bytes(gpu, K_memory_total);
    memory->reserved = call.mig ? 0 : bytes(gpu, K_memory_reserved);
    memory->used = call.mig ? call.mig->memory_used : bytes(gpu, K_memory_used);
    memory->free = memory->total - memory->used - memory->reserved;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory)
{
    ENTER_ANY(device);
    UNLESS(memory, NVML_ERROR_INVALID_ARGUMENT);
    UNLESS(gpu->has[K_bar1_total], NVML_ERROR_NOT_SUPPORTED);
    memory->bar1Total = bytes(gpu, K_bar1_total);
    memory->bar1Used = bytes(gpu, K_bar1_used);
    memory->bar1Free = memory->bar1Total - memory->bar1Used;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetConfComputeProtectedMemoryUsage(nvmlDevice_t device, nvmlMemory_t *memory)
{
    ENTER(device);
    UNLESS(memory, NVML_ERROR_INVALID_ARGUMENT);
    UNLESS(gpu->has[K_protected_total], NVML_ERROR_NOT_SUPPORTED);
    memory->total = bytes(gpu, K_protected_total);
    memory->used = bytes(gpu, K_protected_used);
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
}
