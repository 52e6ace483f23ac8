/* The machine: devices from the configuration file, faults, the log of calls, and the record of work.
 *
 * FAKE_CUDA names a folder. `devices` has a line for each GPU or MIG instance: uuid, compute capability,
 * multiprocessors, bytes, name. `faults` has lines `FUNCTION CODE SKIP`: after SKIP calls it fails. Calls go to
 * `calls.PID`, work to `work`. */
#define _GNU_SOURCE
#include "fake_cuda.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct device devices[MAX_DEVICES];
int device_count;

static struct fault {
    char function[64];
    int code;
    long skip;
} faults[MAX_FAULTS];
static int fault_count;
static bool initialised;
static int log_fd = -1, work_fd = -1;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

int64_t now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

void sleep_until(int64_t at)
{
    int64_t left = at - now_us();
    if (left > 0)
        usleep((useconds_t)left);
}

void note(const char *format, ...)
{
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line - 1, format, arguments);
    va_end(arguments);
    if (length < 0 || log_fd < 0)
        return;
    line[length < (int)sizeof line - 1 ? length : (int)sizeof line - 2] = '\n';
    (void)!write(log_fd, line, (size_t)length + 1);
}

CUresult misuse(const char *function, const char *what)
{
    note("misuse %s %s", function, what);
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult enter(const char *function)
{
    note("%s", function);
    if (!initialised)
        return misuse(function, "before cuInit"), CUDA_ERROR_NOT_INITIALIZED;
    pthread_mutex_lock(&lock);
    int code = 0;
    for (int i = 0; i < fault_count; i++)
        if (!strcmp(faults[i].function, function) && faults[i].skip-- <= 0)
            code = faults[i].code;
    pthread_mutex_unlock(&lock);
    return (CUresult)code;
}

static FILE *open_in_folder(const char *name)
{
    char path[512];
    const char *folder = getenv("FAKE_CUDA");
    snprintf(path, sizeof path, "%s/%s", folder ? folder : ".", name);
    return fopen(path, "r");
}

static int open_log(const char *name)
{
    char path[512];
    const char *folder = getenv("FAKE_CUDA");
    snprintf(path, sizeof path, "%s/%s", folder ? folder : ".", name);
    return open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

static bool is_mig(const char *uuid)
{
    return !strncmp(uuid, "MIG-", 4);
}

/* As the driver does: UUIDs in the given order; one that is not there ends the list; one MIG instance at most. */
static void keep_visible(struct device *all, int count)
{
    char text[2048];
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (!visible) {
        for (int i = 0; i < count; i++)
            if (!is_mig(all[i].uuid))
                devices[device_count++] = all[i];
        return;
    }
    snprintf(text, sizeof text, "%s", visible);
    for (char *rest = text, *word; (word = strtok_r(rest, ",", &rest));) {
        int found = -1;
        for (int i = 0; i < count; i++)
            if (!strcmp(all[i].uuid, word))
                found = i;
        if (found < 0 || device_count == MAX_DEVICES)
            return;
        devices[device_count++] = all[found];
        if (is_mig(word))
            return;
    }
}

static void read_configuration(void)
{
    static struct device all[MAX_DEVICES];
    int count = 0;
    FILE *file = open_in_folder("devices");
    while (file && count < MAX_DEVICES) {
        struct device *one = &all[count];
        if (fscanf(file, "%95s %d %d %d %zu %95[^\n]\n", one->uuid, &one->major, &one->minor, &one->multiprocessors,
                   &one->memory, one->name) != 6)
            break;
        count++;
    }
    if (file)
        fclose(file);
    keep_visible(all, count);
    file = open_in_folder("faults");
    while (file && fault_count < MAX_FAULTS &&
           fscanf(file, "%63s %d %ld\n", faults[fault_count].function, &faults[fault_count].code,
                  &faults[fault_count].skip) == 3)
        fault_count++;
    if (file)
        fclose(file);
}

static void at_end(void)
{
    for (int i = 0; i < device_count; i++)
        note("end %s contexts %d bytes %zu", devices[i].uuid, devices[i].contexts, devices[i].used);
}

CUresult CUDAAPI cuInit(unsigned int flags)
{
    if (initialised)
        return CUDA_SUCCESS;
    char name[64];
    snprintf(name, sizeof name, "calls.%d", (int)getpid());
    log_fd = open_log(name);
    work_fd = open_log("work");
    note("cuInit %u visible %s", flags, getenv("CUDA_VISIBLE_DEVICES") ? getenv("CUDA_VISIBLE_DEVICES") : "-");
    read_configuration();
    initialised = true;
    atexit(at_end);
    CUresult code = enter(__func__);
    return code ? code : device_count ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

void add_work(struct device *device, int64_t start, int64_t end, struct work_record record)
{
    memcpy(record.uuid, device->uuid, sizeof record.uuid);
    record.start = start;
    record.end = end;
    if (work_fd >= 0)
        (void)!write(work_fd, &record, sizeof record);
}

/* The device does one thing after the other; returns when this piece ends. */
int64_t queue_work(struct device *device, double seconds, struct work_record record)
{
    pthread_mutex_lock(&lock);
    int64_t now = now_us(), start = device->busy_until > now ? device->busy_until : now;
    device->busy_until = start + (int64_t)(seconds * 1e6);
    int64_t end = device->busy_until;
    pthread_mutex_unlock(&lock);
    add_work(device, start, end, record);
    return end;
}

CUresult CUDAAPI cuDeviceGetCount(int *count)
{
    ENTER();
    UNLESS(count, CUDA_ERROR_INVALID_VALUE, "null count");
    *count = device_count;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGet(CUdevice *device, int ordinal)
{
    ENTER();
    UNLESS(device && ordinal >= 0 && ordinal < device_count, CUDA_ERROR_INVALID_DEVICE, "ordinal");
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    ENTER();
    UNLESS(value && device >= 0 && device < device_count, CUDA_ERROR_INVALID_DEVICE, "device");
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = devices[device].major; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = devices[device].minor; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = devices[device].multiprocessors; break;
    default: return misuse(__func__, "attribute the fake does not have");
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
    ENTER();
    UNLESS(can && device != peer && device < device_count && peer < device_count, CUDA_ERROR_INVALID_DEVICE, "pair");
    *can = 1;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGetErrorName(CUresult error, const char **text)
{
    static const struct {
        int code;
        const char *name;
    } names[] = {{0, "CUDA_SUCCESS"},          {1, "CUDA_ERROR_INVALID_VALUE"},    {2, "CUDA_ERROR_OUT_OF_MEMORY"},
                 {3, "CUDA_ERROR_NOT_INITIALIZED"}, {35, "CUDA_ERROR_INSUFFICIENT_DRIVER"},
                 {46, "CUDA_ERROR_DEVICE_UNAVAILABLE"}, {100, "CUDA_ERROR_NO_DEVICE"},
                 {101, "CUDA_ERROR_INVALID_DEVICE"}, {201, "CUDA_ERROR_INVALID_CONTEXT"},
                 {218, "CUDA_ERROR_INVALID_PTX"}, {400, "CUDA_ERROR_INVALID_HANDLE"},
                 {600, "CUDA_ERROR_NOT_READY"}, {719, "CUDA_ERROR_LAUNCH_FAILED"},
                 {999, "CUDA_ERROR_UNKNOWN"}};
    *text = "CUDA_ERROR_UNKNOWN";
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].code == (int)error)
            *text = names[i].name;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGetErrorString(CUresult error, const char **text)
{
    *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory"
          : error == CUDA_ERROR_NO_DEVICE     ? "no CUDA-capable device is detected"
          : error == CUDA_ERROR_LAUNCH_FAILED ? "unspecified launch failure"
                                              : "see the name";
    return CUDA_SUCCESS;
}
