/* What a GPU is: names, serials, PCI address, modes. */
#include "fake.h"

#include <stdio.h>
#include <string.h>

GETTER_TEXT(nvmlDeviceGetSerial, serial)
GETTER_TEXT(nvmlDeviceGetBoardPartNumber, part_number)
GETTER_TEXT(nvmlDeviceGetVbiosVersion, vbios)
GETTER_TEXT(nvmlDeviceGetInforomImageVersion, inforom_image)
GETTER(nvmlDeviceGetBrand, nvmlBrandType_t, K_brand)
GETTER(nvmlDeviceGetMinorNumber, unsigned int, K_minor)
GETTER(nvmlDeviceGetArchitecture, nvmlDeviceArchitecture_t, K_architecture)
GETTER(nvmlDeviceGetNumGpuCores, unsigned int, K_cores)
GETTER(nvmlDeviceGetBoardId, unsigned int, K_board_id)
GETTER(nvmlDeviceGetModuleId, unsigned int, K_module_id)
GETTER(nvmlDeviceGetMultiGpuBoard, unsigned int, K_multi_gpu_board)
GETTER(nvmlDeviceGetIrqNum, unsigned int, K_irq)
GETTER(nvmlDeviceGetMemoryBusWidth, unsigned int, K_memory_bus_bits)
GETTER(nvmlDeviceGetInforomConfigurationChecksum, unsigned int, K_inforom_checksum)
GETTER(nvmlDeviceGetNumaNodeId, unsigned int, K_numa_node)
GETTER(nvmlDeviceGetDisplayMode, nvmlEnableState_t, K_display_mode)
GETTER(nvmlDeviceGetDisplayActive, nvmlEnableState_t, K_display_active)
GETTER(nvmlDeviceGetPersistenceMode, nvmlEnableState_t, K_persistence_mode)
GETTER(nvmlDeviceGetComputeMode, nvmlComputeMode_t, K_compute_mode)
GETTER(nvmlDeviceGetAccountingMode, nvmlEnableState_t, K_accounting_mode)
GETTER(nvmlDeviceGetAccountingBufferSize, unsigned int, K_accounting_buffer)
GETTER(nvmlDeviceGetVirtualizationMode, nvmlGpuVirtualizationMode_t, K_virtualization_mode)

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
    ENTER_ANY(device);
    char text[TEXT + 40];
    snprintf(text, sizeof text, call.mig ? "%s MIG %s" : "%s", gpu->name, call.mig ? call.mig->profile : "");
    return copy_text(text, name, length);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    ENTER_ANY(device);
    return copy_text(handle_uuid(device), uuid, length);
}

/* The index is the place among the GPUs of this session, as in nvmlDeviceGetHandleByIndex. */
nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
    ENTER_ANY(device);
    UNLESS(index, NVML_ERROR_INVALID_ARGUMENT);
    if (call.mig) {
        *index = call.mig->index;
        return NVML_SUCCESS;
    }
    for (*index = 0; *index < handles_visible(); ++*index)
        if (handle_at(*index) == device)
            return NVML_SUCCESS;
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetInforomVersion(nvmlDevice_t device, nvmlInforomObject_t object, char *version,
                                         unsigned int length)
{
    ENTER(device);
    switch (object) {
    case NVML_INFOROM_OEM: return copy_text(gpu->inforom_oem, version, length);
    case NVML_INFOROM_ECC: return copy_text(gpu->inforom_ecc, version, length);
    case NVML_INFOROM_POWER: return copy_text(gpu->inforom_power, version, length);
    default: return NVML_ERROR_NOT_SUPPORTED;
    }
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    ENTER_ANY(device);
    nvmlReturn_t error = READ(K_capability_major, major);
    return error ? error : READ(K_capability_minor, minor);
}

