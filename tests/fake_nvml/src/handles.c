/* Device handles. A handle names a UUID, not an index: it survives any change of the state, and a
 * card that was swapped out is lost to those who still hold its handle. As with the real library,
 * the set of GPUs is the one found by nvmlInit; a card plugged in later needs another init. */
#include "fake.h"

#include <string.h>

#define SLOTS 4096

struct slot {
    char uuid[TEXT];
    bool is_mig, resolved;
    struct call target;
};

static struct slot slots[SLOTS];
static unsigned slot_count;
static struct slot *visible[MAX_GPUS];
static unsigned visible_count;

struct slot *handle_for(const char *uuid, bool is_mig)
{
    for (unsigned i = 0; i < slot_count; i++)
        if (!strcmp(slots[i].uuid, uuid))
            return &slots[i];
    if (slot_count == SLOTS)
        return NULL;
    struct slot *slot = &slots[slot_count++];
    memcpy(slot->uuid, uuid, strlen(uuid) + 1);
    slot->is_mig = is_mig;
    return slot;
}

static struct slot *slot_of(nvmlDevice_t device)
{
    struct slot *slot = (struct slot *)device;
    return slot >= slots && slot < slots + slot_count ? slot : NULL;
}

const char *handle_uuid(nvmlDevice_t device)
{
    struct slot *slot = slot_of(device);
    return slot ? slot->uuid : "";
}

bool handle_is_mig(nvmlDevice_t device)
{
    struct slot *slot = slot_of(device);
    return slot && slot->is_mig;
}

void handles_forget_resolved(void)
{
    for (unsigned i = 0; i < slot_count; i++)
        slots[i].resolved = false;
}

static struct call find(const struct slot *slot)
{
    for (unsigned i = 0; i < fake->gpu_count; i++) {
        struct gpu *gpu = &fake->gpus[i];
        if (!slot->is_mig && !strcmp(gpu->uuid, slot->uuid))
            return (struct call){NVML_SUCCESS, gpu, NULL};
        for (size_t m = 0; slot->is_mig && m < gpu->migs.count; m++)
            if (!strcmp(gpu->migs.items[m].uuid, slot->uuid))
                return (struct call){NVML_SUCCESS, gpu, &gpu->migs.items[m]};
    }
    return (struct call){slot->is_mig ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_GPU_IS_LOST, NULL, NULL};
}

nvmlReturn_t handle_resolve(nvmlDevice_t device, struct call *call)
{
    struct slot *slot = slot_of(device);
    if (!slot)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!slot->resolved) {
        slot->target = find(slot);
        slot->resolved = true;
    }
    *call = slot->target;
    if (!call->error && call->gpu->value[K_lost])
        return NVML_ERROR_GPU_IS_LOST;
    return call->error;
}

void handles_snapshot(void)
{
    visible_count = 0;
    for (unsigned i = 0; i < fake->gpu_count; i++)
        if (*fake->gpus[i].uuid && (visible[visible_count] = handle_for(fake->gpus[i].uuid, false)))
            visible_count++;
}

unsigned handles_visible(void)
{
    return visible_count;
}
nvmlDevice_t handle_at(unsigned index)
{
    return index < visible_count ? (nvmlDevice_t)visible[index] : NULL;
}

nvmlDevice_t handle_of(const struct gpu *gpu)
{
    for (unsigned i = 0; i < visible_count; i++)
        if (!strcmp(visible[i]->uuid, gpu->uuid))
            return (nvmlDevice_t)visible[i];
    return NULL;
}

nvmlDevice_t handle_by_uuid(const char *uuid)
{
    for (unsigned i = 0; i < visible_count; i++)
        if (!strcmp(visible[i]->uuid, uuid))
            return (nvmlDevice_t)visible[i];
    for (unsigned i = 0; i < fake->gpu_count; i++)
        for (size_t m = 0; m < fake->gpus[i].migs.count; m++)
            if (!strcmp(fake->gpus[i].migs.items[m].uuid, uuid) && handle_of(&fake->gpus[i]))
                return (nvmlDevice_t)handle_for(uuid, true);
    return NULL;
}
