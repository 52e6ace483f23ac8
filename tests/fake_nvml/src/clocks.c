/* Clocks, performance state, and why the clocks are not higher. */
#include "fake.h"

GETTER(nvmlDeviceGetPerformanceState, nvmlPstates_t, K_pstate)
GETTER(nvmlDeviceGetPowerState, nvmlPstates_t, K_pstate)
GETTER(nvmlDeviceGetSupportedClocksEventReasons, unsigned long long, K_reasons_supported)
GETTER(nvmlDeviceGetSupportedClocksThrottleReasons, unsigned long long, K_reasons_supported)

enum { NOW, MOST, APPLICATION, APPLICATION_DEFAULT, BOOST, KINDS };
static const int clock_keys[KINDS][NVML_CLOCK_COUNT] = {
    [NOW] = {K_clock_graphics, K_clock_sm, K_clock_memory, K_clock_video},
    [MOST] = {K_clock_graphics_max, K_clock_sm_max, K_clock_memory_max, K_clock_video_max},
    [APPLICATION] = {K_clock_graphics_app, K_clock_graphics_app, K_clock_memory_app, -1},
    [APPLICATION_DEFAULT] = {K_clock_graphics_app_default, K_clock_graphics_app_default,
                             K_clock_memory_app_default, -1},
    [BOOST] = {K_clock_graphics_boost_max, K_clock_graphics_boost_max, K_clock_memory_max, -1},
};

static nvmlReturn_t clock_of(const char *function, nvmlDevice_t device, int kind, nvmlClockType_t type,
                             unsigned *mhz)
{
    ENTER_AS(gate_enter(function, device, false));
    UNLESS((unsigned)type < NVML_CLOCK_COUNT, NVML_ERROR_INVALID_ARGUMENT);
    int key = clock_keys[kind][type];
    return key < 0 ? NVML_ERROR_NOT_SUPPORTED : READ(key, mhz);
}
#define CLOCK(function, kind) \
    nvmlReturn_t function(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz) \
    { \
        return clock_of(__func__, device, kind, type, mhz); \
    }
CLOCK(nvmlDeviceGetClockInfo, NOW)
CLOCK(nvmlDeviceGetMaxClockInfo, MOST)
CLOCK(nvmlDeviceGetApplicationsClock, APPLICATION)
CLOCK(nvmlDeviceGetDefaultApplicationsClock, APPLICATION_DEFAULT)
CLOCK(nvmlDeviceGetMaxCustomerBoostClock, BOOST)

nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, nvmlClockType_t type, nvmlClockId_t id,
                                unsigned int *mhz)
{
    switch (id) {
    case NVML_CLOCK_ID_CURRENT: return clock_of(__func__, device, NOW, type, mhz);
    case NVML_CLOCK_ID_APP_CLOCK_TARGET: return clock_of(__func__, device, APPLICATION, type, mhz);
    case NVML_CLOCK_ID_APP_CLOCK_DEFAULT: return clock_of(__func__, device, APPLICATION_DEFAULT, type, mhz);
    case NVML_CLOCK_ID_CUSTOMER_BOOST_MAX: return clock_of(__func__, device, BOOST, type, mhz);
    default: return NVML_ERROR_INVALID_ARGUMENT;
    }
}

nvmlReturn_t nvmlDeviceGetAutoBoostedClocksEnabled(nvmlDevice_t device, nvmlEnableState_t *now,
                                                   nvmlEnableState_t *by_default)
{
    ENTER(device);
    nvmlReturn_t error = READ(K_auto_boost, now);
    return error ? error : READ(K_auto_boost, by_default);
}

static nvmlReturn_t reasons(const char *function, nvmlDevice_t device, unsigned long long *mask)
{
    ENTER_AS(gate_enter(function, device, false));
    UNLESS(mask, NVML_ERROR_INVALID_ARGUMENT);
    UNLESS(gpu->has[K_reasons_supported], NVML_ERROR_NOT_SUPPORTED);
    *mask = 0;
    for (int i = 0; i <= K_reason_display_clocks - K_reason_idle; i++) /* keys.def has them in bit order */
        if (value_of(gpu, K_reason_idle + i) > 0)
            *mask |= 1ULL << i;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *mask)
{
    return reasons(__func__, device, mask);
}
nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *mask)
{
    return reasons(__func__, device, mask);
}

nvmlReturn_t nvmlDeviceGetViolationStatus(nvmlDevice_t device, nvmlPerfPolicyType_t policy,
                                          nvmlViolationTime_t *time)
{
    static const int flows[NVML_PERF_POLICY_COUNT] = {
        [NVML_PERF_POLICY_POWER] = K_reason_sw_power_cap,
        [NVML_PERF_POLICY_THERMAL] = K_reason_sw_thermal,
        [NVML_PERF_POLICY_SYNC_BOOST] = K_reason_sync_boost,
        [NVML_PERF_POLICY_BOARD_LIMIT] = K_policy_board_limit,
        [NVML_PERF_POLICY_LOW_UTILIZATION] = K_policy_low_utilization,
        [NVML_PERF_POLICY_RELIABILITY] = K_policy_reliability,
    };
    ENTER(device);
    UNLESS(time && (unsigned)policy < NVML_PERF_POLICY_COUNT, NVML_ERROR_INVALID_ARGUMENT);
    int flow = flows[policy];
    UNLESS(flow && gpu->has[flow], NVML_ERROR_NOT_SUPPORTED);
    time->referenceTime = (unsigned long long)fake_now;
    time->violationTime = rounded(flow_total(gpu, flow, fake_now) * 1e9);
    return NVML_SUCCESS;
}
