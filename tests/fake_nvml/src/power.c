/* Heat and power: temperatures, fans, draw, limits, energy. */
#include "fake.h"

GETTER(nvmlDeviceGetPowerManagementMode, nvmlEnableState_t, K_power_management)
GETTER(nvmlDeviceGetPowerManagementLimit, unsigned int, K_power_limit_mw)
GETTER(nvmlDeviceGetPowerManagementDefaultLimit, unsigned int, K_power_default_mw)
GETTER(nvmlDeviceGetEnforcedPowerLimit, unsigned int, K_power_enforced_mw)
GETTER(nvmlDeviceGetNumFans, unsigned int, K_fans)
GETTER(nvmlDeviceGetFanSpeed, unsigned int, K_fan_percent)

nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned int *min,
                                                          unsigned int *max)
{
    ENTER(device);
    nvmlReturn_t error = READ(K_power_min_mw, min);
    return error ? error : READ(K_power_max_mw, max);
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *power)
{
    ENTER(device);
    UNLESS(power, NVML_ERROR_INVALID_ARGUMENT);
    UNLESS(gpu->has[K_power_mw], NVML_ERROR_NOT_SUPPORTED);
    bool averaged = gpu->value[K_power_is_averaged] != 0;
    *power = (unsigned)rounded(averaged ? flow_recent(gpu, K_power_mw, 1000000) : value_of(gpu, K_power_mw));
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *energy)
{
    ENTER(device);
    UNLESS(energy, NVML_ERROR_INVALID_ARGUMENT);
    UNLESS(gpu->has[K_energy_mj], NVML_ERROR_NOT_SUPPORTED);
    *energy = rounded(gpu->value[K_energy_mj] + flow_total(gpu, K_power_mw, fake_now));
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor,
                                      unsigned int *celsius)
{
    ENTER(device);
    UNLESS(sensor == NVML_TEMPERATURE_GPU, NVML_ERROR_INVALID_ARGUMENT);
    return READ(K_temperature, celsius);
}

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *temperature)
{
    ENTER(device);
    CHECK_VERSION(temperature, nvmlTemperature_v1);
    UNLESS(temperature->sensorType == NVML_TEMPERATURE_GPU, NVML_ERROR_NOT_SUPPORTED);
    return READ(K_temperature, &temperature->temperature);
}

nvmlReturn_t nvmlDeviceGetMarginTemperature(nvmlDevice_t device, nvmlMarginTemperature_t *margin)
{
    ENTER(device);
    CHECK_VERSION(margin, nvmlMarginTemperature_v1);
    return READ(K_temperature_margin, &margin->marginTemperature);
}

nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, nvmlTemperatureThresholds_t type,
                                               unsigned int *celsius)
{
    ENTER(device);
    switch (type) {
    case NVML_TEMPERATURE_THRESHOLD_SHUTDOWN: return READ(K_threshold_shutdown, celsius);
    case NVML_TEMPERATURE_THRESHOLD_SLOWDOWN: return READ(K_threshold_slowdown, celsius);
    case NVML_TEMPERATURE_THRESHOLD_MEM_MAX: return READ(K_threshold_memory_max, celsius);
    case NVML_TEMPERATURE_THRESHOLD_GPU_MAX: return READ(K_threshold_gpu_max, celsius);
    case NVML_TEMPERATURE_THRESHOLD_ACOUSTIC_MIN: return READ(K_threshold_acoustic_min, celsius);
    case NVML_TEMPERATURE_THRESHOLD_ACOUSTIC_CURR: return READ(K_threshold_acoustic_current, celsius);
    case NVML_TEMPERATURE_THRESHOLD_ACOUSTIC_MAX: return READ(K_threshold_acoustic_max, celsius);
    default: return NVML_ERROR_NOT_SUPPORTED;
    }
}

static nvmlReturn_t fan_error(const struct gpu *gpu, unsigned fan)
{
    UNLESS(gpu->value[K_fans] > 0, NVML_ERROR_NOT_SUPPORTED);
    return fan < gpu->value[K_fans] ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetFanSpeed_v2(nvmlDevice_t device, unsigned int fan, unsigned int *speed)
{
    ENTER(device);
    nvmlReturn_t error = fan_error(gpu, fan);
    return error ? error : READ(K_fan_percent, speed);
}

nvmlReturn_t nvmlDeviceGetTargetFanSpeed(nvmlDevice_t device, unsigned int fan, unsigned int *speed)
{
    ENTER(device);
    nvmlReturn_t error = fan_error(gpu, fan);
    return error ? error : READ(K_fan_target_percent, speed);
}

nvmlReturn_t nvmlDeviceGetFanSpeedRPM(nvmlDevice_t device, nvmlFanSpeedInfo_t *info)
{
    ENTER(device);
    CHECK_VERSION(info, nvmlFanSpeedInfo_v1);
    nvmlReturn_t error = fan_error(gpu, info->fan);
    return error ? error : READ(K_fan_rpm, &info->speed);
}

nvmlReturn_t nvmlDeviceGetMinMaxFanSpeed(nvmlDevice_t device, unsigned int *min, unsigned int *max)
{
    ENTER(device);
    nvmlReturn_t error = READ(K_fan_min_percent, min);
    return error ? error : READ(K_fan_max_percent, max);
}
