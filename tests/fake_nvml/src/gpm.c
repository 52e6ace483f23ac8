/* Profiling (GPM): a sample remembers every flow's integral; a metric is the mean between two
 * samples. For a MIG instance the GPU's means are scaled by how busy the instance is. */
#include "fake.h"

#include <stdlib.h>
#include <string.h>

struct nvmlGpmSample_st {
    int64_t at; /* 0: never taken */
    char uuid[TEXT];
    double total[FLOWS];
    bool has[FLOWS];
    bool is_mig;
    double busy_total; /* of the MIG instance */
    unsigned links;
};

nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *sample)
{
    ENTER_SYSTEM();
    UNLESS(sample, NVML_ERROR_INVALID_ARGUMENT);
    *sample = calloc(1, sizeof **sample);
    return *sample ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample)
{
    UNLESS(sample, NVML_ERROR_INVALID_ARGUMENT);
    free(sample);
    return NVML_SUCCESS;
}

static nvmlReturn_t take(const struct gpu *gpu, nvmlGpmSample_t sample)
{
    UNLESS(sample, NVML_ERROR_INVALID_ARGUMENT);
    UNLESS(gpu->value[K_gpm], NVML_ERROR_NOT_SUPPORTED);
    sample->at = fake_now;
    sample->is_mig = false;
    sample->links = (unsigned)gpu->value[K_nvlink_count];
    memcpy(sample->uuid, gpu->uuid, sizeof sample->uuid);
    for (int flow = 0; flow < FLOWS; flow++) {
        sample->has[flow] = gpu->has[flow];
        sample->total[flow] = flow_total(gpu, flow, fake_now);
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample)
{
    ENTER(device);
    return take(gpu, sample);
}

nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned int gi, nvmlGpmSample_t sample)
{
    ENTER(device);
    nvmlReturn_t error = take(gpu, sample);
    UNLESS(!error, error);
    sample->busy_total = 0;
    for (size_t i = 0; i < gpu->migs.count; i++) {
        const struct mig *mig = &gpu->migs.items[i];
        if (mig->gi != gi)
            continue;
        sample->is_mig = true;
        sample->busy_total += mig->busy_total + mig->busy * (double)(fake_now - mig->busy_since) / 1e6;
    }
    return sample->is_mig ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *support)
{
    ENTER(device);
    CHECK_VERSION(support, NVML_GPM_SUPPORT_VERSION);
    support->isSupportedDevice = gpu->value[K_gpm] != 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmQueryIfStreamingEnabled(nvmlDevice_t device, unsigned int *state)
{
    ENTER(device);
    UNLESS(state, NVML_ERROR_INVALID_ARGUMENT);
    UNLESS(gpu->value[K_gpm], NVML_ERROR_NOT_SUPPORTED);
    *state = 0;
    return NVML_SUCCESS;
}

#define KB_TO_MIB (1000.0 / 1048576.0)
#define KIB_TO_MIB (1.0 / 1024.0)
static const struct metric {
    unsigned id;
    int flow;
    double scale;
    char *name, *unit;
} metrics[] = {
    {NVML_GPM_METRIC_GRAPHICS_UTIL, K_util, 1, "GRAPHICS_UTIL", "%"},
    {NVML_GPM_METRIC_SM_UTIL, K_sm_active, 1, "SM_UTIL", "%"},
    {NVML_GPM_METRIC_SM_OCCUPANCY, K_sm_occupancy, 1, "SM_OCCUPANCY", "%"},
    {NVML_GPM_METRIC_INTEGER_UTIL, K_integer, 1, "INTEGER_UTIL", "%"},
    {NVML_GPM_METRIC_ANY_TENSOR_UTIL, K_tensor, 1, "ANY_TENSOR_UTIL", "%"},
    {NVML_GPM_METRIC_DFMA_TENSOR_UTIL, K_tensor_fp64, 1, "DFMA_TENSOR_UTIL", "%"},
    {NVML_GPM_METRIC_HMMA_TENSOR_UTIL, K_tensor_fp16, 1, "HMMA_TENSOR_UTIL", "%"},
    {NVML_GPM_METRIC_DMMA_TENSOR_UTIL, K_tensor_fp64, 1, "DMMA_TENSOR_UTIL", "%"},
    {NVML_GPM_METRIC_IMMA_TENSOR_UTIL, K_tensor_int, 1, "IMMA_TENSOR_UTIL", "%"},
    {NVML_GPM_METRIC_DRAM_BW_UTIL, K_dram, 1, "DRAM_BW_UTIL", "%"},
    {NVML_GPM_METRIC_FP64_UTIL, K_fp64, 1, "FP64_UTIL", "%"},
    {NVML_GPM_METRIC_FP32_UTIL, K_fp32, 1, "FP32_UTIL", "%"},
    {NVML_GPM_METRIC_FP16_UTIL, K_fp16, 1, "FP16_UTIL", "%"},
    {NVML_GPM_METRIC_PCIE_TX_PER_SEC, K_pcie_tx_kbps, KB_TO_MIB, "PCIE_TX_PER_SEC", "MiB/s"},
    {NVML_GPM_METRIC_PCIE_RX_PER_SEC, K_pcie_rx_kbps, KB_TO_MIB, "PCIE_RX_PER_SEC", "MiB/s"},
    {NVML_GPM_METRIC_NVDEC_0_UTIL, K_util_decoder, 1, "NVDEC_0_UTIL", "%"},
    {NVML_GPM_METRIC_NVJPG_0_UTIL, K_util_jpeg, 1, "NVJPG_0_UTIL", "%"},
    {NVML_GPM_METRIC_NVOFA_0_UTIL, K_util_ofa, 1, "NVOFA_0_UTIL", "%"},
    {NVML_GPM_METRIC_NVENC_0_UTIL, K_util_encoder, 1, "NVENC_0_UTIL", "%"},
    {NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC, K_nvlink_rx_kibps, KIB_TO_MIB, "NVLINK_TOTAL_RX_PER_SEC",
     "MiB/s"},
    {NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC, K_nvlink_tx_kibps, KIB_TO_MIB, "NVLINK_TOTAL_TX_PER_SEC",
     "MiB/s"},
};

/* Links 0 to 17 have two metrics each, RX first; all links carry the same share. */
static bool link_metric(unsigned id, unsigned links, struct metric *metric)
{
    unsigned offset = id - NVML_GPM_METRIC_NVLINK_L0_RX_PER_SEC;
    if (id < NVML_GPM_METRIC_NVLINK_L0_RX_PER_SEC || id > NVML_GPM_METRIC_NVLINK_L17_TX_PER_SEC ||
        offset / 2 >= links)
        return false;
    *metric = (struct metric){id, offset % 2 ? K_nvlink_tx_kibps : K_nvlink_rx_kibps, KIB_TO_MIB / links,
                              "NVLINK_LINK_PER_SEC", "MiB/s"};
    return true;
}

static bool metric_of(unsigned id, unsigned links, struct metric *metric)
{
    for (size_t i = 0; i < sizeof metrics / sizeof *metrics; i++)
        if (metrics[i].id == id) {
            *metric = metrics[i];
            return true;
        }
    return link_metric(id, links, metric);
}

static void compute(nvmlGpmMetric_t *out, nvmlGpmSample_t from, nvmlGpmSample_t to)
{
    struct metric metric;
    if (!metric_of(out->metricId, to->links, &metric) || !to->has[metric.flow]) {
        out->nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
        return;
    }
    double seconds = (double)(to->at - from->at) / 1e6;
    double mean = seconds > 0 ? (to->total[metric.flow] - from->total[metric.flow]) / seconds : 0;
    double busy = seconds > 0 ? (to->busy_total - from->busy_total) / seconds : 0;
    if (to->is_mig) /* what the instance did, as a part of what the GPU did */
        mean = metric.flow == K_util || metric.flow == K_sm_active ? busy : mean * busy / 100;
    out->value = mean * metric.scale;
    out->nvmlReturn = NVML_SUCCESS;
    out->metricInfo.shortName = out->metricInfo.longName = metric.name;
    out->metricInfo.unit = metric.unit;
}

nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *request)
{
    ENTER_SYSTEM();
    CHECK_VERSION(request, NVML_GPM_METRICS_GET_VERSION);
    nvmlGpmSample_t from = request->sample1, to = request->sample2;
    UNLESS(from && to && from->at && to->at && request->numMetrics <= NVML_GPM_METRIC_MAX,
           NVML_ERROR_INVALID_ARGUMENT);
    UNLESS(!strcmp(from->uuid, to->uuid) && from->is_mig == to->is_mig, NVML_ERROR_INVALID_ARGUMENT);
    for (unsigned i = 0; i < request->numMetrics; i++)
        compute(&request->metrics[i], from, to);
    return NVML_SUCCESS;
}
