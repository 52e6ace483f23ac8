/* Who runs on a GPU. Asked of a GPU with MIG on, all its instances' processes, each with its
 * instance ids; asked of an instance, only its own. */
#include "fake.h"

#include <stdlib.h>

static bool runs(const struct process *process, char kind, const struct mig *mig)
{
    return (process->kind == kind || kind == '*') && process->start <= fake_now &&
           (!process->end || process->end > fake_now) &&
           (!mig || (process->gi == mig->gi && process->ci == mig->ci));
}

static nvmlReturn_t list(const char *function, nvmlDevice_t device, char kind, unsigned *count,
                         nvmlProcessInfo_v2_t *infos)
{
    ENTER_AS(gate_enter(function, device, true));
    UNLESS(count, NVML_ERROR_INVALID_ARGUMENT);
    unsigned room = infos ? *count : 0, found = 0;
    for (size_t i = 0; i < gpu->processes.count; i++) {
        const struct process *process = &gpu->processes.items[i];
        if (!runs(process, kind, call.mig))
            continue;
        if (found < room)
            infos[found] = (nvmlProcessInfo_v2_t){process->pid, process->memory, process->gi, process->ci};
        found++;
    }
    *count = found;
    return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

#define PROCESSES(function, kind) \
    nvmlReturn_t function(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos) \
    { \
        return list(__func__, device, kind, count, infos); \
    }
/* Drivers before 465 have only this form: without instance ids. */
#define OLD_PROCESSES(function, kind) \
    nvmlReturn_t function(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v1_t *infos) \
    { \
        UNLESS(count, NVML_ERROR_INVALID_ARGUMENT); \
        unsigned room = infos ? *count : 0; \
        nvmlProcessInfo_v2_t *full = calloc(room + 1, sizeof *full); \
        nvmlReturn_t code = list(__func__, device, kind, count, infos ? full : NULL); \
        for (unsigned i = 0; i < room && i < *count; i++) \
            infos[i] = (nvmlProcessInfo_v1_t){full[i].pid, full[i].usedGpuMemory}; \
        free(full); \
        return code; \
    }
OLD_PROCESSES(nvmlDeviceGetComputeRunningProcesses, 'C')
OLD_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses, 'G')
OLD_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses, 'M')

PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, 'C')
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, 'C')
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, 'G')
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, 'G')
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2, 'M')
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, 'M')

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *out)
{
    static const char kinds[] = {'C', 'G', 'M', '*'};
    ENTER_ANY(device);
    CHECK_VERSION(out, nvmlProcessDetailList_v1);
    UNLESS(out->mode < sizeof kinds, NVML_ERROR_INVALID_ARGUMENT);
    unsigned room = out->procArray ? out->numProcArrayEntries : 0, found = 0;
    for (size_t i = 0; i < gpu->processes.count; i++) {
        const struct process *process = &gpu->processes.items[i];
        if (!runs(process, kinds[out->mode], call.mig))
            continue;
        if (found < room)
            out->procArray[found] =
                (nvmlProcessDetail_v1_t){process->pid, process->memory, process->gi, process->ci, 0};
        found++;
    }
    out->numProcArrayEntries = found;
    return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}
