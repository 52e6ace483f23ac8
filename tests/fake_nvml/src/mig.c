/* MIG instances as devices of their own. */
#include "fake.h"

GETTER(nvmlDeviceGetMaxMigDeviceCount, unsigned int, K_mig_max)

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    ENTER(device);
    nvmlReturn_t error = READ(K_mig_mode, current);
    return error ? error : READ(K_mig_pending, pending);
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is_mig)
{
    ENTER_ANY(device);
    UNLESS(is_mig, NVML_ERROR_INVALID_ARGUMENT);
    *is_mig = call.mig != NULL;
    return NVML_SUCCESS;
}

/* The driver leaves holes where an instance was destroyed: "not found" is not the end of the list. */
nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *out)
{
    ENTER(device);
    UNLESS(out, NVML_ERROR_INVALID_ARGUMENT);
    UNLESS(gpu->has[K_mig_mode], NVML_ERROR_NOT_SUPPORTED);
    UNLESS(index < gpu->value[K_mig_max], NVML_ERROR_INVALID_ARGUMENT);
    for (size_t i = 0; gpu->value[K_mig_mode] && i < gpu->migs.count; i++)
        if (gpu->migs.items[i].index == index) {
            *out = (nvmlDevice_t)handle_for(gpu->migs.items[i].uuid, true);
            return *out ? NVML_SUCCESS : NVML_ERROR_MEMORY;
        }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t device, nvmlDevice_t *parent)
{
    ENTER_ANY(device);
    UNLESS(parent && call.mig, NVML_ERROR_INVALID_ARGUMENT);
    *parent = handle_of(gpu);
    return *parent ? NVML_SUCCESS : NVML_ERROR_GPU_IS_LOST;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
    ENTER_ANY(device);
    UNLESS(id && call.mig, NVML_ERROR_INVALID_ARGUMENT);
    *id = call.mig->gi;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id)
{
    ENTER_ANY(device);
    UNLESS(id && call.mig, NVML_ERROR_INVALID_ARGUMENT);
    *id = call.mig->ci;
    return NVML_SUCCESS;
}

static nvmlReturn_t attributes(const char *function, nvmlDevice_t device, nvmlDeviceAttributes_t *out)
{
    ENTER_AS(gate_enter(function, device, true));
    UNLESS(out && call.mig, NVML_ERROR_INVALID_ARGUMENT);
    const struct mig *mig = call.mig;
    *out = (nvmlDeviceAttributes_t){
        .multiprocessorCount = mig->sms,
        .sharedCopyEngineCount = mig->copy,
        .sharedDecoderCount = mig->decoders,
        .sharedEncoderCount = mig->encoders,
        .sharedJpegCount = mig->jpegs,
        .sharedOfaCount = mig->ofas,
        .gpuInstanceSliceCount = mig->gi_slices,
        .computeInstanceSliceCount = mig->ci_slices,
        .memorySizeMB = mig->memory_total >> 20,
    };
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t *out)
{
    return attributes(__func__, device, out);
}
nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *out)
{
    return attributes(__func__, device, out);
}
