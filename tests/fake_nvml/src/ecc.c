/* Memory errors: counters, retired pages, remapped rows. */
#include "fake.h"

GETTER(nvmlDeviceGetDefaultEccMode, nvmlEnableState_t, K_ecc_default)
GETTER(nvmlDeviceGetRetiredPagesPendingStatus, nvmlEnableState_t, K_retired_pending)

static const int location_keys[NVML_MEMORY_LOCATION_COUNT] = {
    [NVML_MEMORY_LOCATION_L1_CACHE] = K_ecc_corrected_volatile_l1,
    [NVML_MEMORY_LOCATION_L2_CACHE] = K_ecc_corrected_volatile_l2,
    [NVML_MEMORY_LOCATION_DRAM] = K_ecc_corrected_volatile_dram,
    [NVML_MEMORY_LOCATION_REGISTER_FILE] = K_ecc_corrected_volatile_register,
    [NVML_MEMORY_LOCATION_TEXTURE_MEMORY] = K_ecc_corrected_volatile_texture,
    [NVML_MEMORY_LOCATION_TEXTURE_SHM] = K_ecc_corrected_volatile_texture_shared,
    [NVML_MEMORY_LOCATION_CBU] = K_ecc_corrected_volatile_cbu,
    [NVML_MEMORY_LOCATION_SRAM] = K_ecc_corrected_volatile_sram,
};

/* keys.def keeps the four counters of a location in a row. */
static int counter_key(unsigned location, unsigned error, unsigned counter)
{
    return location_keys[location] + (int)(error * 2 + counter);
}

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t *current, nvmlEnableState_t *pending)
{
    ENTER(device);
    nvmlReturn_t error = READ(K_ecc_mode, current);
    return error ? error : READ(K_ecc_pending, pending);
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t error,
                                         nvmlEccCounterType_t counter, unsigned long long *count)
{
    ENTER(device);
    UNLESS(count && (unsigned)error < 2 && (unsigned)counter < 2, NVML_ERROR_INVALID_ARGUMENT);
    UNLESS(gpu->value[K_ecc_mode], NVML_ERROR_NOT_SUPPORTED);
    *count = 0;
    for (unsigned location = 0; location < NVML_MEMORY_LOCATION_COUNT; location++)
        *count += (unsigned long long)gpu->value[counter_key(location, error, counter)];
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, nvmlMemoryErrorType_t error,
                                             nvmlEccCounterType_t counter, nvmlMemoryLocation_t location,
                                             unsigned long long *count)
{
    ENTER(device);
    UNLESS((unsigned)error < 2 && (unsigned)counter < 2 && (unsigned)location < NVML_MEMORY_LOCATION_COUNT,
           NVML_ERROR_INVALID_ARGUMENT);
    UNLESS(gpu->value[K_ecc_mode], NVML_ERROR_NOT_SUPPORTED);
    return READ(counter_key(location, error, counter), count);
}

nvmlReturn_t nvmlDeviceGetDetailedEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t error,
                                            nvmlEccCounterType_t counter, nvmlEccErrorCounts_t *counts)
{
    ENTER(device);
    UNLESS(counts && (unsigned)error < 2 && (unsigned)counter < 2, NVML_ERROR_INVALID_ARGUMENT);
    UNLESS(gpu->value[K_ecc_mode], NVML_ERROR_NOT_SUPPORTED);
    const double *value = gpu->value;
    counts->l1Cache = (unsigned long long)value[counter_key(NVML_MEMORY_LOCATION_L1_CACHE, error, counter)];
    counts->l2Cache = (unsigned long long)value[counter_key(NVML_MEMORY_LOCATION_L2_CACHE, error, counter)];
    counts->deviceMemory = (unsigned long long)value[counter_key(NVML_MEMORY_LOCATION_DRAM, error, counter)];
    counts->registerFile =
        (unsigned long long)value[counter_key(NVML_MEMORY_LOCATION_REGISTER_FILE, error, counter)];
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t device, nvmlEccSramErrorStatus_t *status)
{
    ENTER(device);
    CHECK_VERSION(status, nvmlEccSramErrorStatus_v1);
    UNLESS(gpu->has[K_sram_aggregate_parity] && gpu->value[K_ecc_mode], NVML_ERROR_NOT_SUPPORTED);
#define COPY(member, key) status->member = (__typeof__(status->member))gpu->value[K_sram_##key]
    COPY(aggregateUncParity, aggregate_parity);
    COPY(aggregateUncSecDed, aggregate_secded);
    COPY(aggregateCor, aggregate_corrected);
    COPY(volatileUncParity, volatile_parity);
    COPY(volatileUncSecDed, volatile_secded);
    COPY(volatileCor, volatile_corrected);
    COPY(aggregateUncBucketL2, bucket_l2);
    COPY(aggregateUncBucketSm, bucket_sm);
    COPY(aggregateUncBucketPcie, bucket_pcie);
    COPY(aggregateUncBucketMcu, bucket_mcu);
    COPY(aggregateUncBucketOther, bucket_other);
    COPY(bThresholdExceeded, threshold_exceeded);
#undef COPY
    return NVML_SUCCESS;
}

