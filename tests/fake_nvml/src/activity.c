/* How busy a GPU is: utilisation now, the driver's sample ring, and per process.
 * With MIG on, the driver gives none of these for the whole GPU. */
#include "fake.h"

static bool mig_on(const struct gpu *gpu)
{
    return gpu->value[K_mig_mode] != 0;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates)
{
    ENTER(device);
    UNLESS(rates, NVML_ERROR_INVALID_ARGUMENT);
    UNLESS(gpu->has[K_util] && !mig_on(gpu), NVML_ERROR_NOT_SUPPORTED);
    rates->gpu = (unsigned)rounded(flow_sampled(gpu, K_util));
    rates->memory = (unsigned)rounded(flow_sampled(gpu, K_util_memory));
    return NVML_SUCCESS;
}

static nvmlReturn_t engine(const char *function, nvmlDevice_t device, int key, unsigned *value,
                           unsigned *period)
{
    ENTER_AS(gate_enter(function, device, false));
    UNLESS(value && period, NVML_ERROR_INVALID_ARGUMENT);
    UNLESS(gpu->has[key] && !mig_on(gpu), NVML_ERROR_NOT_SUPPORTED);
    *value = (unsigned)rounded(flow_sampled(gpu, key));
    *period = (unsigned)fake->sample_period_us;
    return NVML_SUCCESS;
}
#define ENGINE(function, key) \
    nvmlReturn_t function(nvmlDevice_t device, unsigned int *value, unsigned int *period) \
    { \
        return engine(__func__, device, key, value, period); \
    }
ENGINE(nvmlDeviceGetEncoderUtilization, K_util_encoder)
ENGINE(nvmlDeviceGetDecoderUtilization, K_util_decoder)
ENGINE(nvmlDeviceGetJpgUtilization, K_util_jpeg)
ENGINE(nvmlDeviceGetOfaUtilization, K_util_ofa)

nvmlReturn_t nvmlDeviceGetEncoderStats(nvmlDevice_t device, unsigned int *sessions, unsigned int *fps,
                                       unsigned int *latency)
{
    ENTER(device);
    UNLESS(sessions && fps && latency, NVML_ERROR_INVALID_ARGUMENT);
    UNLESS(gpu->has[K_util_encoder], NVML_ERROR_NOT_SUPPORTED);
    *sessions = (unsigned)gpu->value[K_encoder_sessions];
    *fps = (unsigned)gpu->value[K_encoder_fps];
    *latency = (unsigned)gpu->value[K_encoder_latency_us];
    return NVML_SUCCESS;
}

static int sampled_key(nvmlSamplingType_t type)
{
    switch (type) {
    case NVML_TOTAL_POWER_SAMPLES: return K_power_mw;
    case NVML_GPU_UTILIZATION_SAMPLES: return K_util;
    case NVML_MEMORY_UTILIZATION_SAMPLES: return K_util_memory;
    case NVML_ENC_UTILIZATION_SAMPLES: return K_util_encoder;
    case NVML_DEC_UTILIZATION_SAMPLES: return K_util_decoder;
    case NVML_JPG_UTILIZATION_SAMPLES: return K_util_jpeg;
    case NVML_OFA_UTILIZATION_SAMPLES: return K_util_ofa;
    case NVML_PROCESSOR_CLK_SAMPLES: return K_clock_sm;
    case NVML_MEMORY_CLK_SAMPLES: return K_clock_memory;
    default: return -1;
    }
}

/* The ring's samples end at multiples of the period; this is the first one after `last_seen`. */
static int64_t first_after(int64_t last_seen, int64_t newest)
{
    int64_t period = fake->sample_period_us, oldest = newest - (SAMPLE_RING - 1) * period;
    if (last_seen < oldest)
        return oldest;
    return (last_seen / period + 1) * period;
}

nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, nvmlSamplingType_t type, unsigned long long last_seen,
                                  nvmlValueType_t *value_type, unsigned int *count, nvmlSample_t *samples)
{
    ENTER(device);
    int key = sampled_key(type);
    UNLESS(count && value_type, NVML_ERROR_INVALID_ARGUMENT);
    UNLESS(key >= 0 && gpu->has[key], NVML_ERROR_NOT_SUPPORTED);
    UNLESS(key == K_power_mw || key >= FLOWS || !mig_on(gpu), NVML_ERROR_NOT_SUPPORTED);
    *value_type = NVML_VALUE_TYPE_UNSIGNED_INT;
    if (!samples) {
        *count = SAMPLE_RING;
        return NVML_SUCCESS;
    }
    UNLESS(*count, NVML_ERROR_INVALID_ARGUMENT);
    int64_t period = fake->sample_period_us, newest = fake_now / period * period;
    unsigned written = 0;
    for (int64_t t = first_after((int64_t)last_seen, newest); t <= newest && written < *count; t += period) {
        double value = key < FLOWS ? flow_mean(gpu, key, t - period, t) : gpu->value[key];
        samples[written].timeStamp = (unsigned long long)t;
        samples[written++].sampleValue.uiVal = (unsigned)rounded(value);
    }
    *count = written;
    return written ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

/* One line per process that did anything since `last_seen`: its mean over those samples. */
static nvmlReturn_t process_activity(const struct gpu *gpu, int64_t last_seen, unsigned room, unsigned *count,
                                     nvmlProcessUtilizationInfo_v1_t *out)
{
    int64_t period = fake->sample_period_us, newest = fake_now / period * period;
    int64_t from = first_after(last_seen, newest) - period;
    unsigned found = 0;
    UNLESS(gpu->value[K_process_utilization] && !mig_on(gpu), NVML_ERROR_NOT_SUPPORTED);
    for (size_t i = 0; i < gpu->processes.count && from < newest; i++) {
        const struct process *process = &gpu->processes.items[i];
        int64_t begin = process->start > from ? process->start : from;
        int64_t end = process->end && process->end < newest ? process->end : newest;
        if (begin >= end || process->share <= 0)
            continue;
        double weight = process->share * (double)(end - begin) / (double)(newest - from);
        unsigned part[6];
        bool any = false;
        for (int flow = K_util; flow <= K_util_ofa; flow++) {
            part[flow] = (unsigned)rounded(weight * flow_mean(gpu, flow, begin, end));
            any |= part[flow] > 0;
        }
        if (!any)
            continue;
        if (found < room)
            out[found] = (nvmlProcessUtilizationInfo_v1_t){.timeStamp = (unsigned long long)newest,
                                                           .pid = process->pid,
                                                           .smUtil = part[0],
                                                           .memUtil = part[1],
                                                           .encUtil = part[2],
                                                           .decUtil = part[3],
                                                           .jpgUtil = part[4],
                                                           .ofaUtil = part[5]};
        found++;
    }
    *count = found;
    if (!found)
        return NVML_ERROR_NOT_FOUND;
    return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *out,
                                             unsigned int *count, unsigned long long last_seen)
{
    ENTER(device);
    UNLESS(count, NVML_ERROR_INVALID_ARGUMENT);
    unsigned room = out ? *count : 0;
    nvmlProcessUtilizationInfo_v1_t rows[room ? room : 1];
    nvmlReturn_t error = process_activity(gpu, (int64_t)last_seen, room, count, rows);
    for (unsigned i = 0; !error && i < *count; i++)
        out[i] = (nvmlProcessUtilizationSample_t){rows[i].pid,     rows[i].timeStamp, rows[i].smUtil,
                                                  rows[i].memUtil, rows[i].encUtil,   rows[i].decUtil};
    return error;
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *info)
{
    ENTER(device);
    CHECK_VERSION(info, nvmlProcessesUtilizationInfo_v1);
    unsigned room = info->procUtilArray ? info->processSamplesCount : 0;
    return process_activity(gpu, (int64_t)info->lastSeenTimeStamp, room, &info->processSamplesCount,
                            info->procUtilArray);
}
