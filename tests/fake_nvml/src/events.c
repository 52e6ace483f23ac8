/* Event sets. An XID that a scenario raises reaches each set registered for its GPU exactly once;
 * what happened before the registration is not told. */
#include "fake.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SUPPORTED \
    (nvmlEventTypeSingleBitEccError | nvmlEventTypeDoubleBitEccError | nvmlEventTypeXidCriticalError | \
     nvmlEventTypeClock)

struct nvmlEventSet_st {
    long last_seq;
    unsigned count;
    struct {
        nvmlDevice_t device;
        unsigned long long types;
    } members[MAX_GPUS];
};

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
    ENTER(device);
    UNLESS(types, NVML_ERROR_INVALID_ARGUMENT);
    *types = SUPPORTED;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    ENTER_SYSTEM();
    UNLESS(set, NVML_ERROR_INVALID_ARGUMENT);
    *set = calloc(1, sizeof **set);
    UNLESS(*set, NVML_ERROR_MEMORY);
    (*set)->last_seq = fake->xids.count ? fake->xids.items[fake->xids.count - 1].seq : 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    UNLESS(set, NVML_ERROR_INVALID_ARGUMENT);
    free(set);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
    ENTER(device);
    UNLESS(set, NVML_ERROR_INVALID_ARGUMENT);
    UNLESS(!(types & ~(unsigned long long)SUPPORTED), NVML_ERROR_NOT_SUPPORTED);
    for (unsigned i = 0; i < set->count; i++)
        if (set->members[i].device == device) {
            set->members[i].types |= types;
            return NVML_SUCCESS;
        }
    UNLESS(set->count < MAX_GPUS, NVML_ERROR_MEMORY);
    set->members[set->count].device = device;
    set->members[set->count++].types = types;
    return NVML_SUCCESS;
}

static bool next_event(nvmlEventSet_t set, nvmlEventData_t *data)
{
    for (size_t i = 0; i < fake->xids.count; i++) {
        const struct xid *xid = &fake->xids.items[i];
        if (xid->seq <= set->last_seq)
            continue;
        set->last_seq = xid->seq;
        for (unsigned m = 0; m < set->count; m++)
            if (!strcmp(handle_uuid(set->members[m].device), xid->uuid) &&
                (set->members[m].types & nvmlEventTypeXidCriticalError)) {
                *data = (nvmlEventData_t){set->members[m].device, nvmlEventTypeXidCriticalError, xid->code,
                                          xid->gi, xid->ci};
                return true;
            }
    }
    return false;
}

/* A lost GPU's last XID is told before the loss. */
static nvmlReturn_t poll_once(const char *function, nvmlEventSet_t set, nvmlEventData_t *data)
{
    ENTER_AS(gate_enter_system(function));
    UNLESS(set && data, NVML_ERROR_INVALID_ARGUMENT);
    if (next_event(set, data))
        return NVML_SUCCESS;
    for (unsigned m = 0; m < set->count; m++) {
        struct call unused;
        if (handle_resolve(set->members[m].device, &unused) == NVML_ERROR_GPU_IS_LOST)
            return NVML_ERROR_GPU_IS_LOST;
    }
    return NVML_ERROR_TIMEOUT;
}

static nvmlReturn_t wait_for(const char *function, nvmlEventSet_t set, nvmlEventData_t *data,
                             unsigned timeout_ms)
{
    struct timespec step = {0, 2000000}, begin, now;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (;;) {
        nvmlReturn_t result = poll_once(function, set, data);
        clock_gettime(CLOCK_MONOTONIC, &now);
        long long passed = (now.tv_sec - begin.tv_sec) * 1000LL + (now.tv_nsec - begin.tv_nsec) / 1000000;
        if (result != NVML_ERROR_TIMEOUT || passed >= timeout_ms)
            return result;
        nanosleep(&step, NULL);
    }
}
nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int ms)
{
    return wait_for(__func__, set, data, ms);
}
nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int ms)
{
    return wait_for(__func__, set, data, ms);
}
