/* Contexts, memory, modules: everything that is made must be released, and used only by its own thread. */
#include "fake_cuda.h"

#include <stdlib.h>
#include <string.h>

struct CUctx_st {
    int device;
};
struct CUmod_st {
    struct mix mix;
    bool loaded;
    char entry[TEXT];
    struct CUmod_st *self;
};

static struct CUctx_st contexts[MAX_DEVICES];
static __thread struct CUctx_st *current;

struct device *current_device(void)
{
    return current ? &devices[current->device] : NULL;
}

#define CURRENT() \
    ENTER(); \
    struct device *device = current_device(); \
    UNLESS(device && device->contexts, CUDA_ERROR_INVALID_CONTEXT, "without a current context")

CUresult CUDAAPI cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned int flags)
{
    ENTER();
    UNLESS(device >= 0 && device < device_count, CUDA_ERROR_INVALID_DEVICE, "device");
    UNLESS(flags & CU_CTX_SCHED_BLOCKING_SYNC, CUDA_ERROR_INVALID_VALUE, "a waiting thread would spin");
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    ENTER();
    UNLESS(context && device >= 0 && device < device_count, CUDA_ERROR_INVALID_DEVICE, "device");
    contexts[device].device = device;
    devices[device].contexts++;
    *context = &contexts[device];
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    ENTER();
    UNLESS(device >= 0 && device < device_count && devices[device].contexts > 0, CUDA_ERROR_INVALID_CONTEXT, "release");
    devices[device].contexts--;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSetCurrent(CUcontext context)
{
    ENTER();
    current = context;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSynchronize(void)
{
    CURRENT();
    sleep_until(device->busy_until);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    CURRENT();
    *free_bytes = device->memory - device->used;
    *total = device->memory;
    return CUDA_SUCCESS;
}

/* An allocation's address is its number; its size is looked up when it is freed. */
static struct allocation {
    CUdeviceptr address;
    size_t size;
    struct device *device;
} allocations[256];
static CUdeviceptr next_address = 0x700000000000ull;

CUresult CUDAAPI cuMemAlloc_v2(CUdeviceptr *pointer, size_t size)
{
    CURRENT();
    UNLESS(pointer && size, CUDA_ERROR_INVALID_VALUE, "size");
    if (size > device->memory - device->used)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < sizeof allocations / sizeof *allocations; i++)
        if (!allocations[i].size) {
            allocations[i] = (struct allocation){next_address, size, device};
            *pointer = next_address;
            next_address += (size + 0xFFFFF) & ~(size_t)0xFFFFF;
            device->used += size;
            note("allocated %zu", size);
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static bool inside(CUdeviceptr address, size_t size)
{
    for (size_t i = 0; i < sizeof allocations / sizeof *allocations; i++)
        if (allocations[i].size && address >= allocations[i].address &&
            address + size <= allocations[i].address + allocations[i].size)
            return true;
    return false;
}

CUresult CUDAAPI cuMemFree_v2(CUdeviceptr pointer)
{
    CURRENT();
    for (size_t i = 0; i < sizeof allocations / sizeof *allocations; i++)
        if (allocations[i].size && allocations[i].address == pointer) {
            allocations[i].device->used -= allocations[i].size;
            allocations[i].size = 0;
            return CUDA_SUCCESS;
        }
    return misuse(__func__, "a pointer that was not allocated");
}

CUresult CUDAAPI cuMemHostAlloc(void **pointer, size_t size, unsigned int flags)
{
    CURRENT();
    (void)flags;
    *pointer = malloc(size);
    return *pointer ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult CUDAAPI cuMemFreeHost(void *pointer)
{
    CURRENT();
    free(pointer);
    return CUDA_SUCCESS;
}

static unsigned count(const char *text, const char *end, const char *word)
{
    unsigned found = 0;
    for (const char *at = text; (at = strstr(at, word)) && at < end; at += strlen(word))
        found++;
    return found;
}

CUresult CUDAAPI cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int options, CUjit_option *names,
                                    void **values)
{
    CURRENT();
    (void)options, (void)names, (void)values;
    const char *text = image, *loop = text ? strstr(text, "\nrepeat:") : NULL;
    const char *end = loop ? strstr(loop, "bra repeat;") : NULL, *entry = text ? strstr(text, ".entry ") : NULL;
    UNLESS(text && strstr(text, ".version") && entry && end, CUDA_ERROR_INVALID_PTX, "PTX");
    struct CUmod_st *loaded = calloc(1, sizeof *loaded);
    loaded->mix = (struct mix){.tensor = count(loop, end, "wmma.mma."),
                               .fp32 = count(loop, end, "fma.rn.f32 "),
                               .fp64 = count(loop, end, "fma.rn.f64 "),
                               .fp16 = count(loop, end, "fma.rn.f16x2 "),
                               .loads = count(loop, end, "ld.global.v4.")};
    size_t length = strcspn(entry + 7, "(");
    memcpy(loaded->entry, entry + 7, length < TEXT ? length : TEXT - 1);
    loaded->loaded = true;
    loaded->self = loaded;
    *module = loaded;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    CURRENT();
    UNLESS(module && module->self == module && module->loaded, CUDA_ERROR_INVALID_HANDLE, "module");
    UNLESS(!strcmp(module->entry, name), CUDA_ERROR_NOT_FOUND, "no such kernel");
    *function = (CUfunction)module;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuModuleUnload(CUmodule module)
{
    CURRENT();
    UNLESS(module && module->self == module && module->loaded, CUDA_ERROR_INVALID_HANDLE, "module");
    module->loaded = false;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads, size_t shared)
{
    CURRENT();
    (void)shared;
    UNLESS(blocks && function && threads > 0, CUDA_ERROR_INVALID_VALUE, "occupancy");
    *blocks = 2048 / threads;
    return CUDA_SUCCESS;
}

/* Time: an instruction of a block takes 4 ns for each block of a multiprocessor; memory gives 2 TB/s. */
CUresult CUDAAPI cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                                unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared,
                                CUstream stream, void **arguments, void **extra)
{
    CURRENT();
    const struct CUmod_st *module = (const struct CUmod_st *)function;
    UNLESS(module && module->self == module && module->loaded, CUDA_ERROR_INVALID_HANDLE, "function");
    UNLESS(stream && arguments && !extra && !shared, CUDA_ERROR_INVALID_VALUE, "launch");
    UNLESS(grid_x && grid_y == 1 && grid_z == 1 && block_x && block_x <= 1024 && block_y == 1 && block_z == 1,
           CUDA_ERROR_INVALID_VALUE, "grid");
    const struct mix *mix = &module->mix;
    CUdeviceptr out = *(CUdeviceptr *)arguments[0];
    unsigned repetitions = *(unsigned *)arguments[1];
    UNLESS(inside(out, (size_t)grid_x * block_x * 4), CUDA_ERROR_ILLEGAL_ADDRESS, "result outside its allocation");
    UNLESS(repetitions, CUDA_ERROR_INVALID_VALUE, "no repetitions: the kernel would run 2^32 times");
    double waves = (double)grid_x / device->multiprocessors, seconds;
    unsigned instructions = mix->tensor * 8 + mix->fp32 + mix->fp64 * 2 + mix->fp16;
    struct work_record record = {.sm = 100};
    if (mix->loads) {
        CUdeviceptr buffer = *(CUdeviceptr *)arguments[2];
        size_t bytes = *(size_t *)arguments[3];
        UNLESS(inside(buffer, bytes), CUDA_ERROR_ILLEGAL_ADDRESS, "buffer outside its allocation");
        UNLESS(bytes % ((size_t)grid_x * block_x * 16 * mix->loads) == 0, CUDA_ERROR_ILLEGAL_ADDRESS, "reads past the end");
        seconds = (double)bytes * repetitions / 2e12;
        record.dram = 88;
    } else {
        seconds = repetitions * waves * instructions * 4e-9;
        record.tensor = mix->tensor ? 92 : 0;
        record.fp32 = mix->fp32 ? 90 : 0;
        record.fp64 = mix->fp64 ? 90 : 0;
        record.fp16 = mix->fp16 ? 60 : 0;
    }
    queue_work(device, seconds, record);
    return CUDA_SUCCESS;
}

/* PCIe: 25 GB/s each way. */
static CUresult copy(const char *function, CUdeviceptr address, size_t size, CUstream stream, bool to_host)
{
    CUresult entered = enter(function);
    struct device *device = current_device();
    if (entered || !device || !stream || !inside(address, size))
        return entered ? entered : misuse(function, "copy");
    struct work_record record = {0};
    *(to_host ? &record.pcie_tx_kbps : &record.pcie_rx_kbps) = 25e6;
    queue_work(device, (double)size / 25e9, record);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemcpyHtoDAsync_v2(CUdeviceptr target, const void *source, size_t size, CUstream stream)
{
    return source ? copy(__func__, target, size, stream, false) : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuMemcpyDtoHAsync_v2(void *target, CUdeviceptr source, size_t size, CUstream stream)
{
    return target ? copy(__func__, source, size, stream, true) : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuMemcpyPeerAsync(CUdeviceptr target, CUcontext target_context, CUdeviceptr source,
                                   CUcontext source_context, size_t size, CUstream stream)
{
    CURRENT();
    UNLESS(target_context && source_context && target_context != source_context, CUDA_ERROR_INVALID_CONTEXT, "peer");
    UNLESS(stream && inside(target, size) && inside(source, size), CUDA_ERROR_INVALID_VALUE, "peer copy");
    queue_work(device, (double)size / 200e9, (struct work_record){.nvlink_tx_kibps = 200e9 / 1024});
    return CUDA_SUCCESS;
}
