/* NVLink state and errors per link, fabric, and as much topology as clients ask for. */
#include "fake.h"

#include <string.h>

static nvmlReturn_t link_error(const struct gpu *gpu, unsigned link)
{
    UNLESS(gpu->value[K_nvlink_count] > 0, NVML_ERROR_NOT_SUPPORTED);
    return link < gpu->value[K_nvlink_count] && link < MAX_LINKS ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, nvmlEnableState_t *active)
{
    ENTER(device);
    nvmlReturn_t error = link_error(gpu, link);
    UNLESS(!error, error);
    UNLESS(active, NVML_ERROR_INVALID_ARGUMENT);
    *active = gpu->links[link].down ? NVML_FEATURE_DISABLED : NVML_FEATURE_ENABLED;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned int link, unsigned int *version)
{
    ENTER(device);
    nvmlReturn_t error = link_error(gpu, link);
    return error ? error : READ(K_nvlink_version, version);
}

nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link,
                                                 nvmlIntNvLinkDeviceType_t *type)
{
    ENTER(device);
    nvmlReturn_t error = link_error(gpu, link);
    return error ? error : READ(K_nvlink_remote, type);
}

nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned int link,
                                           nvmlNvLinkCapability_t capability, unsigned int *result)
{
    ENTER(device);
    nvmlReturn_t error = link_error(gpu, link);
    UNLESS(!error, error);
    UNLESS(result && (unsigned)capability < NVML_NVLINK_CAP_COUNT, NVML_ERROR_INVALID_ARGUMENT);
    *result = capability != NVML_NVLINK_CAP_SLI_BRIDGE;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned int link,
                                             nvmlNvLinkErrorCounter_t counter, unsigned long long *value)
{
    ENTER(device);
    nvmlReturn_t error = link_error(gpu, link);
    UNLESS(!error, error);
    UNLESS(value, NVML_ERROR_INVALID_ARGUMENT);
    const struct link *state = &gpu->links[link];
    switch (counter) {
    case NVML_NVLINK_ERROR_DL_REPLAY: *value = state->replay; break;
    case NVML_NVLINK_ERROR_DL_RECOVERY: *value = state->recovery; break;
    case NVML_NVLINK_ERROR_DL_CRC_FLIT: *value = state->crc_flit; break;
    case NVML_NVLINK_ERROR_DL_CRC_DATA: *value = state->crc_data; break;
    case NVML_NVLINK_ERROR_DL_ECC_DATA: *value = state->ecc; break;
    default: return NVML_ERROR_INVALID_ARGUMENT;
    }
    return NVML_SUCCESS;
}

/* A switch, or with direct links the next GPU, is at the other end. */
static nvmlReturn_t remote(const char *function, nvmlDevice_t device, unsigned link, nvmlPciInfo_t *pci)
{
    ENTER_AS(gate_enter(function, device, false));
    nvmlReturn_t error = link_error(gpu, link);
    UNLESS(!error, error);
    UNLESS(pci, NVML_ERROR_INVALID_ARGUMENT);
    memset(pci, 0, sizeof *pci);
    pci->bus = 0xC0 + link % 6;
    strcpy(pci->busId, "00000000:C0:00.0");
    pci->busId[10] = (char)('0' + link % 6);
    strcpy(pci->busIdLegacy, pci->busId + 4);
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci)
{
    return remote(__func__, device, link, pci);
}
nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci)
{
    return remote(__func__, device, link, pci);
}

static void cluster_of(const struct gpu *gpu, unsigned char *out)
{
    memset(out, 0, NVML_GPU_FABRIC_UUID_LEN);
    memcpy(out, gpu->fabric_cluster, strnlen(gpu->fabric_cluster, NVML_GPU_FABRIC_UUID_LEN));
}

nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *info)
{
    ENTER(device);
    UNLESS(info, NVML_ERROR_INVALID_ARGUMENT);
    UNLESS(gpu->has[K_fabric_state], NVML_ERROR_NOT_SUPPORTED);
    cluster_of(gpu, info->clusterUuid);
    info->status = (nvmlReturn_t)gpu->value[K_fabric_status];
    info->cliqueId = (unsigned)gpu->value[K_fabric_clique];
    info->state = (nvmlGpuFabricState_t)gpu->value[K_fabric_state];
    return NVML_SUCCESS;
}

