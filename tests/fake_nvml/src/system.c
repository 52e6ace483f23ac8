/* The driver as a whole: versions, device enumeration, process names, error texts. */
#define _GNU_SOURCE
#include "fake.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    ENTER_SYSTEM();
    return copy_text(fake->driver_version, version, length);
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
    ENTER_SYSTEM();
    return copy_text(fake->nvml_version, version, length);
}

nvmlReturn_t nvmlSystemGetDriverBranch(nvmlSystemDriverBranchInfo_t *info, unsigned int length)
{
    ENTER_SYSTEM();
    UNLESS(info, NVML_ERROR_INVALID_ARGUMENT);
    char branch[TEXT];
    snprintf(branch, sizeof branch, "r%.3s_00", fake->driver_version);
    return copy_text(branch, info->branch, length < sizeof info->branch ? length : sizeof info->branch);
}

static nvmlReturn_t cuda_version(const char *function, int *version)
{
    ENTER_AS(gate_enter_system(function));
    UNLESS(version, NVML_ERROR_INVALID_ARGUMENT);
    *version = fake->cuda_version;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    return cuda_version(__func__, version);
}
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    return cuda_version(__func__, version);
}

nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
    ENTER_SYSTEM();
    UNLESS(name && length, NVML_ERROR_INVALID_ARGUMENT);
    for (unsigned i = 0; i < fake->gpu_count; i++)
        for (size_t p = 0; p < fake->gpus[i].processes.count; p++) {
            const struct process *process = &fake->gpus[i].processes.items[p];
            if (process->pid != pid || !process->name || (process->end && process->end <= fake_now))
                continue;
            /* the real call cuts a name that does not fit */
            snprintf(name, length, "%s", process->name);
            return NVML_SUCCESS;
        }
    return NVML_ERROR_NOT_FOUND;
}

static nvmlReturn_t device_count(const char *function, unsigned *count)
{
    ENTER_AS(gate_enter_system(function));
    UNLESS(count, NVML_ERROR_INVALID_ARGUMENT);
    *count = handles_visible();
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetCount(unsigned int *count)
{
    return device_count(__func__, count);
}
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    return device_count(__func__, count);
}

static nvmlReturn_t give_handle(nvmlDevice_t found, nvmlReturn_t missing, nvmlDevice_t *device)
{
    struct call unused;
    UNLESS(device, NVML_ERROR_INVALID_ARGUMENT);
    UNLESS(found, missing);
    nvmlReturn_t error = handle_resolve(found, &unused);
    UNLESS(!error, error);
    *device = found;
    return NVML_SUCCESS;
}

static nvmlReturn_t by_index(const char *function, unsigned index, nvmlDevice_t *device)
{
    ENTER_AS(gate_enter_system(function));
    return give_handle(handle_at(index), NVML_ERROR_INVALID_ARGUMENT, device);
}
nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
    return by_index(__func__, index, device);
}
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    return by_index(__func__, index, device);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    ENTER_SYSTEM();
    UNLESS(uuid, NVML_ERROR_INVALID_ARGUMENT);
    return give_handle(handle_by_uuid(uuid), NVML_ERROR_NOT_FOUND, device);
}

nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_t *uuid, nvmlDevice_t *device)
{
    ENTER_SYSTEM();
    UNLESS(uuid && uuid->type == NVML_UUID_TYPE_ASCII, NVML_ERROR_INVALID_ARGUMENT);
    return give_handle(handle_by_uuid(uuid->value.str), NVML_ERROR_NOT_FOUND, device);
}

nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
    ENTER_SYSTEM();
    UNLESS(serial, NVML_ERROR_INVALID_ARGUMENT);
    for (unsigned i = 0; i < fake->gpu_count; i++)
        if (!strcmp(fake->gpus[i].serial, serial))
            return give_handle(handle_of(&fake->gpus[i]), NVML_ERROR_NOT_FOUND, device);
    return NVML_ERROR_NOT_FOUND;
}

/* Accepts a domain of four or of eight digits, as the driver does. */
static nvmlReturn_t by_bus_id(const char *function, const char *bus_id, nvmlDevice_t *device)
{
    ENTER_AS(gate_enter_system(function));
    unsigned domain, bus, slot;
    UNLESS(bus_id && sscanf(bus_id, "%x:%x:%x", &domain, &bus, &slot) == 3, NVML_ERROR_INVALID_ARGUMENT);
    for (unsigned i = 0; i < fake->gpu_count; i++) {
        const double *value = fake->gpus[i].value;
        if (*fake->gpus[i].uuid && value[K_pci_domain] == domain && value[K_pci_bus] == bus &&
            value[K_pci_device] == slot)
            return give_handle(handle_of(&fake->gpus[i]), NVML_ERROR_NOT_FOUND, device);
    }
    return NVML_ERROR_NOT_FOUND;
}
nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *id, nvmlDevice_t *device)
{
    return by_bus_id(__func__, id, device);
}
nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *device)
{
    return by_bus_id(__func__, id, device);
}

nvmlReturn_t nvmlGetExcludedDeviceCount(unsigned int *count)
{
    ENTER_SYSTEM();
    UNLESS(count, NVML_ERROR_INVALID_ARGUMENT);
    *count = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlUnitGetCount(unsigned int *count)
{
    ENTER_SYSTEM();
    UNLESS(count, NVML_ERROR_INVALID_ARGUMENT);
    *count = 0;
    return NVML_SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t error)
{
    switch (error) {
    case NVML_SUCCESS: return "Success";
    case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_NO_PERMISSION: return "Insufficient Permissions";
    case NVML_ERROR_NOT_FOUND: return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case NVML_ERROR_TIMEOUT: return "Timeout";
    case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
    case NVML_ERROR_LIB_RM_VERSION_MISMATCH: return "Driver/library version mismatch";
    case NVML_ERROR_MEMORY: return "Insufficient Memory";
    case NVML_ERROR_NO_DATA: return "No data";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH: return "Argument version mismatch";
    default: return "Unknown Error";
    }
}