static void fill_pci(const struct gpu *gpu, nvmlPciInfo_t *pci)
{
    pci->domain = (unsigned)gpu->value[K_pci_domain];
    pci->bus = (unsigned)gpu->value[K_pci_bus];
    pci->device = (unsigned)gpu->value[K_pci_device];
    pci->pciDeviceId = (unsigned)gpu->value[K_pci_device_id];
    pci->pciSubSystemId = (unsigned)gpu->value[K_pci_subsystem_id];
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, NVML_DEVICE_PCI_BUS_ID_LEGACY_FMT,
             NVML_DEVICE_PCI_BUS_ID_FMT_ARGS(pci));
    snprintf(pci->busId, sizeof pci->busId, NVML_DEVICE_PCI_BUS_ID_FMT, NVML_DEVICE_PCI_BUS_ID_FMT_ARGS(pci));
}

static nvmlReturn_t pci_info(const char *function, nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    ENTER_AS(gate_enter(function, device, false));
    UNLESS(pci, NVML_ERROR_INVALID_ARGUMENT);
    fill_pci(gpu, pci);
    return NVML_SUCCESS;
}
/* The structure of the older versions ends before `busId`. */
static nvmlReturn_t old_pci_info(const char *function, nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    nvmlPciInfo_t full;
    UNLESS(pci, NVML_ERROR_INVALID_ARGUMENT);
    nvmlReturn_t code = pci_info(function, device, &full);
    if (code == NVML_SUCCESS)
        memcpy(pci, &full, offsetof(nvmlPciInfo_t, busId));
    return code;
}
nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    return old_pci_info(__func__, device, pci);
}
nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    return old_pci_info(__func__, device, pci);
}
nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    return pci_info(__func__, device, pci);
}

nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_t *pci)
{
    ENTER(device);
    CHECK_VERSION(pci, nvmlPciInfoExt_v1);
    nvmlPciInfo_t plain;
    fill_pci(gpu, &plain);
    pci->domain = plain.domain;
    pci->bus = plain.bus;
    pci->device = plain.device;
    pci->pciDeviceId = plain.pciDeviceId;
    pci->pciSubSystemId = plain.pciSubSystemId;
    pci->baseClass = 3; /* display controller, 3D */
    pci->subClass = 2;
    memcpy(pci->busId, plain.busId, sizeof pci->busId);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGspFirmwareVersion(nvmlDevice_t device, char *version)
{
    ENTER(device);
    return copy_text(gpu->gsp_version, version, TEXT);
}

nvmlReturn_t nvmlDeviceGetGspFirmwareMode(nvmlDevice_t device, unsigned int *enabled,
                                          unsigned int *by_default)
{
    ENTER(device);
    nvmlReturn_t error = READ(K_gsp_mode, enabled);
    return error ? error : READ(K_gsp_mode, by_default);
}

nvmlReturn_t nvmlDeviceGetPlatformInfo(nvmlDevice_t device, nvmlPlatformInfo_t *platform)
{
    ENTER(device);
    CHECK_VERSION(platform, nvmlPlatformInfo_v2);
    UNLESS(gpu->has[K_platform_host], NVML_ERROR_NOT_SUPPORTED);
    *platform = (nvmlPlatformInfo_t){
        .version = platform->version,
        .slotNumber = (unsigned char)gpu->value[K_platform_slot],
        .trayIndex = (unsigned char)gpu->value[K_platform_tray],
        .hostId = (unsigned char)gpu->value[K_platform_host],
        .moduleId = (unsigned char)gpu->value[K_platform_module],
    };
    memcpy(platform->chassisSerialNumber, gpu->chassis,
           strnlen(gpu->chassis, sizeof platform->chassisSerialNumber));
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetBusType(nvmlDevice_t device, nvmlBusType_t *type)
{
    ENTER(device);
    UNLESS(type, NVML_ERROR_INVALID_ARGUMENT);
    *type = NVML_BUS_TYPE_PCIE;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPowerSource(nvmlDevice_t device, nvmlPowerSource_t *source)
{
    ENTER(device);
    UNLESS(source, NVML_ERROR_INVALID_ARGUMENT);
    *source = NVML_POWER_SOURCE_AC;
    return NVML_SUCCESS;
}
