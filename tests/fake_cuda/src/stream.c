/* Streams and events: an event is the time at which everything queued before it ends. */
#include "fake_cuda.h"

#include <stdlib.h>

struct CUstream_st {
    struct device *device;
};
struct CUevent_st {
    struct device *device;
    int64_t at; /* 0: never recorded */
};

CUresult CUDAAPI cuStreamCreate(CUstream *stream, unsigned int flags)
{
    ENTER();
    UNLESS(stream && current_device() && flags <= 1, CUDA_ERROR_INVALID_CONTEXT, "stream");
    *stream = calloc(1, sizeof **stream);
    (*stream)->device = current_device();
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventCreate(CUevent *event, unsigned int flags)
{
    ENTER();
    UNLESS(event && current_device(), CUDA_ERROR_INVALID_CONTEXT, "event");
    UNLESS(flags == CU_EVENT_BLOCKING_SYNC, CUDA_ERROR_INVALID_VALUE, "a waiting thread would spin");
    *event = calloc(1, sizeof **event);
    (*event)->device = current_device();
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventRecord(CUevent event, CUstream stream)
{
    ENTER();
    UNLESS(event && stream && event->device == stream->device, CUDA_ERROR_INVALID_HANDLE, "event of another device");
    int64_t now = now_us(), busy = stream->device->busy_until;
    event->at = busy > now ? busy : now;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventSynchronize(CUevent event)
{
    ENTER();
    UNLESS(event && event->at, CUDA_ERROR_INVALID_HANDLE, "event that was never recorded");
    sleep_until(event->at);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
    ENTER();
    UNLESS(milliseconds && start && end && start->at && end->at, CUDA_ERROR_INVALID_HANDLE, "event");
    UNLESS(end->at <= now_us(), CUDA_ERROR_NOT_READY, "elapsed time of an event that is not over");
    *milliseconds = (float)(end->at - start->at) / 1000;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamDestroy_v2(CUstream stream)
{
    ENTER();
    UNLESS(stream && stream->device, CUDA_ERROR_INVALID_HANDLE, "stream");
    stream->device = NULL;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventDestroy_v2(CUevent event)
{
    ENTER();
    UNLESS(event && event->device, CUDA_ERROR_INVALID_HANDLE, "event");
    event->device = NULL;
    return CUDA_SUCCESS;
}