/* Versions 2 and 3 begin alike; 3 adds the summary. */
nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t *info)
{
    ENTER(device);
    UNLESS(info, NVML_ERROR_INVALID_ARGUMENT);
    UNLESS(info->version == nvmlGpuFabricInfo_v2 || info->version == nvmlGpuFabricInfo_v3,
           NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    UNLESS(gpu->has[K_fabric_state], NVML_ERROR_NOT_SUPPORTED);
    cluster_of(gpu, info->clusterUuid);
    info->status = (nvmlReturn_t)gpu->value[K_fabric_status];
    info->cliqueId = (unsigned)gpu->value[K_fabric_clique];
    info->state = (nvmlGpuFabricState_t)gpu->value[K_fabric_state];
    info->healthMask = (unsigned)gpu->value[K_fabric_health];
    if (info->version == nvmlGpuFabricInfo_v3)
        info->healthSummary = NVML_GPU_FABRIC_HEALTH_SUMMARY_HEALTHY;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetC2cModeInfoV(nvmlDevice_t device, nvmlC2cModeInfo_v1_t *info)
{
    ENTER(device);
    UNLESS(info, NVML_ERROR_INVALID_ARGUMENT);
    return READ(K_c2c_mode, &info->isC2cEnabled);
}

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t one, nvmlDevice_t other,
                                                 nvmlGpuTopologyLevel_t *level)
{
    ENTER(one);
    UNLESS(level, NVML_ERROR_INVALID_ARGUMENT);
    *level = one == other ? NVML_TOPOLOGY_INTERNAL : NVML_TOPOLOGY_NODE;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, nvmlGpuTopologyLevel_t level,
                                              unsigned int *count, nvmlDevice_t *found)
{
    ENTER(device);
    UNLESS(count, NVML_ERROR_INVALID_ARGUMENT);
    unsigned others = 0;
    for (unsigned i = 0; level == NVML_TOPOLOGY_NODE && i < handles_visible(); i++) {
        if (handle_at(i) == device)
            continue;
        if (found && others < *count)
            found[others] = handle_at(i);
        others++;
    }
    *count = others;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t one, nvmlDevice_t other, nvmlGpuP2PCapsIndex_t what,
                                    nvmlGpuP2PStatus_t *status)
{
    ENTER(one);
    UNLESS(status, NVML_ERROR_INVALID_ARGUMENT);
    struct call peer;
    nvmlReturn_t error = handle_resolve(other, &peer);
    UNLESS(!error, error);
    bool by_nvlink = what == NVML_P2P_CAPS_INDEX_NVLINK;
    for (size_t i = 0; by_nvlink && i < gpu->peers.count; i++)
        if (!strcmp(gpu->peers.items[i].uuid, peer.gpu->uuid)) {
            *status = (nvmlGpuP2PStatus_t)gpu->peers.items[i].status;
            return gpu->peers.items[i].error;
        }
    bool linked = gpu->value[K_nvlink_count] > 0 && peer.gpu->value[K_nvlink_count] > 0;
    *status = by_nvlink && !linked ? NVML_P2P_STATUS_NOT_SUPPORTED : NVML_P2P_STATUS_OK;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t one, nvmlDevice_t other, int *same)
{
    ENTER(one);
    UNLESS(same, NVML_ERROR_INVALID_ARGUMENT);
    *same = one == other;
    return NVML_SUCCESS;
}

static nvmlReturn_t affinity(const char *function, nvmlDevice_t device, unsigned words, unsigned long *set)
{
    ENTER_AS(gate_enter(function, device, false));
    UNLESS(set && words, NVML_ERROR_INVALID_ARGUMENT);
    memset(set, 0, words * sizeof *set);
    set[0] = 1;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int words, unsigned long *set)
{
    return affinity(__func__, device, words, set);
}
nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned int words, unsigned long *set,
                                                 nvmlAffinityScope_t scope)
{
    (void)scope;
    return affinity(__func__, device, words, set);
}
nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int words, unsigned long *set,
                                         nvmlAffinityScope_t scope)
{
    (void)scope;
    return affinity(__func__, device, words, set);
}