static nvmlReturn_t retired(const char *function, nvmlDevice_t device, nvmlPageRetirementCause_t cause,
                            unsigned *count, unsigned long long *addresses, unsigned long long *timestamps)
{
    ENTER_AS(gate_enter(function, device, false));
    UNLESS(count && (unsigned)cause < NVML_PAGE_RETIREMENT_CAUSE_COUNT, NVML_ERROR_INVALID_ARGUMENT);
    UNLESS(gpu->has[K_retired_pending], NVML_ERROR_NOT_SUPPORTED);
    unsigned room = addresses ? *count : 0, found = 0;
    for (size_t i = 0; i < gpu->pages.count; i++) {
        if (gpu->pages.items[i].cause != (int)cause)
            continue;
        if (found < room) {
            addresses[found] = gpu->pages.items[i].address;
            if (timestamps)
                timestamps[found] = gpu->pages.items[i].timestamp;
        }
        found++;
    }
    *count = found;
    return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, nvmlPageRetirementCause_t cause,
                                       unsigned int *count, unsigned long long *addresses)
{
    return retired(__func__, device, cause, count, addresses, NULL);
}
nvmlReturn_t nvmlDeviceGetRetiredPages_v2(nvmlDevice_t device, nvmlPageRetirementCause_t cause,
                                          unsigned int *count, unsigned long long *addresses,
                                          unsigned long long *timestamps)
{
    return retired(__func__, device, cause, count, addresses, timestamps);
}

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *correctable,
                                       unsigned int *uncorrectable, unsigned int *pending,
                                       unsigned int *failure)
{
    ENTER(device);
    nvmlReturn_t error = READ(K_remapped_correctable, correctable);
    error = error ? error : READ(K_remapped_uncorrectable, uncorrectable);
    error = error ? error : READ(K_remapped_pending, pending);
    return error ? error : READ(K_remapped_failure, failure);
}

nvmlReturn_t nvmlDeviceGetRemappedRows_v2(nvmlDevice_t device, nvmlRemappedRowsInfo_v2_t *info)
{
    ENTER(device);
    UNLESS(info, NVML_ERROR_INVALID_ARGUMENT);
    UNLESS(gpu->has[K_remapped_correctable], NVML_ERROR_NOT_SUPPORTED);
    const double *value = gpu->value;
    *info = (nvmlRemappedRowsInfo_v2_t){
        .corrActiveRemaps = (unsigned)value[K_remapped_correctable],
        .corrInactiveRemaps = (unsigned)value[K_remapped_correctable_inactive],
        .uncActiveRemaps = (unsigned)value[K_remapped_uncorrectable],
        .uncInactiveRemaps = (unsigned)value[K_remapped_uncorrectable_inactive],
        .bPending = (unsigned)value[K_remapped_pending],
        .bFailureOccurred = (unsigned)value[K_remapped_failure],
    };
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, nvmlRowRemapperHistogramValues_t *values)
{
    ENTER(device);
    UNLESS(values, NVML_ERROR_INVALID_ARGUMENT);
    nvmlReturn_t error = READ(K_remap_banks_max, &values->max);
    error = error ? error : READ(K_remap_banks_high, &values->high);
    error = error ? error : READ(K_remap_banks_partial, &values->partial);
    error = error ? error : READ(K_remap_banks_low, &values->low);
    return error ? error : READ(K_remap_banks_none, &values->none);
}
