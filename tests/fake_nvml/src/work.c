/* Work that the fake CUDA driver recorded: intervals in which a GPU was busy, and with what.
 *
 * FAKE_CUDA names the folder with the file `work`, records appended one after the other. A GPU's flows are
 * those of its timeline plus those of its work. Without the variable there is no work. */
#include "fake.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct work_record { /* as tests/fake_cuda/src/fake_cuda.h has it */
    char uuid[TEXT];
    int64_t start, end;
    double tensor, fp32, fp64, fp16, dram, pcie_tx_kbps, pcie_rx_kbps, nvlink_tx_kibps, sm;
};

#define LOAD_POWER_MW 350000.0

static struct work_record *records;
static size_t count;

static double intensity(const struct work_record *record, int flow)
{
    switch (flow) {
    case K_util: return record->sm > 0 ? 100 : 0;
    case K_power_mw: return record->sm > 0 ? LOAD_POWER_MW : 0;
    case K_sm_active: return record->sm;
    case K_sm_occupancy: return record->sm;
    case K_tensor: return record->tensor;
    case K_tensor_fp16: return record->tensor;
    case K_fp32: return record->fp32;
    case K_fp64: return record->fp64;
    case K_fp16: return record->fp16;
    case K_dram: return record->dram;
    case K_util_memory: return record->dram;
    case K_pcie_tx_kbps: return record->pcie_tx_kbps;
    case K_pcie_rx_kbps: return record->pcie_rx_kbps;
    case K_nvlink_tx_kibps: return record->nvlink_tx_kibps;
    default: return 0;
    }
}

/* Reads what was appended since the last call. */
static void follow(void)
{
    static int fd = -1;
    static off_t read_to;
    const char *folder = getenv("FAKE_CUDA");
    char path[512];
    if (!folder)
        return;
    if (fd < 0) {
        snprintf(path, sizeof path, "%s/work", folder);
        fd = open(path, O_RDONLY | O_CLOEXEC);
    }
    struct work_record record;
    while (fd >= 0 && pread(fd, &record, sizeof record, read_to) == (ssize_t)sizeof record) {
        records = realloc(records, (count + 1) * sizeof *records);
        records[count++] = record;
        read_to += (off_t)sizeof record;
    }
}

double work_at(const struct gpu *gpu, int flow, int64_t t)
{
    double value = 0;
    follow();
    for (size_t i = 0; i < count; i++)
        if (records[i].start <= t && t < records[i].end && !strcmp(records[i].uuid, gpu->uuid))
            value += intensity(&records[i], flow);
    return value;
}

double work_total(const struct gpu *gpu, int flow, int64_t t)
{
    double total = 0;
    follow();
    for (size_t i = 0; i < count; i++) {
        int64_t end = records[i].end < t ? records[i].end : t;
        if (end > records[i].start && !strcmp(records[i].uuid, gpu->uuid))
            total += intensity(&records[i], flow) * (double)(end - records[i].start) / 1e6;
    }
    return total;
}
